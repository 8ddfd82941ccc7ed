"""What of a round may be shown, and how a budget is told."""

from __future__ import annotations

from dp_fedmed.config import compose
from dp_fedmed.federation.rounds import RoundRecord
from dp_fedmed.run.results import describe_budget, public_record


def test_a_private_round_shows_nobody() -> None:
    record = RoundRecord(
        server_round=3,
        cohort=["north"],
        failed={"south": "no reply in time"},
        train_loss=0.5,
        server_metrics={"accuracy": 0.9},
        client_metrics={"north": {"accuracy": 0.8}},
        seconds=1.5,
        epsilons={"sample": 9.0},
    )
    shown = public_record(record, {"sample": 2.0})
    assert (shown.server_round, shown.seconds) == (3, 1.5)
    assert (shown.server_metrics, shown.epsilons) == ({"accuracy": 0.9}, {"sample": 2.0})
    assert (shown.cohort, shown.failed, shown.client_metrics) == ([], {}, {})
    assert shown.train_loss is None
    assert "north" not in repr(shown)
    assert "south" not in repr(shown)


def test_a_budget_is_told_with_its_targets_and_rounds() -> None:
    config = compose(["privacy=hybrid", "privacy.sample.noise_multiplier=1.0"])
    said = describe_budget(config, {"sample": 1.23456, "user": 2.0}, 4)
    assert said == "ε_sample 1.235, ε_user 2.000 of 8, 4 rounds left in the budget"
    assert describe_budget(config, {"user": 2.0}, None) == "ε_user 2.000 of 8"
