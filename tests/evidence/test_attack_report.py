"""`attack.json` and its picture: figures and words that say the same, and no more."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dp_fedmed.config import compose
from dp_fedmed.evidence import attack_report
from dp_fedmed.evidence.attack_report import (
    MOST_POINTS,
    attack_json,
    attack_statement,
    plot_attack,
)
from dp_fedmed.evidence.claim import Claim
from dp_fedmed.evidence.finished_run import DIGEST, UNCHECKED
from dp_fedmed.evidence.membership import Figures, Fold, MembershipAttack
from dp_fedmed.evidence.roc import Roc

CLAIM = Claim(epsilon=0.5, delta=1e-5, source="the run's report")


def drawn(shift: float, count: int, seed: int) -> Roc:
    rng = np.random.default_rng(seed)
    return Roc(rng.normal(shift, 1, count), rng.normal(0, 1, count))


def attack_of(shift: float, count: int = 1000, **more: Any) -> MembershipAttack:
    def judged(seed: int) -> Figures:
        folds = (Fold(drawn(shift, count, seed), drawn(shift, count, seed + 9)),)
        return Figures(folds)

    held: dict[str, Any] = {"claim": CLAIM, "clients": None, "client_claim": None, "notes": ("n",)}
    return MembershipAttack("loss", judged(1), judged(2), **held | more)


def run_of(checked: str = DIGEST) -> Any:
    return SimpleNamespace(config=compose(["privacy=sample"]), data_checked=checked)


def test_an_attack_beyond_the_bound_is_said_and_one_within_is_not() -> None:
    within, beyond = (attack_json(run_of(), attack_of(shift)) for shift in (0.0, 2.0))
    assert (within["exceeds_bound"], within["exceeds_bound_at"]) == (False, {})
    assert "no better than guessing" in within["statement"]
    assert "within the bound" in within["statement"]
    assert beyond["exceeds_bound"]
    assert beyond["exceeds_bound_at"]
    assert "THE ATTACK EXCEEDS THE BOUND" in beyond["statement"]
    assert "dp-fedmed audit" in beyond["statement"]


def test_without_a_promise_nothing_bounds_it() -> None:
    report = attack_json(run_of(), attack_of(2.0, claim=None))
    assert not report["exceeds_bound"]
    assert set(report["bound"].values()) == {None}
    assert "promises nothing" in report["statement"]


def test_it_goes_into_json_and_holds_no_record() -> None:
    attack = attack_of(1.0)
    report = json.loads(json.dumps(attack_json(run_of(), attack), allow_nan=False))
    assert len(report["roc"]["fpr"]) == len(report["roc"]["tpr"]) <= MOST_POINTS
    assert report["roc"]["fpr"] == sorted(report["roc"]["fpr"])
    assert (report["members"], report["non_members"]) == (1000, 1000)
    low, high = report["auc_interval"]
    assert low < report["auc"] < high
    assert report["bound"]["epsilon"] == 0.5
    assert report["notes"] == ["n"]
    assert "outside the guarantee" in report["outside_the_guarantee"]


@pytest.mark.parametrize(("count", "few"), [(50, ["0.001", "0.01"]), (1000, []), (500, ["0.001"])])
def test_too_few_records_are_named(count: int, few: list[str]) -> None:
    report = attack_json(run_of(), attack_of(0.0, count))
    assert sorted(report["too_few_non_members_for"]) == few
    assert ("too few to speak of" in report["statement"]) is bool(few)
    assert ("With no false alarm" in report["statement"]) is ("0.01" in few)


def test_whole_clients_have_figures_of_their_own() -> None:
    assert attack_json(run_of(), attack_of(0.0))["clients"] is None
    attack = attack_of(0.0, clients=drawn(0.0, 20, 3), client_claim=CLAIM)
    report = attack_json(run_of(), attack)
    assert report["clients"]["members"] == 20
    assert report["clients"]["bound"]["epsilon"] == 0.5
    assert "from only 20 clients" in report["statement"]


def test_data_that_could_not_be_checked_are_a_doubt() -> None:
    doubt = "could not be checked"
    assert doubt in attack_statement(run_of(UNCHECKED), attack_of(0.0))
    assert doubt not in attack_statement(run_of(), attack_of(0.0))


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are saved."""
    figures: list[Any] = []
    save = attack_report.drawing.save_png

    def kept(figure: Any, path: Path, **more: Any) -> None:
        figures.append(figure)
        save(figure, path, **more)

    monkeypatch.setattr(attack_report.drawing, "save_png", kept)
    return figures


@pytest.mark.parametrize("claim", [None, Claim(epsilon=1.0, delta=1e-5, source="")])
def test_a_bound_is_drawn_where_something_is_promised(
    claim: Claim | None, saved: list[Any], tmp_path: Path
) -> None:
    plot_attack(attack_of(1.0, 50, claim=claim), "a title", tmp_path / "attack.png")
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
        plot_attack(attack_of(1.0, others, claim=None), "", tmp_path / "attack.png")
        assert saved[-1].axes[0].get_xlim()[0] < 1.0 / others
