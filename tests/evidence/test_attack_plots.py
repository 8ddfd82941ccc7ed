"""The picture of an attack: its curves, and the bound where there is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dp_fedmed.evidence import attack_plots
from dp_fedmed.evidence.attack_plots import plot_attack
from dp_fedmed.evidence.claim import Claim
from dp_fedmed.evidence.membership import Figures, Fold, MembershipAttack
from dp_fedmed.evidence.roc import Roc


def attack_of(claim: Claim | None, others: int = 50) -> MembershipAttack:
    rng = np.random.default_rng(0)
    roc = Roc(rng.normal(1, 1, 80), rng.normal(0, 1, others))
    figures = Figures((Fold(roc, roc),))
    return MembershipAttack("loss", figures, figures, claim, None, None, ())


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are saved."""
    figures: list[Any] = []
    save = attack_plots.drawing.save_png

    def kept(figure: Any, path: Path, **more: Any) -> None:
        figures.append(figure)
        save(figure, path, **more)

    monkeypatch.setattr(attack_plots.drawing, "save_png", kept)
    return figures


@pytest.mark.parametrize("claim", [None, Claim(epsilon=1.0, delta=1e-5, source="")])
def test_a_bound_is_drawn_where_something_is_promised(
    claim: Claim | None, saved: list[Any], tmp_path: Path
) -> None:
    plot_attack(attack_of(claim), "a title", tmp_path / "attack.png")
    assert (tmp_path / "attack.png").stat().st_size > 1000
    (axes,) = saved[0].axes
    labels = axes.get_legend_handles_labels()[1]
    assert ("most that ε = 1, δ = 1e-05 allow" in labels) is (claim is not None)
    assert axes.get_title() == "a title"
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


def test_no_false_alarm_is_on_the_picture_however_many_records_there_are(
    saved: list[Any], tmp_path: Path
) -> None:
    for others in (10, 5000):
        plot_attack(attack_of(None, others), "", tmp_path / "attack.png")
        assert saved[-1].axes[0].get_xlim()[0] < 1.0 / others
