"""Bounding what one unit can contribute: L2 clipping in float64.

The guarantee kept here: after clipping, the float64 norm of what is returned, in its own dtype, is
at most C for every input, and one non-finite value cannot poison a sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.privacy import _validate

#: Clipped vectors aim this far below C, so that no order of summation finds their norm above it.
_MARGIN: Final = 2.0**-40


@dataclass(frozen=True, kw_only=True, slots=True)
class Clipped:
    """One vector, made of a list of arrays, after clipping.

    Attributes:
        arrays: New arrays with the shapes and dtypes of the input.
        norm_before: Float64 norm of the input; ``inf`` when it was not finite.
        norm_after: Float64 norm of ``arrays``, at most C.
        was_clipped: Whether the values were changed.
        num_nonfinite: NaN and infinite values found; any makes the whole vector zero.
    """

    arrays: list[NDArray[Any]]
    norm_before: float
    norm_after: float
    was_clipped: bool
    num_nonfinite: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ClippedRows:
    """The rows of a matrix, each clipped on its own.

    Attributes:
        rows: New matrix of the input's dtype.
        norms_before: Float64 norm of each row; ``inf`` where it was not finite.
        norms_after: Float64 norm of each returned row, at most C.
        num_clipped: Rows whose values were changed.
        num_nonfinite: Rows with a NaN or infinite value, which became zero.
    """

    rows: NDArray[Any]
    norms_before: NDArray[np.float64]
    norms_after: NDArray[np.float64]
    num_clipped: int
    num_nonfinite: int


def clip_l2(arrays: Sequence[NDArray[Any]], *, max_norm: float) -> Clipped:
    """Scale a list of arrays, taken as one vector, to an L2 norm of at most ``max_norm``.

    Args:
        arrays: Float arrays of any shapes.
        max_norm: C, greater than 0.

    Example:
        >>> clipped = clip_l2([np.array([3.0]), np.array([[4.0]])], max_norm=1.0)
        >>> round(clipped.norm_before, 6), round(clipped.norm_after, 6)
        (5.0, 1.0)
        >>> clip_l2([np.array([np.nan, 1.0])], max_norm=1.0).arrays[0]
        array([0., 0.])
    """
    bound = _validate.positive("max_norm", max_norm)
    given = [_floats(array, "arrays") for array in arrays]
    num_nonfinite = sum(int(a.size - np.isfinite(a).sum()) for a in given)
    if num_nonfinite:
        return Clipped(
            arrays=[np.zeros_like(a) for a in given],
            norm_before=math.inf,
            norm_after=0.0,
            was_clipped=True,
            num_nonfinite=num_nonfinite,
        )
    norm = _joint_norm(given, bound)
    result = [a.copy() for a in given]
    if norm > bound:
        result = _scaled_to(given, bound)
    return Clipped(
        arrays=result,
        norm_before=norm,
        norm_after=_joint_norm(result, bound) if norm > bound else norm,
        was_clipped=norm > bound,
        num_nonfinite=0,
    )


def clip_l2_rows(rows: NDArray[Any], *, max_norm: float) -> ClippedRows:
    """Scale each row of a matrix to an L2 norm of at most ``max_norm``.

    Example:
        >>> clipped = clip_l2_rows(np.array([[3.0, 4.0], [0.3, 0.4]]), max_norm=1.0)
        >>> clipped.num_clipped, clipped.norms_after.round(6).tolist()
        (1, [1.0, 0.5])
    """
    bound = _validate.positive("max_norm", max_norm)
    given = _floats(rows, "rows")
    if given.ndim != 2:
        raise ValueError(f"rows must be a matrix of shape (n, d), got shape {given.shape}")
    wide = given.astype(np.float64)
    result, before, bad = _clip_rows(wide, bound, given.dtype)
    changed = (result != wide).any(axis=1)
    return ClippedRows(
        rows=result.astype(given.dtype),
        norms_before=before,
        norms_after=_norms(result),
        num_clipped=int(changed.sum()),
        num_nonfinite=int(bad.sum()),
    )


def _joint_norm(arrays: list[NDArray[Any]], bound: float) -> float:
    """Float64 norm of all arrays together, for finite values."""
    with np.errstate(over="ignore", under="ignore"):
        vectors = (a.reshape(-1).astype(np.float64) for a in arrays)
        squares = math.fsum(float(np.dot(v, v)) for v in vectors)
        norm = math.sqrt(squares)
        is_safe = 1e-280 < squares < 1e300
        if is_safe and not bound * (1.0 - _MARGIN) < norm <= bound:
            return norm
        # Near C, and at the ends of the exponent range, take the slower and surer way.
        vector = np.concatenate([a.reshape(-1).astype(np.float64) for a in arrays] or [np.zeros(0)])
        if is_safe:
            return max(norm, float(np.linalg.norm(vector)))
        return float(_norms(vector[None, :])[0])


def _scaled_to(arrays: list[NDArray[Any]], bound: float) -> list[NDArray[Any]]:
    peak = max(float(np.abs(a).max(initial=0.0)) for a in arrays)
    unit_norm = math.sqrt(
        math.fsum(float(np.dot(v, v)) for v in (a.reshape(-1) / np.float64(peak) for a in arrays))
    )
    shrink = 1.0 - _MARGIN
    # Rounding is toward zero, so the first turn is enough unless the scale itself underflows.
    for _ in range(50):
        factor = bound * shrink / unit_norm
        result = [_toward_zero(a / np.float64(peak) * factor, a.dtype) for a in arrays]
        if _joint_norm(result, bound) <= bound:
            return result
        shrink -= 2.0**-30
    return [np.zeros_like(a) for a in arrays]


def _clip_rows(
    wide: NDArray[np.float64], bound: float, dtype: np.dtype[Any]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Clip float64 rows; every returned value is exact in ``dtype``."""
    bad: NDArray[np.bool_] = np.asarray(~np.isfinite(wide).all(axis=1))
    result: NDArray[np.float64] = wide.copy()
    result[bad] = 0.0
    norms = _norms(result)
    for i in np.flatnonzero((norms > bound * (1.0 - _MARGIN)) & (norms <= bound)):
        norms[i] = max(norms[i], np.linalg.norm(result[i]))
    before = np.where(bad, np.inf, norms)
    over = norms > bound
    shrink = 1.0 - _MARGIN
    for _ in range(50):
        if not over.any():
            return result, before, bad
        unit = wide[over] / np.abs(wide[over]).max(axis=1, keepdims=True)
        scaled = unit * (bound * shrink / _norms(unit)[:, None])
        result[over] = _toward_zero(scaled, dtype).astype(np.float64)
        over = over & (_norms(result) > bound)
        shrink -= 2.0**-30
    result[over] = 0.0
    return result, before, bad


