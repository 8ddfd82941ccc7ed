"""Where a run's secret randomness comes from: one key for the server, one for each client.

In a simulation the clients' keys derive from the run's key (one trust boundary, and reports say
so); a deployed client makes its own in its state directory, and the server never has it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dp_fedmed.config import Config
from dp_fedmed.errors import ConfigError, SiteRefused
from dp_fedmed.privacy.streams.keys import LEDGER_KEY_FILE, SECRET_FOLDER, MacKey, key_file
from dp_fedmed.privacy.streams.noise import NoiseKey

CLIENT_KEY_FILE = "noise.key"


def client_key(config: Config, node_config: Mapping[str, Any], name: str, phase: int) -> NoiseKey:
    """A client's own key: derived in a simulation, kept in `state-dir` in a deployment."""
    if config.privacy.noise_seed is not None:
        return NoiseKey.from_public_seed(config.privacy.noise_seed).derive("client", name)
    if "state-dir" in node_config:
        path = _own_folder(node_config) / CLIENT_KEY_FILE
        return NoiseKey.load(path) if path.exists() else NoiseKey.create(path)
    refuse_homeless(node_config)
    run_key = NoiseKey.load(key_file(config.run_dir, phase))
    return run_key.derive("client", name)


def refuse_homeless(node_config: Mapping[str, Any]) -> None:
    """Refuse a deployed client that has nowhere to keep what no server may know.

    Raises:
        SiteRefused: naming the key.
    """
    if "state-dir" not in node_config and "partition-id" not in node_config:
        raise SiteRefused(
            "a deployed client keeps its own keys: start its SuperNode with "
            "--node-config \"client-id='…' state-dir='/var/lib/dp_fedmed'\"",
            "it has no state-dir in its node-config",
        )


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
