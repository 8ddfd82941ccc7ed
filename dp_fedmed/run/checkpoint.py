"""`round_NNNN/`: the state of a run after a round, as safetensors and JSON; no pickle, ever.

A checkpoint is trusted only with the hash that the ledger's COMMIT holds of it, so a changed byte
anywhere in it is noticed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from dp_fedmed.crash_points import crash_point
from dp_fedmed.errors import CheckpointError
from dp_fedmed.privacy.ledger import Head
from dp_fedmed.privacy.streams.keys import TEMPORARY, sync_folder
from dp_fedmed.run.durable import sweep, sync_all

SCHEMA = 1
CHECKPOINT_FILE = "checkpoint.json"
MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
ABANDONED = "abandoned"
FOLDER = re.compile(r"round_(\d{4,})")

State = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What a run needs to be resumed after a round.

    Attributes:
        server_round: the last round that is part of it; 0 before the first.
        model: the global model.
        moments: the server optimizer's state, by `first/…` and `second/…`.
        details: everything else, as JSON: seed, clipping norm, best metric, privacy section.
        head: where the ledger stood when it was written.
    """

    server_round: int
    model: State
    head: Head
    moments: State = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)


def folder_name(server_round: int) -> str:
    """The folder of a round's checkpoint.

    >>> folder_name(7)
    'round_0007'
    """
    return f"round_{server_round:04d}"


class CheckpointStore:
    """The checkpoints of one run directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, checkpoint: Checkpoint) -> str:
        """Write a checkpoint whole or not at all; returns its hash, for the ledger."""
        files = {MODEL_FILE: to_bytes(checkpoint.model)}
        if checkpoint.moments:
            files[OPTIMIZER_FILE] = to_bytes(checkpoint.moments)
        described = {
            "schema": SCHEMA,
            "round": checkpoint.server_round,
            **checkpoint.details,
            "ledger_head": {"number": checkpoint.head.number, "mac": checkpoint.head.mac},
            "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
        }
        text = json.dumps(described, indent=2, allow_nan=False, ensure_ascii=False).encode()
        files[CHECKPOINT_FILE] = text
        target = self.path / folder_name(checkpoint.server_round)
        temporary = Path(tempfile.mkdtemp(dir=self.path, prefix=TEMPORARY))
        try:
            for name, content in files.items():
                (temporary / name).write_bytes(content)
                crash_point(f"checkpoint:{name}")
            temporary.chmod(0o755)
            sync_all([*(temporary / name for name in files), temporary])
            crash_point("checkpoint:synced")
            temporary.rename(target)
            crash_point("checkpoint:renamed")
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        sync_folder(self.path)
        return hashlib.sha256(text).hexdigest()

    def read(self, server_round: int, digest: str) -> Checkpoint:
        """A checkpoint, checked against the hash in the ledger.

        Raises:
            CheckpointError: if a file is missing, changed, of a newer schema, or holds NaN.
        """
        folder = self.path / folder_name(server_round)
        text = _read(folder / CHECKPOINT_FILE)
        described = _parsed(folder / CHECKPOINT_FILE, text)
        if hashlib.sha256(text).hexdigest() != digest:
            raise CheckpointError(
                f"{folder / CHECKPOINT_FILE} is not what the ledger says was written: it was "
                "changed or damaged; restore it, or resume from another round with resume=round:N"
            )
        tensors: dict[str, State] = {}
        for name, expected in described["files"].items():
            content = _read(folder / name)
            if hashlib.sha256(content).hexdigest() != expected:
                raise CheckpointError(
                    f"{folder / name} was changed or damaged; restore it, or resume from another "
                    "round with resume=round:N"
                )
            tensors[name] = from_bytes(folder / name, content)
        head = described["ledger_head"]
        return Checkpoint(
            server_round=server_round,
            model=tensors[MODEL_FILE],
            moments=tensors.get(OPTIMIZER_FILE, {}),
            details=described,
            head=Head(head["number"], head["mac"]),
        )

    def heads(self, trusted: int | None = None) -> dict[Path, Head]:
        """The ledger's head in every checkpoint that is there, by file.

        Args:
            trusted: checkpoints of later rounds may be damaged; they are left out then.

        Raises:
            CheckpointError: for a checkpoint that cannot be read.
        """
        heads = {}
        for server_round in self.rounds():
            file = self.path / folder_name(server_round) / CHECKPOINT_FILE
            try:
                head = _parsed(file, _read(file))["ledger_head"]
            except CheckpointError:
                if trusted is None or server_round <= trusted:
                    raise
                continue
            heads[file] = Head(head["number"], head["mac"])
        return heads

    def rounds(self) -> list[int]:
        """The rounds that have a checkpoint folder, in order."""
        found = (FOLDER.fullmatch(path.name) for path in self.path.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def point(self, name: str, server_round: int) -> None:
        """Make `last` or `best` a link to a round's folder."""
        target, temporary = self.path / name, self.path / f"{TEMPORARY}{os.urandom(8).hex()}"
        if target.is_dir() and not target.is_symlink():  # a copy that followed links
            target.rename(self.path / f"{TEMPORARY}{os.urandom(8).hex()}")
        os.symlink(folder_name(server_round), temporary)
        os.replace(temporary, target)

    def keep(self, rounds: Iterable[int]) -> None:
        """Delete every checkpoint but these."""
        wanted = set(rounds)
        for server_round in self.rounds():
            if server_round not in wanted:
                self.discard(server_round)

    def set_aside(self, server_round: int, number: int) -> None:
        """Move a checkpoint that is no longer on the run's path into `abandoned/`."""
        target = self.path / ABANDONED / str(number)
        target.mkdir(parents=True, exist_ok=True)
        (self.path / folder_name(server_round)).rename(target / folder_name(server_round))

    def discard(self, server_round: int) -> None:
        """Delete one checkpoint."""
        self._delete(folder_name(server_round))

    def digest(self, server_round: int) -> str:
        """The hash that a COMMIT of this checkpoint holds."""
        file = self.path / folder_name(server_round) / CHECKPOINT_FILE
        return hashlib.sha256(_read(file)).hexdigest()

    def _delete(self, name: str) -> None:
        # Renamed first, so that a crash leaves no folder that looks whole and is not.
        hidden = self.path / f"{TEMPORARY}{os.urandom(8).hex()}"
        (self.path / name).rename(hidden)
        sweep([hidden])


