"""Who trains on which records: patients stay whole, and nobody's records depend on another's."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dp_fedmed.assemble import client_runtime
from dp_fedmed.cli import main
from dp_fedmed.config import Config, PartitionName, compose
from dp_fedmed.data import DataSet, Records, clients, load_data, training_parts
from dp_fedmed.data.clients import client_indices, deployed_records
from dp_fedmed.data.records import joined
from dp_fedmed.data.splits import split_client
from dp_fedmed.errors import ConfigError
from dp_fedmed.launch import run_federation
from tests.studies import STUDY, study, whole

PATIENTS = ("data.group_by=patient", "data.max_records_per_group=2")
Used = tuple[set[bytes], set[bytes]]


def rows(records: Records) -> set[bytes]:
    return {row.tobytes() for row in records.x}


def simulated(config: Config, records: Records) -> Used:
    train, val = client_indices(config, whole(records), client=0, num_clients=1)
    return rows(records.subset(train)), rows(records.subset(val))


def deployed(config: Config, records: Records) -> Used:
    """A site cuts what its loader has cut before; the cut here is by position."""
    cut = np.array_split(np.arange(len(records)), 3)
    if records.patient is not None:
        thirds = np.array_split(np.unique(records.patient), 3)
        cut = [np.flatnonzero(np.isin(records.patient, third)) for third in thirds]
    train, val, test = (records.subset(part) for part in cut)
    data = DataSet(train, val, test, num_classes=2, class_names=("no", "yes"))
    train, val = deployed_records(config, data)
    return rows(train), rows(val)


@pytest.mark.parametrize("where", [simulated, deployed])
def test_removing_a_patient_changes_nothing_about_the_others(
    where: Callable[[Config, Records], Used],
) -> None:
    config = compose(["privacy=none", *PATIENTS, "federation.num_clients=1", "seed=3"])
    records = study()
    assert records.patient is not None
    train, val = where(config, records)
    assert min(len(train), len(val)) > 3
    for patient in np.unique(records.patient):
        own = rows(records.subset(np.flatnonzero(records.patient == patient)))
        left = records.subset(np.flatnonzero(records.patient != patient))
        assert where(config, left) == (train - own, val - own), patient


def test_a_deployed_site_cuts_each_record_by_itself_where_patients_are_unknown() -> None:
    config = compose(["privacy=none"])
    records = replace(study(), patient=None)
    train, val = deployed(config, records)
    assert len(train) + len(val) == len(records)
    assert min(len(train), len(val)) > 3
    for number in range(0, len(records), 7):
        own = {records.x[number].tobytes()}
        left = records.subset(np.delete(np.arange(len(records)), number))
        assert deployed(config, left) == (train - own, val - own)


@pytest.mark.parametrize("is_deployed", [False, True])
def test_a_patient_trains_or_validates_and_is_capped(is_deployed: bool) -> None:
    config = compose(["privacy=none", *STUDY, *PATIENTS, "federation.num_clients=1"])
    data = load_data(config.data, seed=0)
    train, val = deployed_records(config, data)
    if not is_deployed:
        own = client_indices(config, data, client=0, num_clients=1)
        train, val = (data.train.subset(part) for part in own)
    assert train.patient is not None
    assert val.patient is not None
    assert not set(train.patient) & set(val.patient)
    assert np.unique(train.patient, return_counts=True)[1].max() == 2


@pytest.mark.parametrize("name", PartitionName)
def test_every_client_has_whole_patients(name: PartitionName) -> None:
    config = compose(
        [
            *("privacy=none", *STUDY, *PATIENTS, f"data.partition.name={name}"),
            *("data.partition.classes_per_client=1", "data.partition.alpha=5"),
            *("federation.num_clients=3", "data.client_val_fraction=0"),
        ]
    )
    data = load_data(config.data, seed=0)
    assert data.train.patient is not None
    held = [set(data.train.patient[part]) for part in training_parts(config, data)]
    assert sum(map(len, held)) == len(set.union(*held)) == len(set(data.train.patient))


def test_a_hospital_is_a_site_and_a_patient_the_unit() -> None:
    words = ["privacy=none", *STUDY, *PATIENTS, "federation.num_clients=3"]
    config = compose([*words, "data.partition.name=natural", "data.client_val_fraction=0"])
    runtime = client_runtime(config)
    for number in range(3):
        train, _ = runtime.records({"partition-id": number, "num-partitions": 3})
        assert train.site is not None
        assert train.patient is not None
        assert len(set(train.site)) == 1
        assert np.unique(train.patient, return_counts=True)[1].max() <= 2


def test_patients_at_two_clients_are_refused_with_both_keys() -> None:
    records = study()
    spread = whole(replace(records, site=np.arange(len(records)) % 3))
    words = ["privacy=none", "data.partition.name=natural", "federation.num_clients=3"]
    with pytest.raises(ConfigError, match=r"data\.group_by=.*data\.partition\.name=natural"):
        client_indices(compose([*words, *PATIENTS]), spread, client=0, num_clients=3)
    client_indices(compose(words), spread, client=0, num_clients=3)  # no promise to patients
    pooled = compose([*words, *PATIENTS, "federation.topology=centralized"])
    assert len(training_parts(pooled, spread)) == 1


def test_a_client_whose_patients_all_validate_is_refused_with_the_key() -> None:
    config = compose(["privacy=none", "federation.num_clients=30", "data.partition.min_records=1"])
    with pytest.raises(ConfigError, match=r"data\.client_val_fraction=0\.1.*=0,"):
        training_parts(config, whole(study()))


def test_a_group_without_patients_is_refused_before_anything_starts() -> None:
    config = compose(["privacy=none", *PATIENTS])
    with pytest.raises(ConfigError, match=r"data\.group_by=patient needs.*Records\.patient"):
        client_runtime(config).preload(5)


def test_joined_records_keep_their_patients() -> None:
    twice = joined(study(3), study(3))
    assert twice.patient is not None
    assert twice.site is not None
    assert len(twice.patient) == 2 * len(study(3))


def test_what_is_shown_is_what_is_trained_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["privacy=none", *STUDY, *PATIENTS, "federation.num_clients=3"]
    words += ["federation.num_rounds=1", "engine.workers=1", f"run_dir={tmp_path}/run"]
    config = compose(words)
    runtime = client_runtime(config)
    nodes = [{"partition-id": number, "num-partitions": 3} for number in range(3)]
    sizes = [len(runtime.records(node)[0]) for node in nodes]
    run_federation(config)
    shown = json.loads((tmp_path / "run" / "partition.json").read_text())["clients"]
    assert [row["records"] for row in shown] == sizes
    monkeypatch.chdir(tmp_path)
    assert main(["data", *words]) == 0
    assert f"{sum(sizes)} training records" in capsys.readouterr().out


def test_a_site_that_keeps_nothing_to_train_on_is_told_its_own_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: dict[str, object] = {}

    def noted(indices: np.ndarray, **settings: object) -> object:
        given.update(settings)
        everybody = {**settings, "val_fraction": 1.0}
        return split_client(indices, **everybody)  # type: ignore[arg-type]

    monkeypatch.setattr(clients, "split_client", noted)
    config = compose(["privacy=none", "data.val_fraction=0.5"])
    with pytest.raises(ConfigError, match=r"^data\.val_fraction=1 leaves a client nothing"):
        deployed_records(config, whole(study()))
    assert given["val_fraction"] == 0.5
