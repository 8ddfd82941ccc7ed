"""A site's own ledger: what it allows, over all runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from dp_fedmed.errors import BudgetRefused
from dp_fedmed.privacy import (
    History,
    PrivacyEvent,
    chained_epsilon,
    mixed_epsilon,
)
from dp_fedmed.privacy.mechanisms.noisy_rows import NoisyRows
from dp_fedmed.privacy.mechanisms.statistic import StatisticMean
from dp_fedmed.privacy.streams.keys import MacKey
from dp_fedmed.site.ledger import Asked, Budget, ClientLedger


def test_a_site_is_not_kept_from_a_run_that_it_has_paid_for(tmp_path: Path) -> None:
    event = NoisyRows(noise_multiplier=1.0)
    asked = Asked(run="a", phase=0, server_round=1, ledger=1, digest="", data="")
    ledger = ClientLedger(tmp_path, "north", MacKey.create(tmp_path / "key"), durable=False)
    ledger.charge(asked, event, Budget(None, 1e-5, "rdp"))
    spent = Budget(None, 1e-5, "rdp", all_runs_epsilon=0.1)
    ledger.refuse_new_run("a", event, spent)
    with pytest.raises(BudgetRefused):
        ledger.refuse_new_run("b", event, spent)


def test_a_clients_own_ledger_brings_neighbours_to_one_relation(tmp_path: Path) -> None:
    ledger = ClientLedger(tmp_path, "a", MacKey.generate(), durable=False)
    number = iter(range(1, 100))

    def asks(budget: float, **plan: object) -> None:
        n = next(number)
        asked = Asked(run=f"r{n}", phase=0, server_round=1, ledger=n, digest="00", data="d")
        made = StatisticMean(noise_multiplier=4.0, records=9, **plan)  # type: ignore[arg-type]
        allows = Budget(None, 1e-5, "tight", all_runs_epsilon=budget, all_runs_delta=1e-5)
        ledger.charge(asked, made, allows)

    removed = PrivacyEvent.poisson(unit="record", noise_multiplier=4.0, sample_rate=0.5)
    replaced = PrivacyEvent.full(unit="record", noise_multiplier=4.0, adjacency="replace_one")
    as_removed = PrivacyEvent.full(unit="record", noise_multiplier=2.0)
    naive = History([removed, as_removed]).epsilon(delta=1e-5, method="tight")
    sound = mixed_epsilon(History([removed]), History([replaced]), delta=1e-5, method="tight")
    assert naive < sound
    asks(100.0, sample_rate=0.5, adjacency="zero_out")
    with pytest.raises(BudgetRefused):
        asks(0.999 * sound, sample_rate=1.0, adjacency="replace_one")
    asks(1.001 * sound, sample_rate=1.0, adjacency="replace_one")
    assert chained_epsilon(History([removed]), size=2, delta=5e-6) < sound
