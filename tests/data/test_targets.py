"""Targets of a regression: public constants scale, bin and check them, one record at a time."""

from __future__ import annotations

import numpy as np
import pytest

from dp_fedmed.config import DataConfig, PartitionConfig, PartitionName
from dp_fedmed.data import DataSet, Records, Target, load_data, partition, split_records
from dp_fedmed.data.tabular import DIABETES_RANGES, PROGRESSION
from dp_fedmed.errors import ConfigError

DOSE = Target(low=0.0, high=10.0, name="dose", unit="mg")


def records(values: np.ndarray, **more: np.ndarray) -> Records:
    return Records(np.zeros((len(values), 2), np.float32), DOSE.scaled(values), **more)


def a_set(values: np.ndarray, targets: tuple[Target, ...] = (DOSE,)) -> DataSet:
    good = records(np.linspace(0.0, 10.0, 8))
    return DataSet(records(values), good, good, targets=targets)


def test_a_set_has_an_output_for_each_target() -> None:
    data = a_set(np.linspace(0.0, 10.0, 40))
    assert (data.num_classes, data.class_names) == (1, ("dose",))
    assert data.is_regression
    assert not data.is_segmentation
    assert data.train.y.dtype == np.float32
    assert np.allclose(DOSE.in_unit(data.train.y), np.linspace(0.0, 10.0, 40), atol=1e-6)
    several = Records(np.zeros((4, 2), np.float32), np.zeros((4, 3), np.float32))
    assert DataSet(several, several, several, targets=(DOSE,) * 3).num_classes == 3


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (np.array([1.0, np.nan]), "not finite"),
        (np.array([1.0, np.inf]), "not finite"),
        (np.array([1.0, 11.5]), "outside their public range"),
        (np.array([-0.5, 1.0]), "outside their public range"),
    ],
)
def test_targets_that_are_no_numbers_or_out_of_range_are_refused_without_a_value(
    values: np.ndarray, says: str
) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        a_set(values)
    assert "11.5" not in str(refused.value)
    assert "-0.5" not in str(refused.value)


def test_targets_and_their_description_agree() -> None:
    with pytest.raises(ConfigError, match="one Target per column"):
        a_set(np.array([1.0, 2.0]), targets=())
    with pytest.raises(ConfigError, match="one Target per column"):
        a_set(np.array([1.0, 2.0]), targets=(DOSE, DOSE))
    classes = Records(np.zeros((4, 2), np.float32), np.zeros(4, np.int64))
    with pytest.raises(ConfigError, match="int64"):
        DataSet(classes, classes, classes, targets=(DOSE,))
    numbers = records(np.arange(4.0))
    with pytest.raises(ConfigError, match="the val part has"):
        DataSet(numbers, classes, numbers, targets=(DOSE,))
    for low, high, edges in ((1.0, 1.0, ()), (0.0, np.inf, ()), (0.0, 1.0, (2.0,))):
        with pytest.raises(ConfigError, match="that rise"):
            Target(low=low, high=high, edges=edges)


def test_a_bin_depends_on_the_record_alone() -> None:
    """A quantile of the others would tell of them: by removing one, another's bin would change."""
    rng = np.random.default_rng(0)
    values = rng.uniform(0.0, 10.0, 100)
    for target in (DOSE, Target(low=0.0, high=10.0, edges=(1.0, 4.0))):
        bins = target.bins(target.scaled(values))
        alone = [int(target.bins(target.scaled(values[i : i + 1]))[0]) for i in range(100)]
        assert bins.tolist() == alone
    assert records(values).image_labels.tolist() == DOSE.bins(DOSE.scaled(values)).tolist()
    clinical = Target(low=0.0, high=10.0, edges=(1.0, 4.0), unit="mg")
    assert clinical.bin_names == ("0–1 mg", "1–4 mg", "4–10 mg")
    assert clinical.bins(clinical.scaled(np.array([0.5, 3.0, 9.0]))).tolist() == [0, 1, 2]


def test_a_split_keeps_bins_in_proportion() -> None:
    values = np.random.default_rng(1).uniform(0.0, 10.0, 400)
    parts = split_records(records(values), val_fraction=0.2, test_fraction=0.2, seed=0)
    whole = np.bincount(records(values).image_labels, minlength=4) / 400
    for part in parts:
        own = np.bincount(part.image_labels, minlength=4) / len(part)
        assert np.abs(own - whole).max() < 0.02


@pytest.mark.parametrize("name", [PartitionName.dirichlet, PartitionName.pathological])
def test_partitions_by_class_go_by_bins(name: PartitionName) -> None:
    data = load_data(DataConfig(name="diabetes"), seed=0)
    config = PartitionConfig(name=name, alpha=0.1, classes_per_client=1)
    parts = partition(data, config, num_clients=4, seed=0)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(data.train)))
    bins = data.train.image_labels
    held = [np.bincount(bins[part], minlength=4).max() / len(part) for part in parts]
    assert np.mean(held) > 0.55  # of iid clients it would be about 0.36
    low = a_set(np.full(40, 1.0) + np.linspace(0, 0.1, 40))
    with pytest.raises(ConfigError, match=f"{name} takes bins of the target"):
        partition(low, config, num_clients=4, seed=0)
    assert len(partition(low, PartitionConfig(), num_clients=4, seed=0)) == 4


def test_diabetes_is_scaled_by_public_constants_alone() -> None:
    """scikit-learn's own scaling is by statistics of all 442 patients."""
    from sklearn.datasets import load_diabetes

    shipped = load_diabetes(scaled=False)
    low, high = np.array(DIABETES_RANGES).T
    expected = np.clip(2 * (shipped.data - low) / (high - low) - 1, -1, 1).astype(np.float32)
    truth = {row.tobytes(): float(y) for row, y in zip(expected, shipped.target, strict=True)}
    for fraction, seed in ((0.1, 0), (0.4, 3)):
        config = DataConfig(name="diabetes", val_fraction=fraction)
        for part in load_data(config, seed=seed).parts().values():
            held = [truth[row.tobytes()] for row in part.x]
            assert np.allclose(PROGRESSION.in_unit(part.y), held, atol=1e-4)
    assert (PROGRESSION.low, PROGRESSION.high) == (25.0, 346.0)  # "Targets: integer 25 - 346"


def test_bins_of_a_target_are_no_classes() -> None:
    """As the page on one's own data does it: labels that splits and partitions go by."""
    target = Target(low=0, high=60, name="stay", unit="days", edges=(3, 7, 14))
    y = target.scaled(np.array([1.0, 5.0, 10.0, 50.0]))
    part = Records(np.zeros((4, 2), np.float32), y, labels=target.bins(y))
    assert DataSet(part, part, part, targets=(target,)).num_classes == 1
