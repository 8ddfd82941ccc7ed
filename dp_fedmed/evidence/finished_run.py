"""A finished run, opened again for an attack: settings, data, model and claim, each checked.

Whatever is missing, changed or does not fit together stops with one sentence; nothing is written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from dp_fedmed.assemble import client_runtime, make_learner
from dp_fedmed.config import Config, from_yaml
from dp_fedmed.data import DataSet, Records, load_data
from dp_fedmed.errors import ArrayError, CheckpointError, ConfigError
from dp_fedmed.federation import arrays as model_arrays
from dp_fedmed.federation.nodes import client_name
from dp_fedmed.learning import Learner
from dp_fedmed.run.directory import (
    CONFIG_FILE,
    MODEL_FILE,
    PARTITION_FILE,
    REPORT_FILE,
    RunDirectory,
)
from dp_fedmed.run.spent import LEDGER_FILE, history_of, open_ledger
from dp_fedmed.run.store import data_digest

#: How sure it is that the data are those of the run.
DIGEST, SIZES, UNCHECKED = "digest", "sizes", "not checked"
_NEEDED = {
    CONFIG_FILE: f"{{path}} holds no run: {CONFIG_FILE} is missing",
    MODEL_FILE: f"{{path}} holds no finished run: {MODEL_FILE} is missing; finish it with "
    "dp-fedmed resume {path}",
    PARTITION_FILE: f"{{path}} has no {PARTITION_FILE}, which every simulation writes: the records "
    "of deployed sites are not here, so their membership cannot be tested here",
}


@dataclass(frozen=True)
class FinishedRun:
    """What is left of a run, and the records that it was made from."""

    path: Path
    config: Config
    data: DataSet
    learner: Learner
    model: model_arrays.State
    report: Mapping[str, Any]
    data_checked: str  # how the data were compared with those of the run
    sizes: Mapping[str, int]  # of each client's training records, where the report has them

    @classmethod
    def open(cls, path: Path, *, data_path: str | None = None) -> FinishedRun:
        """Open a run directory, whose data may have been moved to `data_path`.

        Raises:
            ConfigError: if it holds no finished simulation, or the data are not the run's.
            CheckpointError: if the model is broken or does not fit the settings.
            LedgerError: if the ledger was changed.
        """
        if not path.is_dir():
            raise ConfigError(f"{path} is not a run directory: for example checkpoints/my_run")
        for file, sentence in _NEEDED.items():
            if not (path / file).is_file():
                raise ConfigError(sentence.format(path=path))
        report = _read_report(path / REPORT_FILE)
        config, digest = _settings(path)
        if data_path is not None:
            moved = str(Path(data_path).expanduser().resolve())
            config = config.replace(data=replace(config.data, path=moved))
        data = load_data(config.data, seed=config.seed)
        sizes = _client_sizes(report)
        checked = SIZES if sizes else UNCHECKED
        if digest is not None:
            checked = DIGEST
            if not digest(data):
                raise ConfigError(
                    f"the records of data.name={config.data.name} are not those that the run was "
                    "trained on: restore them, or say where they are with data.path=/their/place"
                )
        learner = make_learner(config, data)
        model = _load_model(path, learner.initial())
        return cls(path, config, data, learner, model, report, checked, sizes)

    def members(self) -> Iterator[Records]:
        """Each simulated client's training records, cut as the clients cut them.

        Raises:
            ConfigError: if a client has other records than the report says.
        """
        runtime, count = client_runtime(self.config), self.config.federation.num_clients
        for number in range(count):
            node = {"partition-id": number, "num-partitions": count}
            records, _ = runtime.records(node)
            expected = self.sizes.get(client_name(node), len(records))
            if expected != len(records):
                raise ConfigError(
                    f"{client_name(node)} would have {len(records)} records, and had {expected} in "
                    "the run: the data have changed since"
                )
            yield records


def _settings(path: Path) -> tuple[Config, Any]:
    """The run's settings; with its ledger also a test of whether data are the run's."""
    file = path / CONFIG_FILE
    text, digest = file.read_text(encoding="utf-8", errors="replace"), None
    if (path / LEDGER_FILE).exists():
        ledger, key = open_ledger(path)
        history = history_of(ledger)
        if history.data is None:
            raise ConfigError(f"{path} holds no finished run: no round of it has begun")
        if text not in history.configs:
            raise ConfigError(f"{file} was edited: restore it")
        text, wanted = history.configs[-1], history.data

        def digest(data: DataSet) -> bool:
            return data_digest(key, data) == wanted

    try:
        return from_yaml(text, path), digest
    except ConfigError as error:
        raise ConfigError(f"{file} cannot be used: {error}") from error
    except Exception as error:  # YAML and OmegaConf fail in many ways on what is no settings file
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(f"{file} cannot be read, restore it: {reason}") from error


def _read_report(file: Path) -> dict[str, Any]:
    broken = ConfigError(f"{file} is missing or broken, so what the run claims is unknown")
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
        for guarantee in report["guarantees"]:
            epsilon, delta = float(guarantee["epsilon"]), float(guarantee["delta"])
            known = guarantee["unit"] in ("record", "client")
            if not (epsilon >= 0.0 and 0.0 <= delta < 1.0 and known):
                raise broken
    except (OSError, ValueError, KeyError, TypeError):
        raise broken from None
    return dict(report)


def _client_sizes(report: Mapping[str, Any]) -> dict[str, int]:
    """Each client's records as published, in the styles that publish them."""
    for guarantee in report["guarantees"]:
        if guarantee["unit"] == "record":
            clients = guarantee.get("clients", {})
            return {name: int(own["records"]) for name, own in clients.items()}
    return {}


def _load_model(path: Path, like: model_arrays.State) -> model_arrays.State:
    file = path / MODEL_FILE
    try:
        state = RunDirectory(path).load_model()
        return model_arrays.checked(model_arrays.to_record(state), like)
    except SafetensorError as error:
        raise CheckpointError(f"{file} is broken: {error}") from None
    except ArrayError as error:
        raise CheckpointError(f"{file} does not fit the run's settings: {error}") from None
