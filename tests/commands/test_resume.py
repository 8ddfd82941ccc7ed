"""`dp-fedmed resume` and `ledger`, as processes: what they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runs.outside.test_cli import dp_fedmed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["resume"], "dp-fedmed resume RUN_DIR"),
        (["resume", "nowhere"], "nowhere is not a run directory"),
        (["run", "resume=last"], "give run_dir=/absolute/path"),
        (["run", "resume=round:x", "run_dir=/x"], "resume=round:x is neither last, best"),
        (["ledger", "show"], "dp-fedmed ledger show RUN_DIR"),
        (["ledger", "verify", "nowhere"], "nowhere is not a run directory"),
    ],
)
def test_what_cannot_be_resumed_is_said(arguments: list[str], said: str, tmp_path: Path) -> None:
    done = dp_fedmed(*arguments)
    assert done.returncode == 2
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
