"""A ledger for a Flower app of one's own: what its rounds cost is on disk before they are sent."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from dp_fedmed.errors import ConfigError, LedgerError
from dp_fedmed.federation import Limits, PrivacyGuard, PrivacyPlan
from dp_fedmed.federation.arrays import State
from dp_fedmed.privacy.accounting.events import Level, PrivacyEvent
from dp_fedmed.privacy.accounting.history import Method
from dp_fedmed.privacy.ledger import Ledger
from dp_fedmed.privacy.mechanisms.base import ServerMechanism
from dp_fedmed.privacy.streams import (
    LEDGER_KEY_FILE,
    SECRET_FOLDER,
    MacKey,
    NoiseKey,
    RoundStreams,
    key_file,
    round_digest,
)
from dp_fedmed.run.durable import RunLock
from dp_fedmed.run.journal import Journal
from dp_fedmed.run.spent import LEDGER_FILE, OPEN, RELEASES

KIND = "library"


class RunLedger:
    """Keys, charges and releases of one run in a folder; opened again, it continues there.

    A process that died and starts over from the same first model pays for no round twice: rounds
    that were charged are found, and those that were released are taken from disk.

    Args:
        folder: the run's own; `private/` in it is for its owner only.
        mechanism: what protects a client; it states the cost of a round.
        rounds: of the whole run.
        delta: δ of the guarantee.
        target_epsilon: a round that would take ε above it is not sent.
        accountant: `tight`, `rdp` or `pld`.

    Raises:
        ConfigError: if not even one round fits the target, or the folder is another run's.
        RunLocked: if another process works on the folder.

    Example:
        >>> import tempfile
        >>> from dp_fedmed.privacy import PrivacyEvent
        >>> from dp_fedmed.privacy.mechanisms import ClientUpdates
        >>> event = PrivacyEvent.poisson(unit="client", noise_multiplier=1.0, sample_rate=0.1)
        >>> mechanism = ClientUpdates(event, max_norm=1.0, expected_cohort=10.0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with RunLedger(folder, mechanism, rounds=10, delta=1e-5) as ledger:
        ...         ledger.epsilon
        0.0
    """

    def __init__(
        self,
        folder: str | Path,
        mechanism: ServerMechanism,
        *,
        rounds: int,
        delta: float,
        target_epsilon: float | None = None,
        accountant: Method = "tight",
    ) -> None:
        self.folder, self.mechanism, self.delta = Path(folder), mechanism, delta
        keys = self.folder / SECRET_FOLDER
        keys.mkdir(parents=True, mode=0o700, exist_ok=True)
        keys.parent.chmod(0o700)
        self._lock = RunLock(self.folder)
        try:
            ledger, mac_key = self._open(keys)
            self.run = str(ledger.records[0].body["run"])
            self._key = self._own_key()
            self._journal = Journal(ledger, mac_key, self.folder / RELEASES, phase=0)
            self._journal.check_files()
            event = one_event(mechanism)
            plan = PrivacyPlan(delta_sample=None, delta_user=delta, clients={}, user_event=event)
            limits = Limits(rounds=rounds, method=accountant, user_epsilon=target_epsilon)
            self.guard = PrivacyGuard(limits, plan, self._journal)
            if not self._journal.charges:
                self.guard.require_one_round()
        except BaseException:
            self._lock.release()
            raise

    def _open(self, keys: Path) -> tuple[Ledger, MacKey]:
        path, file = self.folder / LEDGER_FILE, keys / LEDGER_KEY_FILE
        if not file.exists():
            if path.exists():
                raise LedgerError(f"{file} is missing, so {path} cannot be checked: restore it")
            ledger = Ledger(path, mac_key := MacKey.create(file))
            ledger.append(OPEN, {"schema": 1, "kind": KIND, "run": secrets.token_hex(8)})
            return ledger, mac_key
        ledger = Ledger(path, mac_key := MacKey.load(file))
        if not ledger.records or ledger.records[0].body.get("kind") != KIND:
            raise ConfigError(f"{self.folder} is no RunLedger's folder: give one of its own")
        return ledger, mac_key

    def _own_key(self) -> NoiseKey:
        file = key_file(self.folder, 0)
        return NoiseKey.load(file) if file.exists() else NoiseKey.create(file)

    def streams(self, server_round: int, model: State) -> RoundStreams:
        """The server's secret streams of a round."""
        digest = round_digest(list(model.values()), {}, self.mechanism.order())
        return RoundStreams(self._key, self.run, server_round, digest)

    @property
    def epsilon(self) -> float:
        """ε of one client after all rounds that were charged."""
        return self.guard.epsilons()[Level.user]

    def report(self) -> Mapping[str, Any]:
        """What is promised to one client, with what it rests on."""
        event = one_event(self.mechanism)
        return {
            "unit": "client",
            "epsilon": self.epsilon,
            "delta": self.delta,
            "adjacency": event.adjacency,
            "sampling": event.sampling,
            "accountant": self.guard.accountant.method,
            "rounds": len({charge.server_round for charge in self._journal.charges}),
            "history": self.guard.accountant.get_history("client"),
        }

    def close(self) -> None:
        """Leave the folder to others."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def one_event(mechanism: ServerMechanism) -> PrivacyEvent:
    """What one round costs.

    Raises:
        ConfigError: for a mechanism whose rounds cannot be charged one by one.
    """
    events = mechanism.cost(1)
    if len(events) != 1:
        raise ConfigError(
            f"{type(mechanism).__name__} costs {len(events)} events per round: a RunLedger charges "
            "one per round; give a mechanism whose cost(1) is one event"
        )
    return events[0]
