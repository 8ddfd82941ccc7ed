"""What a round begins with: nothing shared with another, and nobody who looks."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from dp_fedmed.federation import arrays
from dp_fedmed.federation.rounds import RoundObserver, RoundRecord, RoundSettings


def test_two_rounds_share_nothing() -> None:
    first, second = RoundRecord(1), RoundRecord(2)
    first.cohort.append("a")
    for held in (first.failed, first.server_metrics, first.client_metrics, first.epsilons):
        held["a"] = 1.0  # type: ignore[assignment, index]
    assert second == RoundRecord(2)


def test_settings_stay_as_they_are_for_all_rounds() -> None:
    settings = RoundSettings(num_rounds=3)
    with pytest.raises(FrozenInstanceError):
        settings.num_rounds = 4  # type: ignore[misc]
    with pytest.raises(TypeError):
        RoundSettings(3)  # type: ignore[misc]


def test_unless_told_the_server_evaluates_and_clients_do_not() -> None:
    settings = RoundSettings(num_rounds=3)
    assert (settings.evaluate_every, settings.client_evaluate_every) == (1, 0)
    assert settings.min_clients is None


def test_who_does_not_look_changes_nothing() -> None:
    model = arrays.to_record({"w": np.ones(2, np.float32)})
    record = RoundRecord(1, cohort=["a"])
    nobody = RoundObserver()
    assert nobody.evaluate(1, model) is None
    nobody.end_round(record)
    assert record == RoundRecord(1, cohort=["a"])
    assert arrays.from_record(model)["w"].tolist() == [1.0, 1.0]
