"""A run that is killed and resumed ends as the one that was not: same model, same ε, same bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CASES = (
    *("none", "sample", "user", "hybrid", "sample-server", "hybrid-server"),
    *("textures-none", "textures-sample-server", "user-shares"),
)
MASKED = ("none-masked", "sample-shares", "hybrid-shares", "user-client")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], dict[str, Any]]:
    """What the harness says of each case; one process for all of them."""
    known: dict[int, dict[str, Any]] = {}

    def find(step: int) -> dict[str, Any]:
        if step not in known:
            folder = tmp_path_factory.mktemp("crashes")
            done = subprocess.run(
                [
                    *(sys.executable, "-m", "tests.runs.crash_harness"),
                    *(str(folder), str(step), *CASES, *(MASKED if step == 1 else ())),
                ],
                capture_output=True,
                text=True,
                cwd=ROOT,
                timeout=1180,
            )
            lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
            known[step] = {row["case"]: row for row in map(json.loads, lines)}
            known[step]["said"] = done.stderr[-3000:]
        return known[step]

    return find


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("case", "step"),
    [
        *((case, 28) for case in CASES),
        *(pytest.param(case, 1, marks=pytest.mark.slow) for case in (*CASES, *MASKED)),
    ],
)
def test_a_killed_run_ends_as_if_nothing_had_happened(
    case: str, step: int, found: Callable[[int], dict[str, Any]]
) -> None:
    assert case in found(step), found(step)["said"]
    seen = found(step)[case]
    assert seen["wrong"] == []
    points = set(seen["points"])
    style, _, place = case.removeprefix("textures-").partition("-")
    assert {"training:before", "checkpoint:synced", "checkpoint:renamed", "commit:before"} <= points
    assert ("charge:before" in points) is (style != "none")
    assert ("release:file" in points) is (
        style in ("user", "hybrid") or place in ("server", "shares")
    )
    assert ("client:charged" in points) is (
        style in ("sample", "hybrid") if place in ("", "server") else place != "masked"
    )
    assert ("masking:keys" in points) is (place in ("masked", "shares"))
