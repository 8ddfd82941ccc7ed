"""Attempts at secure aggregation that outlast the server's process.

The guarantee kept here: what unmasks a round's sum is asked for once. A server that is killed after
it asked asks for the very same again, and never unmasks two sums of the same answers.
"""

from __future__ import annotations

import hmac
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from dp_fedmed.config import Config
from dp_fedmed.config.arithmetic import computed_from
from dp_fedmed.errors import LedgerError, MaskingRefused
from dp_fedmed.federation.arrays import State
from dp_fedmed.federation.masked_rounds import KeptAttempt
from dp_fedmed.federation.secure_aggregation import ServerState, Terms
from dp_fedmed.privacy.files import write_file
from dp_fedmed.privacy.streams import MacKey, round_digest
from dp_fedmed.privacy.streams.keys import array_digest, length_prefixed
from dp_fedmed.run.durable import sweep

SUM = "sum"


class RunAttempts:
    """Files of a run's attempts, sealed, one per round that a kept checkpoint can come to again.

    Args:
        folder: beside the releases.
        key: seals the files.
        config: what a round computes with.
        phase: of the rounds that come.
        keeps_sums: whether the unmasked sum is kept too: nothing else does in style `none`.
    """

    def __init__(
        self, folder: Path, key: MacKey, config: Config, *, phase: int, keeps_sums: bool
    ) -> None:
        self.folder, self._key, self._config, self._phase = folder, key, config, phase
        self._keeps_sums = keeps_sums
        self._about: dict[str, Any] = {}

    def begin(self, server_round: int, model: State) -> KeptAttempt | None:
        """Keep what follows for this round with this model; what is left of it, if anything.

        Raises:
            LedgerError: if what is left was changed or damaged.
        """
        digest = round_digest(list(model.values()), computed_from(self._config), {})
        self._about = {"phase": self._phase, "round": server_round, "digest": digest.hex()}
        file = self._file()
        if not file.exists():
            return None
        about, vector = self._load(file)
        if any(about[key] != value for key, value in self._about.items()):
            return None  # an earlier try at the round with other settings, or another model
        self._about = about
        terms, kept = Terms.from_json(about["terms"]), vector.view(np.int64)
        if about["unmasked"]:
            return KeptAttempt(terms=terms, kept=kept, facts=about["facts"])
        state = ServerState.from_json(about["state"])
        return KeptAttempt(terms=terms, kept=(state, vector), facts=about["facts"])

    def save(
        self, terms: Terms, state: ServerState, masked: NDArray[np.uint64], facts: dict[str, Any]
    ) -> None:
        """Make a masked sum, and what unmasks it, durable."""
        self._about |= {"terms": terms.to_json(), "state": state.to_json(), "facts": facts}
        self._write({**self._about, "unmasked": False}, masked)

    def finish(self, total: NDArray[np.int64]) -> None:
        """Keep the sum, where no release does."""
        if self._keeps_sums:
            self._write({**self._about, "unmasked": True}, total.view(np.uint64))

    def _file(self) -> Path:
        return self.folder / f"masked_{self._phase:04d}_{self._about['round']:06d}.safetensors"

    def _write(self, about: dict[str, Any], vector: NDArray[np.uint64]) -> None:
        self._about = about
        text = json.dumps(about, sort_keys=True)
        metadata = {"about": text, "seal": self._seal(text, vector)}
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        content = save({SUM: np.ascontiguousarray(vector)}, metadata=metadata)
        write_file(self._file(), content, mode=0o600)

    def _load(self, file: Path) -> tuple[dict[str, Any], NDArray[np.uint64]]:
        content = file.read_bytes()
        try:
            size = int.from_bytes(content[:8], "little")
            metadata = json.loads(content[8 : 8 + size])["__metadata__"]
            vector, text = load(content)[SUM], str(metadata["about"])
            if not hmac.compare_digest(str(metadata["seal"]), self._seal(text, vector)):
                raise ValueError
            return dict(json.loads(text)), vector
        except (SafetensorError, MaskingRefused, ValueError, KeyError, TypeError):
            raise LedgerError(f"{file} was changed or damaged: restore it") from None

    def _seal(self, about: str, vector: NDArray[np.uint64]) -> str:
        fields = [b"dp_fedmed masked sum v1", about.encode(), array_digest([vector])]
        return self._key.mac(length_prefixed(fields)).hex()


def forget_attempts(folder: Path, oldest: int) -> None:
    """Delete the attempts of rounds that no kept checkpoint can come to again."""
    files = ((f, f.stem.rpartition("_")[2]) for f in folder.glob("masked_*.safetensors"))
    sweep(file for file, number in files if number.isdecimal() and int(number) <= oldest)