def to_bytes(tensors: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    """Named arrays as safetensors."""
    contiguous = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
    return save(contiguous, metadata={"format": "dp_fedmed"})


def from_bytes(file: Path, content: bytes) -> State:
    """The arrays of a safetensors file.

    Raises:
        CheckpointError: if it is not one, or holds NaN.
    """
    try:
        tensors = load(content)
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise CheckpointError(f"{file} is not a safetensors file: {error}") from None
    for name, value in tensors.items():
        if not np.isfinite(value).all():
            raise CheckpointError(f"{file}: tensor {name!r} holds NaN or infinity")
    return tensors


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(
            f"{file} is missing: restore it, or resume from another round with resume=round:N"
        ) from None
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from None


def _parsed(file: Path, text: bytes) -> dict[str, Any]:
    try:
        described = json.loads(text)
        schema = described["schema"]
        if isinstance(schema, int) and schema > SCHEMA:
            raise CheckpointError(
                f"{file} has schema {schema}, this version reads up to {SCHEMA}: update dp-fedmed"
            )
        head = described["ledger_head"]
        if schema != SCHEMA or not isinstance(described["files"], dict):
            raise ValueError
        if type(head["number"]) is not int or head["number"] < 0:
            raise ValueError
        if not re.fullmatch(r"[0-9a-f]{64}", head["mac"]):
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CheckpointError(f"{file} is not a checkpoint, or it is damaged") from None
    return dict(described)
