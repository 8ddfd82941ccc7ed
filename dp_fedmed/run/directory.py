"""One run's folder: created once, never shared by accident, files written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from dp_fedmed.config import Config
from dp_fedmed.errors import ConfigError
from dp_fedmed.privacy.files import write_file
from dp_fedmed.run.checkpoint import to_bytes
from dp_fedmed.run.durable import LOCK_FILE

CONFIG_FILE = "config.yaml"
METRICS_FILE = "metrics.jsonl"
MODEL_FILE = "model.safetensors"
REPORT_FILE = "privacy_report.json"
CARD_FILE = "privacy_card.md"
EVALUATION_FILE = "evaluation.json"
PARTITION_FILE = "partition.json"
PICTURES_FILE = "pictures.png"
PARTITION_PICTURE, METRICS_PICTURE = "partition.png", "metrics.png"
LOG_FILE = "run.log"
PRIVATE_FILE = "rounds.jsonl"


def refuse_foreign(path: Path, but: str = LOCK_FILE) -> None:
    """Refuse a folder with files that no run wrote: they would be mixed with a run's.

    Args:
        path: the folder.
        but: a file that may be there already.

    Raises:
        ConfigError: naming some of them.
    """
    held = sorted(entry.name for entry in path.iterdir() if entry.name not in (LOCK_FILE, but))
    if held and CONFIG_FILE not in held:
        more = f" and {len(held) - 3} more" if len(held) > 3 else ""
        raise ConfigError(
            f"run_dir={path} is not empty and is no run's: it holds {', '.join(held[:3])}{more}; "
            f"give a folder of its own, for example run_dir={path / 'my_run'}"
        )


class RunDirectory:
    """The files of one run (DESIGN: `config.yaml`, `metrics.jsonl`, `model.safetensors`, …)."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @classmethod
    def create(cls, config: Config) -> RunDirectory:
        """Claim `run_dir` for a new run.

        Raises:
            ConfigError: if it is not absolute, holds a run already, or cannot be written.
        """
        path = Path(config.run_dir)
        if not config.run_dir or not path.is_absolute():
            raise ConfigError(
                f"run_dir={config.run_dir!r} is not an absolute path: for example "
                f"run_dir={Path.cwd() / 'checkpoints' / 'my_run'}"
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
            refuse_foreign(path)
            with open(path / CONFIG_FILE, "x", encoding="utf-8") as file:
                file.write(config.to_yaml())
        except FileExistsError:
            raise ConfigError(
                f"run_dir={path} already holds a run: give another run_dir, or continue it with "
                "resume=last"
            ) from None
        except OSError as error:
            raise ConfigError(f"run_dir={path} cannot be written: {error.strerror}") from error
        return cls(path)

    def write_config(self, config: Config) -> None:
        """Replace `config.yaml` by a configuration in which a choice has been made."""
        self.write(CONFIG_FILE, config.to_yaml().encode())

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Add one line to `metrics.jsonl`."""
        with open(self.path / METRICS_FILE, "a", encoding="utf-8") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")

    def append_private(self, row: Mapping[str, Any]) -> None:
        """Add one line to `private/rounds.jsonl`: who took part, and what clients reported."""
        file = self._private_folder() / PRIVATE_FILE
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with os.fdopen(os.open(file, flags, 0o600), "a", encoding="utf-8") as handle:
            handle.write(json.dumps(row, allow_nan=False) + "\n")

    def private_rows(self) -> list[dict[str, Any]]:
        """Every whole line of `private/rounds.jsonl`."""
        file, rows = self._private_folder() / PRIVATE_FILE, []
        for line in file.read_bytes().splitlines() if file.is_file() else []:
            with suppress(ValueError):
                rows.append(json.loads(line))
        return rows

    def write_private(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON file that is nobody's but the operator's."""
        text = json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False)
        write_file(self._private_folder() / name, text.encode(), mode=0o600)

    def log_file(self, *, secret: bool) -> Path:
        """Where log lines go: into `private/` where they would show who took part."""
        if not secret:
            return self.path / LOG_FILE
        file = self._private_folder() / LOG_FILE
        file.touch(mode=0o600)
        return file

    def _private_folder(self) -> Path:
        folder = self.path / "private"
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def metrics(self) -> list[dict[str, Any]]:
        """Every line of `metrics.jsonl`."""
        file = self.path / METRICS_FILE
        if not file.exists():
            return []
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]

    def forget_after(self, server_round: int) -> None:
        """Drop what is said of rounds after this one, which are about to be done again."""
        for name in (CARD_FILE, EVALUATION_FILE):  # of a model that will not be the final one
            (self.path / name).unlink(missing_ok=True)
        for file in (self.path / METRICS_FILE, self.path / "private" / PRIVATE_FILE):
            if not file.is_file():
                continue
            rows = {}
            for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    row = json.loads(line)
                    if int(row["round"]) <= server_round:
                        rows[int(row["round"])] = line
                except (ValueError, KeyError, TypeError):
                    continue  # the final line of a stretch, or one that was cut off
            text = "".join(f"{rows[number]}\n" for number in sorted(rows))
            mode = 0o600 if file.parent.name == "private" else 0o644
            write_file(file, text.encode(), mode=mode)

    def save_model(self, state: Mapping[str, np.ndarray[Any, Any]], name: str = MODEL_FILE) -> None:
        """Write a model as safetensors."""
        self.write(name, to_bytes(state))

    def load_model(self, name: str = MODEL_FILE) -> dict[str, np.ndarray[Any, Any]]:
        """Read a model back."""
        return load_file(self.path / name)

    def write_json(self, name: str, content: Mapping[str, Any], *, durable: bool = True) -> None:
        """Write a JSON file."""
        text = json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False)
        self.write(name, text.encode(), durable=durable)

    def write(self, name: str, content: bytes, *, durable: bool = True) -> None:
        """Write a file whole or not at all."""
        write_file(self.path / name, content, durable=durable)
