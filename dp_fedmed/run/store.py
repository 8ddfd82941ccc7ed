"""Everything of a run that outlasts its process: directory, lock, keys, ledger, checkpoints."""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from dp_fedmed.config import Config, PrivacyStyle
from dp_fedmed.crash_points import crash_point
from dp_fedmed.data import DataSet
from dp_fedmed.errors import ConfigError
from dp_fedmed.federation import PrivacyPlan
from dp_fedmed.privacy.ledger import Ledger
from dp_fedmed.privacy.streams import (
    LEDGER_KEY_FILE,
    NOISE_KEYS,
    SECRET_FOLDER,
    MacKey,
    NoiseKey,
    key_file,
)
from dp_fedmed.privacy.streams.keys import TEMPORARY
from dp_fedmed.run.attempts import forget_attempts
from dp_fedmed.run.checkpoint import Checkpoint, CheckpointStore
from dp_fedmed.run.data_ledger import DataLedger
from dp_fedmed.run.directory import CONFIG_FILE, PARTITION_FILE, RunDirectory
from dp_fedmed.run.durable import LOCK_FILE, RunLock, sweep, wait_for_sweeps
from dp_fedmed.run.journal import Journal
from dp_fedmed.run.spent import (
    CLOSE,
    CONFIG,
    LEDGER_FILE,
    OPEN,
    PHASE,
    RELEASES,
    REWIND,
    SCHEMA,
)

PUBLIC_RUN = "public"


