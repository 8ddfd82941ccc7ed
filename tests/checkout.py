"""A copy of the checkout, without what was built or run in it."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: `site` is what `make docs` builds; further down, it is a room of the package.
BUILT = (".git", ".venv", "checkpoints", "site", ".*cache*")


def copy_checkout(target: Path) -> None:
    built = shutil.ignore_patterns(*BUILT, "__pycache__")
    caches = shutil.ignore_patterns("__pycache__")

    def left(folder: str, names: list[str]) -> set[str]:
        return (built if Path(folder) == ROOT else caches)(folder, names)

    shutil.copytree(ROOT, target, ignore=left)
