"""Model state to and from Flower's ArrayRecord, without the copies of the stock conversion.

The bytes are ordinary `.npy`, so any Flower peer can read them; Flower's own `Array(ndarray)` and
`Array.numpy()` give the same content but copy every tensor two to three times.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.lib import format as npy

from dp_fedmed.errors import ArrayError
from dp_fedmed.federation.flower_compat import make_array

State = dict[str, np.ndarray[Any, Any]]

MOST_HEADER = 4096  # bytes before the numbers of an array; ours take 128


def to_record(state: Mapping[str, np.ndarray[Any, Any]]) -> ArrayRecord:
    """Named arrays as an ArrayRecord.

    >>> from_record(to_record({"w": np.ones(2, dtype=np.float32)}))["w"]
    array([1., 1.], dtype=float32)
    """
    return ArrayRecord({name: _to_array(value) for name, value in state.items()})


def from_record(record: ArrayRecord) -> State:
    """The arrays of a record as read-only views of its bytes.

    Raises:
        ArrayError: for bytes that are not a plain numeric `.npy` of their declared size.
    """
    return {name: _from_array(name, array) for name, array in record.items()}


def finite(record: ArrayRecord) -> State:
    """The arrays of a record, if all of their numbers are finite.

    Raises:
        ArrayError: naming the first array that cannot be read, or is not.
    """
    state = from_record(record)
    for name, value in state.items():
        _square(name, value)
    return state


def checked(
    record: ArrayRecord,
    like: Mapping[str, np.ndarray[Any, Any]],
    *,
    max_norm: float | None = None,
) -> State:
    """The arrays of a record if they have just the names, shapes and types of `like`, all finite.

    Sizes are compared before anything is parsed, so that a huge array costs no more than its bytes.

    Args:
        record: what was sent.
        like: what is expected.
        max_norm: the largest norm of all arrays together, where there is a limit.

    Raises:
        ArrayError: naming the first array that does not fit.
    """
    if set(record) != set(like):
        odd = sorted(set(record) ^ set(like))[0]
        raise ArrayError(f"array {odd!r} is {'missing' if odd in like else 'not in the model'}")
    state, squares = {}, 0.0
    for name, expected in like.items():
        size, most = len(record[name].data), expected.nbytes + MOST_HEADER
        if size > most:
            raise ArrayError(f"array {name!r} has {size} bytes, expected at most {most}")
        value = _from_array(name, record[name])
        if value.shape != expected.shape or value.dtype != expected.dtype:
            raise ArrayError(
                f"array {name!r} is {value.dtype}{list(value.shape)}, "
                f"expected {expected.dtype}{list(expected.shape)}"
            )
        squares += _square(name, value)
        state[name] = value
    if max_norm is not None and not squares <= max_norm**2:
        raise ArrayError(f"its arrays have a norm above {max_norm:g}")
    return state


def _square(name: str, value: np.ndarray[Any, Any]) -> float:
    """The square of an array's norm; infinite where it overflows.

    NaN and infinity survive a dot product, which is ten times faster than looking at each number.
    """
    flat = value.reshape(-1)
    if flat.dtype.kind != "f":  # integers would overflow in silence
        flat = flat.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        square = float(flat @ flat)
    if not np.isfinite(square) and not np.isfinite(value).all():
        raise ArrayError(f"array {name!r} holds NaN or infinity")
    return square


def _to_array(value: np.ndarray[Any, Any]) -> Array:
    flat = np.ascontiguousarray(value).reshape(-1)
    data = b"".join((_npy_header(value.dtype.str, value.shape), flat.data.cast("B")))
    return make_array(value.dtype.name, value.shape, data)


@functools.lru_cache(maxsize=4096)
def _npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    npy.write_array_header_1_0(buffer, {"descr": dtype, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


@functools.lru_cache(maxsize=4096)
def _parse_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    buffer = io.BytesIO(header)
    if npy.read_magic(buffer) != (1, 0):
        raise ValueError("not npy version 1.0")
    shape, fortran, dtype = npy.read_array_header_1_0(buffer)
    if not isinstance(dtype, np.dtype) or dtype.kind not in "fiu":
        raise ValueError(f"type {dtype} is not numeric")
    return shape, fortran, dtype


def _from_array(name: str, array: Array) -> np.ndarray[Any, Any]:
    data = array.data
    start = 10 + int.from_bytes(data[8:10], "little")
    if start > MOST_HEADER:
        raise ArrayError(f"array {name!r} cannot be read: {start} bytes before its numbers")
    try:
        shape, fortran, dtype = _parse_header(data[:start])
        flat = np.frombuffer(data, dtype, offset=start)
        return flat.reshape(shape, order="F" if fortran else "C")
    except Exception as error:  # numpy's header parser fails in many ways on hostile bytes
        raise ArrayError(f"array {name!r} cannot be read: {error}") from error
