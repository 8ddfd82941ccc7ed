"""A fifth of all work fails and workers are killed at random: the run ends, right and clean."""

from __future__ import annotations

import pytest

from bench.faults import faulty_run


@pytest.mark.parametrize(
    ("style", "clients", "rate"),
    [
        ("sample", 20, 1.0),
        pytest.param("user", 100, 0.5, marks=pytest.mark.slow),
    ],
)
def test_a_run_full_of_faults_ends_with_the_right_epsilon_and_leaves_nothing(
    style: str, clients: int, rate: float
) -> None:
    run = faulty_run(style, clients=clients, rounds=8, rate=rate)
    assert (run.stopped, run.rounds) == ("completed", 8)
    assert 0 < run.failed < run.asked
    assert run.epsilon == run.expected, "failures give nothing back"
    assert run.problems == 0
    assert run.leaked.children == 0
    assert run.leaked.shared == 0
    assert run.leaked.descriptors <= 0, "pipes of every worker that was replaced"
