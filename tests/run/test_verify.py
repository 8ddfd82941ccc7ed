"""What a ledger says of a run that was cut off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dp_fedmed.config import Config, compose
from dp_fedmed.run.verify import LedgerView


def test_an_open_round_is_said_and_is_not_damage(
    small: Callable[..., Config], capsys: pytest.CaptureFixture[str]
) -> None:
    from dp_fedmed import crash_points
    from dp_fedmed.cli import main
    from dp_fedmed.launch import run_federation

    config = small("privacy=hybrid", "model._target_=dp_fedmed.models.MLP", "model.args.hidden=[4]")

    class Crash(BaseException):
        pass

    def crash(point: str) -> None:
        nonlocal left
        left -= point == "charge:after"
        if left == 0:
            raise Crash

    left = 2
    crash_points.at_crash_point, before = crash, crash_points.at_crash_point
    try:
        with pytest.raises(Crash):
            run_federation(config)
    finally:
        crash_points.at_crash_point = before
    assert LedgerView(Path(config.run_dir)).open_round == 2
    assert main(["ledger", "verify", config.run_dir]) == 3
    said = " ".join(capsys.readouterr().out.split())
    assert "Round 2 is open" in said
    assert f"dp-fedmed resume {config.run_dir}" in said
    assert "ε_sample = " in said, "not left out without a word"
    assert "planned worst case" in said
    run_federation(compose([f"run_dir={config.run_dir}", "resume=last"]))
    assert main(["ledger", "verify", config.run_dir]) == 0
