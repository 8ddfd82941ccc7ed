import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_fedmed.data import Records, split_client, split_records
from dp_fedmed.data.splits import stratified_cut
from dp_fedmed.errors import ConfigError
from tests.studies import study


@given(
    n=st.integers(5, 80),
    classes=st.integers(1, 6),
    share=st.floats(0.05, 0.45),
    seed=st.integers(0, 9),
)
def test_a_cut_is_complete_disjoint_and_stratified(n, classes, share, seed):
    strata = np.arange(n) % classes
    size = round(n * share)
    pieces = stratified_cut(strata, (size, size), seed=seed, purpose="t")
    assert [len(piece) for piece in pieces] == [size, size, n - 2 * size]
    assert sorted(np.concatenate(pieces).tolist()) == list(range(n))
    for piece in pieces[:2]:
        counts = np.bincount(strata[piece], minlength=classes)
        expected = np.bincount(strata, minlength=classes) * size / n
        assert np.abs(counts - expected).max() <= 2.0


def test_splits_depend_on_the_seed_only():
    records = Records(np.arange(40, dtype=np.float32)[:, None], np.arange(40) % 2)

    def cut(seed):
        parts = split_records(records, val_fraction=0.1, test_fraction=0.2, seed=seed)
        return [part.x[:, 0].tolist() for part in parts]

    assert cut(3) == cut(3)
    assert cut(3) != cut(4)
    assert [len(part) for part in cut(3)] == [28, 4, 8]


def test_nothing_left_to_train_on_is_an_error():
    records = Records(np.zeros((2, 1), np.float32), np.array([0, 1]))
    with pytest.raises(ConfigError, match=r"data\.val_fraction.*2 records"):
        split_records(records, val_fraction=0.1, test_fraction=0.1, seed=0)


@given(
    n=st.integers(0, 50),
    fraction=st.floats(0, 0.9),
    seed=st.integers(0, 5),
    client=st.integers(0, 5),
)
def test_a_client_keeps_something_to_train_on(n, fraction, seed, client):
    indices = np.arange(n) * 3 + 1
    train, val = split_client(indices, val_fraction=fraction, seed=seed, client=client)
    assert sorted([*train, *val]) == indices.tolist()
    assert np.all(np.diff(train) > 0)
    assert np.all(np.diff(val) > 0)
    if n:
        assert len(train) >= 1
    assert (len(val) >= 1) == (n >= 2 and fraction > 0)


def test_clients_draw_their_validation_parts_independently():
    def val(client, seed=0):
        return split_client(np.arange(50), val_fraction=0.2, seed=seed, client=client)[1].tolist()

    assert val(1) == val(1)
    assert val(1) != val(2)
    assert val(1) != val(1, seed=1)


def test_a_patient_is_in_one_part_only():
    records = study()
    parts = split_records(records, val_fraction=0.15, test_fraction=0.2, seed=0)
    held = [set(part.patient.tolist()) for part in parts]
    assert [len(patients) for patients in held] == [20, 4, 6]
    assert len(set.union(*held)) == 30
    assert sum(len(part) for part in parts) == len(records)
    for part in parts[1:]:
        assert set(part.y.tolist()) == {0, 1}, "patients are cut alike in their classes"


def test_masks_are_cut_without_naming_strata():
    images = np.zeros((20, 1, 8, 8), np.uint8)
    parts = split_records(
        Records(images, np.zeros((20, 8, 8), np.uint8)),
        val_fraction=0.1,
        test_fraction=0.2,
        seed=0,
    )
    assert [len(part) for part in parts] == [14, 2, 4]


def test_a_patients_validation_side_does_not_depend_on_the_client():
    ids = study().patient
    indices = np.arange(len(ids))
    cuts = [
        split_client(indices, val_fraction=0.3, seed=0, client=number, ids=ids)[1].tolist()
        for number in (1, 2)
    ]
    assert cuts[0] == cuts[1]
    assert 0 < len(cuts[0]) < len(ids)
