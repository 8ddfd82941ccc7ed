"""Where a run's secret randomness comes from: one key for the server, one for each client.

In a simulation the clients' keys derive from the run's key (one trust boundary, and reports say
so); a deployed client makes its own in its state directory, and the server never has it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dp_fedmed.config import Config
from dp_fedmed.config.arithmetic import computed_from
from dp_fedmed.errors import ConfigError, SiteRefused
from dp_fedmed.privacy.streams.keys import MacKey
from dp_fedmed.privacy.streams.noise import NoiseKey, NoiseStream, Purpose, StreamId, public_digest

SECRET_FOLDER = Path("private") / "secret"
NOISE_KEYS = "noise_*.key"
CLIENT_KEY_FILE = "noise.key"
LEDGER_KEY_FILE = "ledger.key"
Arrays = list[np.ndarray[Any, Any]]


@dataclass(frozen=True)
class RoundSecrets:
    """One party's streams within one round: the same inputs give the same bytes, others do not."""

    key: NoiseKey
    run: str
    server_round: int
    digest: bytes
    client: str | None = None
    phase: int = 0

    def sampling(self, purpose: Purpose, step: int = 0) -> np.random.Generator:
        """A generator for cohorts or batches: it depends on public inputs only."""
        return self.selection(purpose, step).generator

    def selection(self, purpose: Purpose, step: int = 0) -> NoiseStream:
        """The stream behind `sampling`."""
        return self.key.stream(self._id(purpose, step, None))

    def noise(self, purpose: Purpose, exact: Arrays, step: int = 0) -> NoiseStream:
        """The stream that hides `exact`, the very sum that is about to be noised."""
        return self.key.stream(self._id(purpose, step, self.key.private_digest(exact)))

    def _id(self, purpose: Purpose, step: int, private: bytes | None) -> StreamId:
        return StreamId(
            run=self.run,
            phase=self.phase,
            purpose=purpose,
            round_num=self.server_round,
            public_digest=self.digest,
            client=self.client,
            step=step,
            private_digest=private,
        )


def round_digest(arrays: Arrays, config: Config, in_force: Mapping[str, float | str]) -> bytes:
    """The public inputs of a round: the model that was sent and the settings in force.

    Args:
        arrays: the model.
        config: the configuration.
        in_force: σ, C, q and the like as this round uses them. Without them, one sum released at
            two noise scales would have one noise vector, and the two would give the sum away.
    """
    settings = {"in force": dict(in_force), **computed_from(config)}
    return public_digest(arrays=arrays, config=settings)


def key_file(run_dir: str | Path, phase: int) -> Path:
    """A run's noise key of one phase; each phase has its own."""
    return Path(run_dir) / SECRET_FOLDER / f"noise_{phase}.key"


def client_key(config: Config, node_config: Mapping[str, Any], name: str, phase: int) -> NoiseKey:
    """A client's own key: derived in a simulation, kept in `state-dir` in a deployment."""
    if config.privacy.noise_seed is not None:
        return NoiseKey.from_public_seed(config.privacy.noise_seed).derive("client", name)
    if "state-dir" in node_config:
        path = _own_folder(node_config) / CLIENT_KEY_FILE
        return NoiseKey.load(path) if path.exists() else NoiseKey.create(path)
    if "partition-id" not in node_config:
        raise SiteRefused(
            "a deployed client keeps its own noise key: start its SuperNode with "
            "--node-config \"client-id='…' state-dir='/var/lib/dp_fedmed'\"",
            "it has no state-dir in its node-config",
        )
    run_key = NoiseKey.load(key_file(config.run_dir, phase))
    return run_key.derive("client", name)


def _own_folder(node_config: Mapping[str, Any]) -> Path:
    """A deployed client's `state-dir`, made if needed; nobody else may look or write into it."""
    folder = Path(str(node_config["state-dir"]))
    try:
        folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        writable = os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        writable = False
    if not writable:
        raise SiteRefused(
            f"node-config state-dir={folder} cannot be written by whoever runs this SuperNode: "
            "give it a folder of its own",
            "its state-dir cannot be written",
        )
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & 0o077:
        raise SiteRefused(
            f"node-config state-dir={folder} has mode {mode:04o}, so others could change what this "
            "client has spent: give it to its owner alone with chmod 700",
            "its state-dir is open to others",
        )
    return folder


def client_ledger_key(config: Config, node_config: Mapping[str, Any], name: str) -> MacKey:
    """The key of a client's own ledger: derived in a simulation, its own in a deployment."""
    if "state-dir" in node_config:
        path = _own_folder(node_config) / LEDGER_KEY_FILE
        return MacKey.load(path) if path.exists() else MacKey.create(path)
    file = Path(config.run_dir) / SECRET_FOLDER / LEDGER_KEY_FILE
    if not file.is_file():
        raise ConfigError(
            f"run_dir={config.run_dir} is not there on the machine of {name}: simulated clients "
            "keep their keys and ledgers in it, so give a folder that every Ray node shares"
        )
    run_key = MacKey.load(file)
    return run_key.derive("client", name)


def client_folder(config: Config, node_config: Mapping[str, Any]) -> Path:
    """Where a client keeps what must outlast a round."""
    if "state-dir" in node_config:
        return Path(str(node_config["state-dir"]))
    return Path(config.run_dir) / "private" / "clients"
