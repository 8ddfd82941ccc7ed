"""The checks that every public function of this package starts with.

A wrong type or a NaN that slips into a formula comes out as a wrong guarantee, so each helper
returns a plain Python number or raises an error that names the argument, the value given and
the values allowed.
"""

from __future__ import annotations

import math
import numbers
from typing import Any

#: Counts above this are no longer exact as float64, so they are refused.
MAX_COUNT = 2**53


def real(name: str, value: Any) -> float:
    """Return ``value`` as a finite float; refuse bool, text, NaN and infinities."""
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):
        raise TypeError(f"{name} must be a number, got the truth value {value!r}")
    if not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r} of type {type(value).__name__}")
    try:
        result = float(value)
    except OverflowError:
        raise ValueError(f"{name} must be a finite float, got a larger number") from None
    if not math.isfinite(result):
        raise ValueError(f"{name} must be finite, got {result!r}")
    return result


def positive(name: str, value: Any, *, hint: str = "") -> float:
    """Return ``value`` as a finite float above zero."""
    result = real(name, value)
    if result <= 0.0:
        raise ValueError(f"{name} must be greater than 0, got {result!r}{_hint(hint)}")
    return result


def optional_positive(name: str, value: Any) -> float | None:
    """Return ``None`` as it is, anything else as a finite float above zero."""
    return None if value is None else positive(name, value)


def non_negative(name: str, value: Any) -> float:
    """Return ``value`` as a finite float of at least zero."""
    result = real(name, value)
    if result < 0.0:
        raise ValueError(f"{name} must be 0 or more, got {result!r}")
    return result


def noise_multiplier(name: str, value: Any) -> float:
    """Return a σ whose inverse square neither overflows nor vanishes."""
    result = positive(name, value, hint="without noise there is no finite epsilon to report")
    if not 1e-100 <= result <= 1e100:
        raise ValueError(f"{name} must lie in [1e-100, 1e100], got {result!r}")
    return result


def sample_rate(name: str, value: Any) -> float:
    """Return a sampling rate in (0, 1]."""
    result = real(name, value)
    if not 0.0 < result <= 1.0:
        raise ValueError(
            f"{name} must be in (0, 1], got {result!r}; it is the chance of one unit to take part"
            " (expected batch size / number of records), not a batch size or a percentage"
        )
    return result


def delta(name: str, value: Any) -> float:
    """Return a δ in (0, 1)."""
    result = real(name, value)
    if not 0.0 < result < 1.0:
        raise ValueError(
            f"{name} must be in (0, 1), got {result!r}; a usual choice is well below 1/n"
        )
    return result


def count(name: str, value: Any, *, minimum: int = 1) -> int:
    """Return an integer count in [minimum, 2**53]; 3.0 is refused, 3 and numpy's 3 are not."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer, got {value!r} of type {type(value).__name__}")
    result = int(value)
    if not minimum <= result <= MAX_COUNT:
        raise ValueError(f"{name} must be an integer in [{minimum}, 2**53], got {result}")
    return result


def choice(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """Return ``value`` if it is one of the allowed words."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
    return str(value)


def flag(name: str, value: Any) -> bool:
    """Return a real ``bool``; 0, 1 and "false" are refused because they hide typos."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return value


def _hint(text: str) -> str:
    return f"; {text}" if text else ""
