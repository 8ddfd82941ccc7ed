"""The clients' own accounts: ledgers, budgets, and which data they are for.

A site keeps a ledger for its records and, where it noises its whole answers, one for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from dp_fedmed.config import Config
from dp_fedmed.data import Records
from dp_fedmed.errors import BudgetRefused, SiteRefused
from dp_fedmed.federation import client_name
from dp_fedmed.planning.plan import default_delta
from dp_fedmed.privacy.mechanisms import Mechanism, OwnAnswer, RecordMechanism
from dp_fedmed.site.keys import client_folder, client_ledger_key
from dp_fedmed.site.ledger import Budget, ClientLedger
from dp_fedmed.site.rules import SiteRules

#: Beside a client's name, what the ledger of its whole answers is called.
UPDATES = ".updates"


class Account(NamedTuple):
    """What a round is charged to."""

    ledger: ClientLedger
    mechanism: Mechanism
    budget: Budget


class ClientAccounts:
    """The accounts of every client that this process acts as."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._ledgers: dict[str, ClientLedger] = {}
        self._digests: dict[str, str] = {}

    def of(
        self,
        mechanism: RecordMechanism | None,
        own: OwnAnswer | None,
        node: Mapping[str, Any],
        name: str,
        records: int,
    ) -> list[Account]:
        """What a round of a client is charged to: its records, and itself as a whole."""
        found = []
        if mechanism is not None:
            budget = self.budget(records, node)
            found.append(Account(self.ledger(node, name), mechanism, budget))
        if own is not None and own.updates is not None:
            settings = self.config.privacy.user
            delta = settings.target_delta or default_delta(1)
            method = self.config.privacy.accountant.value
            budget = Budget(settings.target_epsilon, delta, method)
            found.append(Account(self.ledger(node, name + UPDATES), own.updates, budget))
        return found

    def refuse_unaffordable(
        self, run: str, mechanism: RecordMechanism, records: int, node: Mapping[str, Any]
    ) -> None:
        """Refuse a run of which a site could not afford one round.

        Raises:
            SiteRefused: without numbers for the server.
        """
        ledger = self.ledger(node, client_name(node))
        try:
            ledger.refuse_new_run(run, mechanism, self.budget(records, node))
        except BudgetRefused as error:
            raise SiteRefused(str(error), "its own budget leaves no round") from None

    def ledger(self, node: Mapping[str, Any], name: str) -> ClientLedger:
        """This client's own ledger, opened once per process."""
        if name not in self._ledgers:
            self._ledgers[name] = ClientLedger(
                client_folder(self.config, node),
                name,
                client_ledger_key(self.config, node, name),
                durable="state-dir" in node,
            )
        return self._ledgers[name]

    def budget(self, records: int, node: Mapping[str, Any]) -> Budget:
        """What a client is willing to spend of its records' privacy."""
        settings, rules = self.config.privacy.sample, SiteRules.of(node)
        # The server's default δ is for all records, so smaller than this, and its ε larger.
        default = default_delta(records)
        return Budget(
            settings.target_epsilon,
            settings.target_delta or default,
            self.config.privacy.accountant.value,
            all_runs_epsilon=rules.max_epsilon,
            all_runs_delta=rules.delta or default,
        )

    def data_digest(self, records: Records, node: Mapping[str, Any], name: str) -> str:
        """Keyed digest of this client's records, computed once per process."""
        if name not in self._digests:
            key = client_ledger_key(self.config, node, name)
            self._digests[name] = key.digest([records.x, records.y]).hex()
        return self._digests[name]
