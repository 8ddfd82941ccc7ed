"""`environment.json`: with which versions a run was computed, at the server."""

from __future__ import annotations

import json
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ENVIRONMENT_FILE = "environment.json"
PACKAGES = (
    *("torch", "torchvision", "flwr", "opacus", "dp-accounting", "randomgen"),
    *("numpy", "scipy", "scikit-learn", "hydra-core", "safetensors"),
)


def versions() -> dict[str, str]:
    """What computes here: dp_fedmed, Python, and the libraries that a result depends on.

    >>> versions()["python"].startswith("3.")
    True
    """
    from dp_fedmed.version import __version__

    found = {"dp_fedmed": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name.replace("-", "_")] = version(name)
        except PackageNotFoundError:
            found[name.replace("-", "_")] = "not installed"
    return found | {"system": f"{platform.system()} {platform.machine()}"}


def environment_after(run_dir: Path, server_round: int) -> dict[str, Any]:
    """What `environment.json` is to hold when a run is resumed after a round with these versions.

    Rounds that were computed with other versions keep theirs; with the same ones the file stays as
    it is, so that a resumed run ends as if it had never stopped.
    """
    earlier, now = [], versions()
    try:
        held = json.loads((run_dir / ENVIRONMENT_FILE).read_text(encoding="utf-8"))
        earlier = [entry for entry in held["stretches"] if entry["after_round"] < server_round]
        unchanged = bool(earlier) and earlier[-1]["versions"] == now
    except (OSError, ValueError, KeyError, TypeError):
        earlier, unchanged = [], False
    if not unchanged:
        earlier.append({"after_round": server_round, "versions": now})
    return {"schema": 1, "stretches": earlier}
