"""ArrayRecords: the same bytes as Flower's, and nothing unchecked gets through."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from torch import nn

from dp_fedmed.errors import ArrayError
from dp_fedmed.federation.arrays import checked, from_record, to_record
from dp_fedmed.learning.networks.learner import ModelState

LIKE = {"w": np.zeros((2, 3), np.float32), "s": np.zeros((), np.float32)}


def test_a_stock_flower_peer_reads_our_arrays_and_we_read_theirs() -> None:
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(to_record({"w": value})["w"].numpy(), value)
    assert np.array_equal(from_record(ArrayRecord({"w": Array(value)}))["w"], value)
    assert np.array_equal(from_record(ArrayRecord({"w": Array(value.T)}))["w"], value.T)


def test_scalars_and_empty_arrays_survive() -> None:
    state = {"s": np.float32(3).reshape(()), "e": np.zeros((0, 4), np.float32)}
    back = from_record(to_record(state))
    assert back["s"].shape == ()
    assert back["e"].shape == (0, 4)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"w": LIKE["w"]}, "'s' is missing"),
        ({**LIKE, "x": LIKE["w"]}, "'x' is not in the model"),
        ({**LIKE, "w": np.zeros((3, 2), np.float32)}, r"'w' is float32\[3, 2\]"),
        ({**LIKE, "w": np.zeros((2, 3))}, r"'w' is float64"),
        ({**LIKE, "w": np.full((2, 3), np.nan, np.float32)}, "NaN or infinity"),
        ({**LIKE, "s": np.float32(np.inf).reshape(())}, "NaN or infinity"),
    ],
)
def test_an_unfit_array_is_named(state: dict[str, np.ndarray], said: str) -> None:
    with pytest.raises(ArrayError, match=said):
        checked(to_record(state), LIKE)


def test_large_but_finite_values_are_not_mistaken_for_infinity() -> None:
    huge = {**LIKE, "w": np.full((2, 3), 3e38, np.float32)}
    assert checked(to_record(huge), LIKE)["w"].max() == np.float32(3e38)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x93NUMPY\x01\x00",
        to_record(LIKE)["w"].data[:-3],
        to_record(LIKE)["w"].data + b"more",
        b"not an array at all" * 9,
        to_record(LIKE)["w"].data.replace(b"<f4", b"|O8"),
    ],
)
def test_bytes_that_are_not_a_plain_array_are_refused(data: bytes) -> None:
    record = to_record(LIKE)
    record["w"] = Array("float32", (2, 3), "numpy.ndarray", data)
    with pytest.raises(ArrayError, match="'w'"):
        checked(record, LIKE)


def test_integer_buffers_are_not_sent() -> None:
    state = ModelState(nn.BatchNorm1d(3))
    assert "num_batches_tracked" not in state.read()


def test_load_and_read_are_inverse() -> None:
    model = nn.Linear(2, 2)
    state = ModelState(model)
    wanted = {name: np.full_like(value, 7.0) for name, value in state.read().items()}
    state.load(wanted)
    assert float(model.weight.detach().sum()) == 28.0
