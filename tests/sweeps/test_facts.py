"""What rows say together: means over seeds, and costs of like against like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dp_fedmed.sweeps.facts import facts_of
from dp_fedmed.sweeps.summary import costs
from tests.sweeps.rows import PRIVATE, row


def test_means_are_over_seeds_only(tmp_path: Path) -> None:
    rows = [
        row(job, {"training.lr": lr, "seed": seed}, value)
        for job, (lr, seed, value) in enumerate(
            [(0.1, 0, 0.7), (0.1, 1, 0.9), (1, 0, 0.6), (1, 1, 0.6)]
        )
    ]
    rows.append(row(4, {"training.lr": 1, "seed": 2}, 0.0, status="failed", test={}, val={}))
    first, second = facts_of(tmp_path, rows).settings("digits")
    assert (first.first.overrides["training.lr"], first.test.count) == ("0.1", 2)
    assert (first.test.mean, first.test.sd) == (pytest.approx(0.8), pytest.approx(0.1414, abs=1e-4))
    assert (second.test.mean, second.test.sd) == (pytest.approx(0.6), pytest.approx(0.0))


def test_costs_compare_the_same_seeds_and_nothing_else_that_was_swept(tmp_path: Path) -> None:
    values = {
        ("centralized", "none"): [0.90, 0.92],
        ("federated", "none"): [0.88, 0.92],
        ("local_only", "none"): [0.70],
        ("federated", "sample"): [0.80, 0.82],
    }
    rows = [
        row(
            10 * place + seed,
            {"federation.topology": topology, "privacy": style, "seed": seed},
            value,
            topology=topology,
            **(PRIVATE if style == "sample" else {}),
        )
        for place, ((topology, style), held) in enumerate(values.items())
        for seed, value in enumerate(held)
    ]

    def found() -> dict[str, Any]:
        return {c.what: c.lost for c in costs(facts_of(tmp_path, rows).settings("digits"))}

    assert found()["federation instead of one pool of data"].mean == pytest.approx(0.01)
    alone = found()["federation instead of every site alone"]
    assert (alone.mean, alone.sd) == (pytest.approx(-0.18), None)
    assert found()["privacy at ε = 1.00 for one record"].mean == pytest.approx(0.09)
    assert len(found()) == 3
    for one in rows:
        if one["style"] == "sample":
            one["overrides"]["training.lr"] = 0.1
    assert len(found()) == 2, "what differs in a learning rate too is no cost of privacy"
