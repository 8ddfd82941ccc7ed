"""What slips into no formula: truth values, text, NaN, and numbers out of range."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dp_fedmed.privacy import _validate


@pytest.mark.parametrize("value", [True, np.True_, "1", None, 1j])
def test_only_numbers_are_numbers(value: Any) -> None:
    with pytest.raises(TypeError, match="sigma must be a number"):
        _validate.real("sigma", value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400])
def test_numbers_are_finite(value: Any) -> None:
    with pytest.raises(ValueError, match="sigma must be"):
        _validate.real("sigma", value)


@pytest.mark.parametrize("value", [3, 3.0, np.float32(3.0), np.int64(3)])
def test_a_number_comes_back_as_a_plain_float(value: Any) -> None:
    assert type(_validate.real("sigma", value)) is float
    assert _validate.real("sigma", value) == 3.0


@pytest.mark.parametrize(
    ("check", "inside", "outside"),
    [
        (_validate.positive, [1e-300], [0.0, -1.0]),
        (_validate.optional_positive, [1e-300], [0.0]),
        (_validate.non_negative, [0.0], [-1e-300]),
        (_validate.noise_multiplier, [1e-100, 1e100], [0.0, 9e-101, 1.1e100]),
        (_validate.sample_rate, [1e-9, 1.0], [0.0, 1.0 + 1e-9, 64]),
        (_validate.delta, [1e-300, 0.999], [0.0, 1.0]),
        (_validate.count, [1, 2**53], [0, 2**53 + 1]),
    ],
)
def test_ranges_are_closed_where_they_say_so(
    check: Callable[[str, Any], Any], inside: list[Any], outside: list[Any]
) -> None:
    for value in inside:
        assert check("x", value) == value
    for value in outside:
        with pytest.raises(ValueError, match=r"^x must"):
            check("x", value)


def test_counts_flags_and_words_are_what_they_look_like() -> None:
    assert type(_validate.count("steps", np.int64(3))) is int
    for value in (3.0, True, "3"):
        with pytest.raises(TypeError, match="steps must be an integer"):
            _validate.count("steps", value)
    assert _validate.count("steps", 0, minimum=0) == 0
    assert _validate.optional_positive("target", None) is None
    assert _validate.flag("strict", False) is False
    with pytest.raises(TypeError, match="strict must be True or False, got 0"):
        _validate.flag("strict", 0)
    with pytest.raises(ValueError, match="unit must be one of 'record', 'client', got 'site'"):
        _validate.choice("unit", "site", ("record", "client"))
