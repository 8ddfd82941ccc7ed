"""The live panel: what it shows, and what it may not."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from dp_fedmed.config import compose
from dp_fedmed.federation.rounds import RoundRecord
from dp_fedmed.reporting.live import LivePanel
from dp_fedmed.run.results import public_record


def drawn(panel: LivePanel, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system="standard")
    console.print(panel)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def seen(number: int, accuracy: float, **more: object) -> RoundRecord:
    metrics = {"accuracy": accuracy, "loss": 1.0 - accuracy}
    return RoundRecord(number, server_metrics=metrics, **more)  # type: ignore[arg-type]


def test_metrics_come_with_their_change_and_epsilon_with_its_target() -> None:
    panel = LivePanel(compose(["task=digits", "privacy=sample", "federation.num_rounds=20"]))
    panel.begin(0, {"sample": 2.999})
    panel.round(seen(1, 0.5, epsilons={"sample": 0.5}))
    panel.round(seen(2, 0.75, epsilons={"sample": 1.5}))
    text = plain(drawn(panel))
    assert "2 of 20" in text
    assert "accuracy 0.7500 +0.2500" in text
    assert "loss 0.2500 −0.2500" in text
    assert "ε 1.500 of 3 (50%)" in text
    assert "2.999 at the end" in text
    assert "round 3 is under way; Ctrl-C stops after it" in text
    panel.round(RoundRecord(3, epsilons={"sample": 1.8}))
    assert "of round 2" in plain(drawn(panel)), "an older validation says so"
    panel.is_stopping = True
    assert "stopping after round 4; Ctrl-C again stops at once" in plain(drawn(panel))


@pytest.mark.parametrize(("spent", "colour"), [(1.0, "32"), (2.0, "33"), (2.8, "31")])
def test_a_gauge_is_coloured_by_the_share_that_is_spent(spent: float, colour: str) -> None:
    panel = LivePanel(compose(["task=digits", "privacy=sample"]))
    panel.round(RoundRecord(1, epsilons={"sample": spent}))
    assert f"\x1b[{colour}mε {spent:.3f} of 3" in drawn(panel)


def test_a_cohort_is_shown_only_where_it_is_public() -> None:
    record = seen(1, 0.5, cohort=["client-00000", "client-00001"], failed={"client-00001": "late"},
                  train_loss=0.4321)  # fmt: skip
    public = LivePanel(compose(["task=digits", "privacy=none"]))
    public.round(record)
    assert "1 of 2 clients answered, train loss 0.4321" in plain(drawn(public))
    for style in ("sample", "user", "hybrid"):
        panel = LivePanel(compose(["task=digits", f"privacy={style}"]))
        panel.round(public_record(record, {"sample": 1.0}))
        text = plain(drawn(panel))
        assert "answered" not in text
        assert "0.4321" not in text


def test_the_time_left_comes_from_the_last_rounds() -> None:
    panel = LivePanel(compose(["task=digits", "privacy=none", "federation.num_rounds=11"]))
    panel.begin(0, {})
    assert panel.seconds_left() is None
    assert "left" not in plain(drawn(panel))
    panel._round_started -= 30.0
    panel.round(seen(1, 0.5))
    left = panel.seconds_left()
    assert left is not None
    assert 295 < left < 301
    assert re.search(r"(5:00|4:5\d) left", plain(drawn(panel)))


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_narrow_terminal_is_not_overrun(width: int) -> None:
    panel = LivePanel(compose(["task=digits", "privacy=hybrid"]))
    panel.begin(0, {"sample": 3.0, "user": 8.0})
    panel.round(seen(1, 0.5, epsilons={"sample": 1.0, "user": 7.9}))
    assert max(len(line) for line in plain(drawn(panel, width)).splitlines()) <= width
