"""What a plan and a run warn of."""

from __future__ import annotations

from dp_fedmed.config import compose
from dp_fedmed.reporting.plan_words import warnings_of_run


def test_a_run_warns_of_what_a_plan_warns_of() -> None:
    words = ["privacy=user", "recipe=none", "federation.num_clients=2"]
    assert "the cohort is too small for the noise" in " ".join(
        warnings_of_run(compose(words), {}, 1000)
    )
    assert warnings_of_run(compose(["privacy=sample"]), dict.fromkeys("abcde", 90), 60) == []
    hybrid = compose(["privacy=hybrid", "recipe=none", "federation.max_participations=2"])
    said = " ".join(warnings_of_run(hybrid, {f"c{n}": 90 for n in range(5)}, 1))
    assert "federation.max_participations=2 is used up" in said
