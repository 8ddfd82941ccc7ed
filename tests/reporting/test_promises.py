"""The rows of a card say what was assumed, in whichever phase, and who left."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dp_fedmed.reporting import promises


def test_a_card_tells_what_was_assumed_and_who_left() -> None:
    held = {
        "epsilon": 2.0,
        "delta": 1e-5,
        "epsilon_of_one_round": 0.501,
        "accountant": "tight",
        "adjacency": "zero_out",
        "clients": {"a": {"sample_rate": 1.0}},
    }
    held["clients"]["b"] = {"sample_rate": 1.0, "left": True}  # type: ignore[index]
    facts: Any = SimpleNamespace(guarantees={"record": held}, is_private=True)
    rows = dict(promises.parameter_rows(facts, "record"))
    assert rows["ε of one round alone"] == "0.501"
    assert rows["accountant"] == "tight (closed form of the Gaussian)"
    assert rows["clients"].startswith("2, of which 1 took part earlier and left")
    assert rows["neighbouring data"] == "one contributes nothing"


def test_a_card_of_two_phases_tells_the_noise_and_steps_of_each() -> None:
    phases = [[5.2, 1.0, 20], [6.219, 1.0, 20]]
    own = {"noise_multiplier": 5.2, "sample_rate": 1.0, "steps": 40, "history": phases}
    held = {"epsilon": 4.0, "delta": 1e-5, "sampling": "Poisson batches", "worst_client": "a"}
    units = {"record": held | {"clients": {"a": own}}, "client": held | own}
    facts: Any = SimpleNamespace(guarantees=units, is_private=True)
    for unit in units:
        rows = dict(promises.parameter_rows(facts, unit))
        spent = next(value for name, value in rows.items() if name.startswith("spent"))
        assert spent == "20 steps with σ = 5.2 and q = 1; 20 steps with σ = 6.219 and q = 1"
        assert "noise multiplier σ" not in rows
        assert "steps" not in rows