@dataclass
class RunStore:
    """One run's durable state.

    Attributes:
        config: the run's settings, without what only says how to resume.
        run: the run's id; random, and the same for good.
        phase: of the rounds that come next.
        plan: of that phase; None if it has yet to be made.
        has_phase: whether that phase has begun.
        data: keyed digest of the data that it began with.
        past: the plans of earlier phases.
        start: the checkpoint to resume from; None for a run without one.
        committed: hash of each round's checkpoint, for the rounds that the run stands on.
        goes_back: whether later rounds are left aside.
        uncommitted: checkpoints that a crash came too early for; they are made again.
        settings_changed: whether settings differ from those in the ledger.
        key: secret randomness of the phase; None before it begins, and in style `none`.
    """

    config: Config
    directory: RunDirectory
    lock: RunLock
    mac_key: MacKey
    ledger: Ledger
    run: str
    key: NoiseKey | None = None
    phase: int = 0
    plan: PrivacyPlan | None = None
    has_phase: bool = False
    data: str | None = None
    past: dict[int, PrivacyPlan] = field(default_factory=dict)
    start: Checkpoint | None = None
    committed: dict[int, str] = field(default_factory=dict)
    goes_back: bool = False
    uncommitted: list[int] = field(default_factory=list)
    settings_changed: bool = False

    def __post_init__(self) -> None:
        self.checkpoints = CheckpointStore(self.directory.path)
        self._bests: dict[int, int | None] = {}
        self.data_ledger = self._open_data_ledger()
        self.journal = self._journal()

    @classmethod
    def create(cls, config: Config) -> RunStore:
        """Claim `run_dir` for a new run: its settings, its keys, the first line of its ledger."""
        directory = RunDirectory.create(config)
        lock = RunLock(directory.path)
        folder = directory.path / SECRET_FOLDER
        folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        folder.parent.chmod(0o700)
        mac_key = MacKey.create(folder / LEDGER_KEY_FILE)
        ledger = Ledger(directory.path / LEDGER_FILE, mac_key)
        run = secrets.token_hex(8)
        ledger.append(OPEN, {"schema": SCHEMA, "run": run, "config": config.to_yaml()})
        crash_point("opened")
        return cls(config, directory, lock, mac_key, ledger, run)

    @property
    def stream_name(self) -> str:
        """What separates this run's streams from another's; a public seed repeats them."""
        return PUBLIC_RUN if self.config.privacy.noise_seed is not None else self.run

    def data_digest(self, data: DataSet) -> str:
        """Keyed digest of the data, to notice that they have changed."""
        return data_digest(self.mac_key, data)

    def refuse_other_data(self, digest: str) -> None:
        """Resuming with other data would be another guarantee.

        Raises:
            ConfigError: if the records are not those that the run began with.
        """
        if self.data is not None and self.data != digest:
            self.lock.release()
            raise ConfigError(
                f"the records of data.name={self.config.data.name} have changed since the run "
                "began: restore them, or start a new run (a shared data_ledger adds up what both "
                "spend)"
            )

    def begin(self, plan: PrivacyPlan | None, data: str) -> None:
        """Write down what is about to happen, when nothing can be refused any more.

        Args:
            plan: of the phase, if one begins.
            data: keyed digest of the data.
        """
        now = self.start.server_round if self.start is not None else -1
        self._clean()
        self.ledger.sync()
        for server_round in self.uncommitted:
            self.checkpoints.discard(server_round)
        if self.goes_back:
            number = self.ledger.append(REWIND, {"round": now}).number
            crash_point("rewound")
            for server_round in self.checkpoints.rounds():
                if server_round > now:
                    self.checkpoints.set_aside(server_round, number)
        if not self.has_phase:
            self.begin_phase(plan, data)
        elif self.settings_changed:
            self.ledger.append(CONFIG, {"config": self.config.to_yaml()})
            crash_point("config:written")
            self.directory.write_config(self.config)
        self._destroy_keys(but=key_file(self.directory.path, self.phase))
        if self.start is not None:
            self._point(now, self._best_of(now))
        self.directory.forget_after(now)
        self.journal.share_all()

    def _clean(self) -> None:
        """Remove what a crash left half-written."""
        path = self.directory.path
        for folder in (path, path / "private", path / RELEASES, path / SECRET_FOLDER):
            sweep(folder.glob(f"{TEMPORARY}*"))

    def begin_phase(self, plan: PrivacyPlan | None, data: str) -> None:
        """Make a phase's key, then write down its plan and the settings it is for."""
        self.key = self._make_key()
        body = {
            "phase": self.phase,
            "config": self.config.to_yaml(),
            "plan": None if plan is None else plan.to_json(),
            "data": data,
            "key": None if self.key is None else self.key.fingerprint(),
        }
        self.ledger.append(PHASE, body)
        crash_point("phase:written")
        self.plan, self.has_phase = plan, True
        self.directory.write_config(self.config)

    def commit(self, checkpoint: Checkpoint, best: int | None) -> None:
        """Make a round's state durable, say so in the ledger, and let old ones go."""
        now = checkpoint.server_round
        digest = self.checkpoints.write(checkpoint)
        # With one checkpoint kept, the one before goes now: this one must be known for good.
        self.journal.commit(now, digest, durable=self.config.checkpoint.keep == 1)
        self.committed[now] = digest
        self._point(now, best)
        self._bests[now] = best
        there = self.committed.keys() & set(self.checkpoints.rounds())
        kept = sorted(there)[-self.config.checkpoint.keep :]
        bests = {b for b in (self._best_of(r) for r in kept) if b is not None}
        self.checkpoints.keep({*kept, *bests})
        oldest = min({*kept, *bests})
        self.journal.forget_releases(oldest)
        forget_attempts(self.directory.path / RELEASES, oldest)

    def _point(self, last: int, best: int | None) -> None:
        self.checkpoints.point("last", last)
        if best is not None:
            self.checkpoints.point("best", best)
        else:
            (self.directory.path / "best").unlink(missing_ok=True)

    def _best_of(self, server_round: int) -> int | None:
        """The round that was best when a checkpoint was written."""
        if server_round not in self._bests:
            digest = self.committed[server_round]
            best = self.checkpoints.read(server_round, digest).details.get("best")
            self._bests[server_round] = None if best is None else int(best["round"])
        return self._bests[server_round]

    def withdraw(self) -> None:
        """Give back a new run's directory in which nothing has begun."""
        if self.start is not None or self.has_phase or len(self.ledger.records) > 1:
            return
        described = ("run.log", PARTITION_FILE, "partition.png")
        for name in (CONFIG_FILE, "private", LOCK_FILE, *described):
            sweep([self.directory.path / name])
        wait_for_sweeps()
        with contextlib.suppress(OSError):
            self.directory.path.rmdir()

    def release(self) -> None:
        """Leave the run directory to others."""
        wait_for_sweeps()
        self.lock.release()

    def close(self, rounds: int, reason: str) -> None:
        """End a run for good: nobody can draw its noise again."""
        if self.ledger.records[-1].kind != CLOSE:
            self.ledger.append(CLOSE, {"phase": self.phase, "rounds": rounds, "reason": reason})
        crash_point("closed")
        if self.key is not None:
            self.key.destroy()
        self._destroy_keys()
        # What simulated clients masked their last answers with; a site keeps its own.
        sweep((self.directory.path / "private" / "clients").glob("*.masking"))

    def _make_key(self) -> NoiseKey | None:
        """The phase's key: new, or the public one of `privacy.noise_seed`."""
        if self.config.privacy.style is PrivacyStyle.none:
            return None
        if self.config.privacy.noise_seed is not None:
            return NoiseKey.from_public_seed(self.config.privacy.noise_seed)
        file = key_file(self.directory.path, self.phase)
        if file.exists():  # of an attempt that ended before the phase began
            destroy_key(file)
        return NoiseKey.create(file)

    def _destroy_keys(self, but: Path | None = None) -> None:
        for file in (self.directory.path / SECRET_FOLDER).glob(NOISE_KEYS):
            if file != but:
                destroy_key(file)

    def _journal(self) -> Journal:
        return Journal(
            self.ledger,
            self.mac_key,
            self.directory.path / RELEASES,
            phase=self.phase,
            data_ledger=self.data_ledger,
        )

    def _open_data_ledger(self) -> DataLedger | None:
        if self.config.data_ledger is None or self.config.privacy.style is PrivacyStyle.none:
            return None
        path, data_id = Path(self.config.data_ledger), str(self.config.data.id)
        return DataLedger(path, data_id=data_id, run=self.run)


def data_digest(key: MacKey, data: DataSet) -> str:
    """Keyed digest of all three parts of a data set."""
    parts = (data.train, data.val, data.test)
    arrays = (a for part in parts for a in (part.x, part.y, part.site, part.patient))
    return key.digest(array for array in arrays if array is not None).hex()


def destroy_key(file: Path) -> None:
    """Overwrite and remove a key file, whatever it holds."""
    NoiseKey.generate().destroy(file)