def _toward_zero(values: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[Any]:
    """``values`` in ``dtype``, rounded so that no magnitude grows."""
    if dtype == np.float64:
        return values
    with np.errstate(over="ignore", under="ignore"):
        cast = values.astype(dtype)
        too_far = np.abs(cast.astype(np.float64)) > np.abs(values)
        cast[too_far] = np.nextafter(cast[too_far], np.zeros(1, dtype=dtype))
    return cast


def _norms(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Row norms that neither overflow nor lose denormals."""
    if rows.shape[1] == 0:
        return np.zeros(len(rows))
    with np.errstate(over="ignore", under="ignore"):
        squares = np.einsum("ij,ij->i", rows, rows)
        norms: NDArray[np.float64] = np.sqrt(squares)
        risky = ~((squares > 1e-280) & (squares < 1e300)) & rows.any(axis=1)
        if risky.any():
            peak = np.abs(rows[risky]).max(axis=1)
            unit = rows[risky] / peak[:, None]
            norms[risky] = peak * np.sqrt(np.einsum("ij,ij->i", unit, unit))
    return norms


def _floats(array: Any, name: str) -> NDArray[Any]:
    result = np.asarray(array)
    if result.dtype not in (np.float16, np.float32, np.float64):
        raise TypeError(
            f"{name} must be float16, float32 or float64, got dtype {result.dtype};"
            " integer buffers are not part of an update, and other types must be converted first"
        )
    return result
