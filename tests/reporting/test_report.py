"""Where a report is written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dp_fedmed import __version__
from dp_fedmed.cli import main
from dp_fedmed.config import compose
from dp_fedmed.federation.rounds import RoundRecord
from dp_fedmed.launch import run_federation
from dp_fedmed.reporting.display import LogDisplay
from dp_fedmed.reporting.report import card_of
from dp_fedmed.reporting.run_facts import read_run
from dp_fedmed.run import results
from dp_fedmed.run.directory import RunDirectory
from tests.runs.finished import SETTINGS, WORDS, make_run

Runs = Callable[[str], Path]


def test_another_place_leaves_the_run_alone(a_run: Runs, tmp_path: Path) -> None:
    path = a_run("sample")
    before = sorted((p, p.stat().st_mtime_ns) for p in path.rglob("*"))
    assert main(["report", str(path), "-o", str(tmp_path / "there" / "page.html")]) == 0
    assert sorted((p, p.stat().st_mtime_ns) for p in path.rglob("*")) == before
    made = {p.relative_to(tmp_path / "there").as_posix() for p in (tmp_path / "there").rglob("*")}
    assert {"page.html", "page/report.md", "page/privacy_card.md", "page/figures"} <= made


Runs = Callable[[str], Path]


@pytest.mark.parametrize("kind", ["none", "sample", "hybrid", "public"])
def test_the_run_and_the_report_write_the_same_card(made_run: Runs, kind: str) -> None:
    path = made_run(kind)
    facts = read_run(path)
    assert facts.problems == []
    assert facts.ledger.verified
    assert (path / "privacy_card.md").read_text() == card_of(facts)


def test_a_card_holds_what_an_officer_needs_from_facts_alone(made_run: Runs) -> None:
    path = made_run("hybrid")
    card = (path / "privacy_card.md").read_text()
    for part in (
        "| task | breast_cancer (classification), judged by balanced accuracy |",
        "| rounds | 3 of 3; completed |",
        "| The server | ε = 3.00 at δ = 1e-5: from 50:50 odds, right at most 95.3 % of the time |",
        "no promise: the server sees it before noise is added",
        "| ε | 8.00 |",
        "one record of one site; a patient with several records is not a record",
        "DP-SGD: each record's gradient is clipped to norm",
        "- repeated runs on the same data",
        "simulated: the clients' keys derive from the run's key",
        f"dp_fedmed {__version__}, python 3.",
    ):
        assert part in card
    last = json.loads((path / "private" / "ledger.jsonl").read_text().splitlines()[-1])
    assert f"record {last['n']}, HMAC-SHA-256 `{last['mac']}`" in card
    assert str(path.parent) not in card


def test_without_privacy_the_card_says_so(made_run: Runs) -> None:
    card = (made_run("none") / "privacy_card.md").read_text()
    assert "**There is no guarantee.** No differential privacy." in card
    assert "50:50" not in card


class Stopper(LogDisplay):
    """Presses Ctrl-C after the first round."""

    def round(self, record: RoundRecord) -> None:
        if record.server_round == 1:
            raise KeyboardInterrupt


def test_a_resumed_run_has_one_card_and_one_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    words = [*SETTINGS, *WORDS["sample"], f"run_dir={path}"]
    run_federation(compose(words), Stopper())
    card = (path / "privacy_card.md").read_text()
    assert "| rounds | 1 of 3; interrupted after round 1 |" in card
    first = (path / "environment.json").read_bytes()
    other = tmp_path / "other"
    shutil.copytree(path, other, symlinks=True)

    resumed = run_federation(compose([f"run_dir={path}", "resume=last"]))
    assert resumed.stopped == "completed"
    assert "| rounds | 3 of 3; completed |" in (path / "privacy_card.md").read_text()
    assert (path / "environment.json").read_bytes() == first, "same versions, one stretch"

    newer = results.versions() | {"torch": "99.0"}
    monkeypatch.setattr(results, "versions", lambda: newer)
    run_federation(compose([f"run_dir={other}", "resume=last"]))
    stretches = json.loads((other / "environment.json").read_text())["stretches"]
    assert [entry["after_round"] for entry in stretches] == [0, 1]
    assert stretches[1]["versions"]["torch"] == "99.0"
    assert stretches[0]["versions"]["torch"] != "99.0"
    assert "after round 1 | " in (other / "privacy_card.md").read_text()


def test_what_was_said_of_an_earlier_model_goes_when_a_run_goes_on(a_run: Runs) -> None:
    """A card that outlives the rounds after it would report too small an ε."""
    path = a_run("sample")
    RunDirectory(path).forget_after(2)
    assert not (path / "privacy_card.md").exists()
    assert not (path / "evaluation.json").exists()


def test_the_confusion_matrix_is_the_final_models(made_run: Runs, tmp_path: Path) -> None:
    path = made_run("none")
    held = json.loads((path / "evaluation.json").read_text())
    matrix = np.array(held["confusion"])
    test = read_run(path, ledger=False).test
    assert matrix.shape == (2, 2)
    assert np.trace(matrix) / matrix.sum() == pytest.approx(test["accuracy"], rel=1e-12)
    recalls = np.diag(matrix) / matrix.sum(axis=1)
    assert recalls.mean() == pytest.approx(test["balanced_accuracy"], rel=1e-12)
    make_run(tmp_path / "again", WORDS["none"])
    assert (tmp_path / "again" / "evaluation.json").read_bytes() == (
        path / "evaluation.json"
    ).read_bytes()


def test_segmented_test_images_are_drawn_and_named_outside_the_guarantee(made_run: Runs) -> None:
    path = made_run("cells")
    held = json.loads((path / "evaluation.json").read_text())
    assert held["counted"] == "pixels"
    assert np.array(held["confusion"]).sum() % 16**2 == 0
    with Image.open(path / "pictures.png") as sheet:
        assert sheet.height > 500
    from dp_fedmed.run.privacy_report import _outside

    listed = " ".join(_outside(compose(["task=cells", "privacy=sample"])))
    assert "pictures.png" in listed
    assert "partition.json" in listed
