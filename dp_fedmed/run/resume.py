"""Resume a run: find its last good state, and refuse, in one sentence, what cannot be trusted.

Nothing here spends or releases anything. Whatever is in doubt stops the run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from dp_fedmed.config import Config, PrivacyStyle, from_yaml
from dp_fedmed.config.arithmetic import (
    changed,
    describe_changes,
    refuse_other_run,
    rests_on,
)
from dp_fedmed.errors import ConfigError, LedgerError, RunFinished
from dp_fedmed.privacy.files import write_file
from dp_fedmed.privacy.ledger import Ledger
from dp_fedmed.privacy.streams.keys import (
    NOISE_KEYS,
    SECRET_FOLDER,
    key_file,
)
from dp_fedmed.privacy.streams.noise import NoiseKey
from dp_fedmed.run.checkpoint import CheckpointStore
from dp_fedmed.run.directory import CONFIG_FILE, RunDirectory
from dp_fedmed.run.durable import RunLock
from dp_fedmed.run.spent import (
    RELEASES,
    history_of,
    open_ledger,
)
from dp_fedmed.run.store import RunStore, destroy_key

logger = logging.getLogger(__name__)

NEW_PHASE = "continue as a new phase with new_phase=true"


def resume_run(config: Config) -> RunStore:
    """Open the run directory of a configuration to resume it.

    Args:
        config: the settings to resume with; `resume` says from where.

    Raises:
        RunFinished: if all rounds are done and no more are asked for.
        ConfigError: if a setting changed that the guarantee rests on.
        LedgerError: if the ledger or a key cannot be trusted.
        CheckpointError: if the checkpoint cannot.
        RunLocked: if another process works on the directory.
    """
    path = Path(config.run_dir)
    if not path.is_dir():
        raise ConfigError(f"run_dir={path} holds no run to resume")
    lock = RunLock(path)
    try:
        return _Resumption(config, path, lock).store()
    except BaseException:
        lock.release()
        raise


class _Resumption:
    """One attempt to resume a run, step by step."""

    def __init__(self, config: Config, path: Path, lock: RunLock) -> None:
        self.selector = config.resume or "last"
        self.new_phase = config.new_phase
        self.config = replace(config, resume=None, new_phase=False)
        self.path, self.lock = path, lock

    def store(self) -> RunStore:
        """Check everything, then open the run; nothing of it is changed before it is resumed."""
        self.ledger, self.mac_key = open_ledger(self.path)
        self.history = history_of(self.ledger)
        if self.ledger.torn:
            logger.warning(
                "%s: a last line of %d bytes was never written to its end and is dropped",
                self.ledger.path,
                self.ledger.torn,
            )
        self._check_settings_file()
        before = from_yaml(self.history.configs[-1], self.path)
        differences = changed(before, self.config)
        refuse_other_run(differences)
        self._check_heads()
        self.wanted = self._wanted()
        begins_phase = self._needs_phase(before, differences)
        checkpoint = None
        if self.wanted >= 0:
            digest = self.history.committed[self.wanted]
            checkpoint = CheckpointStore(self.path).read(self.wanted, digest)
        store = RunStore(
            self.config,
            RunDirectory(self.path),
            self.lock,
            self.mac_key,
            self.ledger,
            self.history.run,
            None if begins_phase else self._noise_key(),
            phase=max(0, self.history.phase + begins_phase),
            start=checkpoint,
            committed={r: d for r, d in self.history.committed.items() if r <= self.wanted},
            goes_back=self.wanted < self.history.round,
            uncommitted=self.uncommitted,
        )
        if store.data_ledger is not None:
            store.data_ledger.check(self.ledger)
        store.journal.check_files()
        store.past = {n: plan for n, plan in self.history.plans.items() if plan is not None}
        store.data = self.history.data
        if not begins_phase:
            store.plan = self.history.plans.get(self.history.phase)
            store.has_phase = self.history.phase >= 0
        if differences and not begins_phase:
            logger.info("continues with changed settings: %s", describe_changes(differences))
        if store.goes_back:
            logger.warning(
                "goes back from round %d to round %d: what the rounds after it have spent stays "
                "spent, and a round that is done differently is charged again",
                self.history.round,
                self.wanted,
            )
        store.settings_changed = self.config.to_yaml() != self.history.configs[-1]
        return store

    def _check_settings_file(self) -> None:
        """`config.yaml` must be what the ledger says; an older one was left by a crash."""
        file = self.path / CONFIG_FILE
        if not file.exists():
            raise LedgerError(f"{file} is missing: restore it")
        text = file.read_text(encoding="utf-8", errors="replace")
        if text not in self.history.configs:
            raise LedgerError(
                f"{file} was edited: restore it, and give changes on the command line instead"
            )
        if text != self.history.configs[-1]:
            write_file(file, self.history.configs[-1].encode())

    def _check_heads(self) -> None:
        """No checkpoint may know more of the ledger than there is."""
        checkpoints = CheckpointStore(self.path)
        for file, head in checkpoints.heads(self._trusted()).items():
            if not self.ledger.holds(head):
                raise LedgerError(
                    f"{self.ledger.path} is shorter than {file} says it was, or another run's: "
                    "restore it"
                )
        self.uncommitted = self._uncommitted(checkpoints)
        for file in client_ledgers(self.path):
            Ledger(file, self.mac_key.derive("client", file.stem))

    def _trusted(self) -> int | None:
        """Damage to checkpoints after the one that is asked for does not matter."""
        named = self.selector.removeprefix("round:")
        return int(named) if named.isdecimal() else None

    def _uncommitted(self, checkpoints: CheckpointStore) -> list[int]:
        """The checkpoint of the round that a crash hit, if any: it is made again, the same.

        A crash leaves one at most, after the last that is committed, and its release is still
        there. Anything else would mean that COMMITs are missing from the ledger.
        """
        left = []
        for server_round in checkpoints.rounds():
            if server_round in self.history.committed:
                continue
            number = self.history.abandoned.get((server_round, checkpoints.digest(server_round)))
            if number is None:
                left.append(server_round)
            else:  # a crash kept it from being set aside
                checkpoints.set_aside(server_round, number)
        plausible = len(left) <= 1 and all(r > self.history.round for r in left)
        if left and left[-1] > 0 and self.config.privacy.style.protects_clients:
            plausible &= any((self.path / RELEASES).glob("charge_*.safetensors"))
        if not plausible:
            raise LedgerError(
                f"{self.ledger.path} has no COMMIT of round {left[-1]}, though its checkpoint is "
                "there: restore the ledger"
            )
        return left

    def _needs_phase(self, before: Config, differences: dict[str, tuple[Any, Any]]) -> bool:
        """Whether a new phase begins; refuse changes that need one which nobody declared."""
        history, rounds = self.history, self.config.federation.num_rounds
        essential = rests_on(differences)
        if essential and not self.new_phase and history.phase >= 0:
            raise ConfigError(
                f"the run's guarantee rests on {describe_changes(essential)}: leave it as it was, "
                f"or {NEW_PHASE}, whose cost is added to what is spent"
            )
        more = rounds != before.federation.num_rounds
        if history.closed is not None:
            if not (self.new_phase or more):
                self._finish_closing(history.closed)
            if rounds <= self.wanted:
                raise RunFinished(self._finished(history.closed))
        if rounds < self.wanted or (self.new_phase and rounds <= self.wanted):
            raise ConfigError(
                f"federation.num_rounds={rounds} leaves nothing to do after round {self.wanted}: "
                f"give more, for example federation.num_rounds={self.wanted + 10}"
            )
        if before.privacy.style is PrivacyStyle.none:
            return self.new_phase or history.phase < 0
        if rounds == self.wanted and history.closed is None and history.phase >= 0:
            return False  # it ends here
        return self.new_phase or more or history.closed is not None or history.phase < 0

    def _finish_closing(self, reason: str) -> None:
        for file in (self.path / SECRET_FOLDER).glob(NOISE_KEYS):
            destroy_key(file)  # the crash came between the last record and this
        raise RunFinished(self._finished(reason))

    def _finished(self, reason: str) -> str:
        rounds, planned = self.history.round, self.config.federation.num_rounds
        more = max(rounds, planned) + 10
        return (
            f"run_dir={self.path} is finished: {rounds} rounds, {reason}. To add rounds, at their "
            f"own cost: dp-fedmed resume {self.path} federation.num_rounds={more} (with a larger "
            "target_epsilon and new_phase=true where the budget is spent)"
        )

    def _noise_key(self) -> NoiseKey | None:
        """The key of the phase that continues."""
        privacy, file = self.config.privacy, key_file(self.path, self.history.phase)
        if privacy.style is PrivacyStyle.none:
            return None
        if privacy.noise_seed is not None:
            return NoiseKey.from_public_seed(privacy.noise_seed)
        try:
            key = NoiseKey.load(file)
            if key.fingerprint() != self.history.key:
                raise ValueError(f"{file} is not the noise key that the phase began with")
            return key
        except FileNotFoundError:
            raise LedgerError(
                f"{file} is missing, so no round can be repeated exactly: restore it, or "
                f"{NEW_PHASE}"
            ) from None
        except (ValueError, OSError) as error:
            raise LedgerError(f"{error}; {NEW_PHASE}") from None

    def _wanted(self) -> int:
        """The round to resume after; -1 for a run that has none yet."""
        committed = self.history.committed
        if not committed:
            if self.selector != "last":
                raise ConfigError(f"resume={self.selector}: the run has no checkpoint yet")
            return -1
        store, last = CheckpointStore(self.path), self.history.round
        if self.selector == "last":
            return last
        if self.selector == "best":
            if self.config.privacy.style is not PrivacyStyle.none:
                raise ConfigError(
                    f"resume=best: privacy.style={self.config.privacy.style} keeps no best model, "
                    "since choosing one is a release; use resume=last"
                )
            best = store.read(last, committed[last]).details.get("best")
            if best is None:
                raise ConfigError("resume=best: no model was validated; use resume=last")
            return int(best["round"])
        wanted = int(self.selector.removeprefix("round:"))
        kept = [r for r in store.rounds() if r in committed]
        if wanted not in kept:
            there = ", ".join(str(r) for r in kept)
            raise ConfigError(f"resume=round:{wanted}: there are checkpoints of rounds {there}")
        return wanted


def client_ledgers(run_dir: Path) -> Iterator[Path]:
    """The ledgers of simulated clients."""
    yield from sorted((run_dir / "private" / "clients").glob("*.jsonl"))
