"""A run that is killed and resumed ends as the one that was not: same model, same ε, same bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("task", "style"),
    [
        *(("", style) for style in ("none", "sample", "user", "hybrid")),
        ("textures-", "none"),
        ("textures-", "sample"),
    ],
)
def test_a_killed_run_ends_as_if_nothing_had_happened(
    task: str, style: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.federation.crash_harness", str(tmp_path), task + style, "1"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=580,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["wrong"] == []
    points = set(found["points"])
    assert {"training:before", "checkpoint:synced", "checkpoint:renamed", "commit:before"} <= points
    assert ("charge:before" in points) is (style != "none")
    noised_here = ("user", "hybrid", *(("sample",) if task else ()))
    assert ("release:file" in points) is (style in noised_here)
    assert ("client:charged" in points) is (style in ("sample", "hybrid"))
