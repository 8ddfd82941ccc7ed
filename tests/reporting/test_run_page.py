"""A run's page: what it says, what it must not say, and what it makes of broken files."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dp_fedmed.cli import main
from dp_fedmed.reporting.figures import run_figures
from dp_fedmed.reporting.report import card_of
from dp_fedmed.reporting.run_facts import read_run
from dp_fedmed.reporting.run_page import run_page

Runs = Callable[[str], Path]


def report(path: Path, *more: str) -> str:
    assert main(["report", str(path), *more]) == 0
    return (path / "report.html").read_text()


def page_of(path: Path) -> str:
    """The page without its figures, which take longer than all the rest."""
    return run_page(read_run(path), [])


def text_of(page: str) -> str:
    """What a reader sees: no markup, single spaces."""
    body = re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.S)
    return " ".join(re.sub(r"<[^>]+>", " ", body).split())


def test_a_page_has_its_figures_summary_and_card(
    a_run: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    path = a_run("sample")
    (path / "privacy_card.md").unlink()
    page = report(path)
    assert capsys.readouterr().out.strip() == str(path / "report.html")
    names = {"epsilon", "metric", "loss", "clients", "partition", "confusion"}
    for name in names:
        assert f'id="figure-{name}"' in page
        for ending in ("png", "svg"):
            assert (path / "report" / "figures" / f"{name}.{ending}").stat().st_size > 1000
    summary = (path / "report" / "report.md").read_text()
    assert summary.count("](figures/") == len(names)
    assert (path / "privacy_card.md").read_text().startswith("# Privacy card: sample_run")
    assert page.count("<svg") == len(names)
    assert "#0072b2" not in re.sub(r"<style>.*?</style>", "", page, flags=re.S), "page's colours"


def test_a_page_says_who_is_promised_what_as_odds(a_run: Runs) -> None:
    said = text_of(page_of(a_run("hybrid")))
    assert "ε = 3.00 at δ = 1e-5 An attacker with 50:50 odds can reach at most 95.3 % ." in said
    assert "at most 99.97 %" in said
    assert "No promise: the server sees it before noise is added." in said
    assert "Conservative sum of the accounting protocol: ε = 11.0" in said
    assert "repeated runs on the same data" in said
    assert "Checked: every record is chained to the one before" in said
    assert "planned worst case" in said
    assert re.search(r"torch \d+\.\d+", said)


def test_without_privacy_nothing_is_promised(a_run: Runs) -> None:
    said = text_of(page_of(a_run("none")))
    assert "Nobody is promised anything." in said
    assert "No differential privacy: the model may reveal any record." in said
    assert "50:50" not in said


def test_a_public_noise_seed_voids_every_promise(a_run: Runs) -> None:
    path = a_run("public")
    said = text_of(page_of(path))
    assert "Not private: the noise can be reproduced from a public seed." in said
    assert "No promise: the noise seed is public." in said
    assert "can reach at most" not in said
    assert (
        "There is no guarantee: the noise can be reproduced"
        in (path / "privacy_card.md").read_text()
    )


def test_only_what_may_be_published_is_read(a_run: Runs) -> None:
    """Neither who took part nor clients' losses: the page is the same without them."""
    path = a_run("hybrid")
    before = page_of(path)
    (path / "private" / "rounds.jsonl").unlink()
    (path / "private" / "run.log").unlink()
    shutil.rmtree(path / "private" / "releases", ignore_errors=True)
    (path / "private" / "releases").mkdir()
    assert page_of(path) == before


def test_no_place_on_the_machine_is_told(a_run: Runs) -> None:
    path = a_run("sample")
    for page in (report(path), *(f.read_text() for f in (path / "report").rglob("*.md"))):
        assert str(path.parent) not in page
        assert str(Path.home()) not in page or str(Path.home()) == "/"
    settings = re.search(r"run_dir: (.*)", page_of(path))
    assert settings is not None
    assert "…/sample_run" in settings[1]


def test_what_settings_and_names_hold_is_shown_not_run(a_run: Runs) -> None:
    path, evil = a_run("sample"), "<script>alert(1)</script>$\\frac$"
    config = path / "config.yaml"
    config.write_text(config.read_text().replace("name: breast_cancer", f"name: '{evil}'"))
    evaluation = json.loads((path / "evaluation.json").read_text())
    evaluation["class_names"] = [evil, '"><img src=x onerror=alert(1)>']
    (path / "evaluation.json").write_text(json.dumps(evaluation))
    held = json.loads((path / "privacy_report.json").read_text())
    held["outside_the_guarantee"] = [evil]
    held["trust_boundary"] = "`x` | <b>y</b>"
    (path / "privacy_report.json").write_text(json.dumps(held))
    page = report(path)
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert page.count("&lt;script&gt;alert(1)") >= 4
    summary = (path / "report" / "report.md").read_text()
    assert "<script>" not in summary + card_of(read_run(path))


def test_a_key_that_cannot_be_read_is_said_and_the_card_is_kept(a_run: Runs) -> None:
    path = a_run("sample")
    card = (path / "privacy_card.md").read_text()
    shutil.rmtree(path / "private")
    said = text_of(report(path))
    assert "Not checked. Its key cannot be read here. The last checkpoint remembers" in said
    assert "HMAC-SHA-256" in said
    assert (path / "privacy_card.md").read_text() == card


@pytest.mark.parametrize("what", ["ledger", "report"])
def test_a_run_that_was_tampered_with_says_so_first(a_run: Runs, what: str) -> None:
    path = a_run("sample")
    if what == "ledger":
        file = path / "private" / "ledger.jsonl"
        file.write_text(file.read_text().replace('"round":2', '"round":3', 1))
    else:
        file = path / "privacy_report.json"
        file.write_text(file.read_text().replace('"epsilon": 3.0', '"epsilon": 1.0'))
        file.write_text(re.sub(r'"epsilon": 2\.9\d+', '"epsilon": 1.0', file.read_text()))
    said = text_of(page_of(path))
    assert "The ledger does not agree with the run directory: do not rely on this page." in said
    assert str(path.parent) not in said


FILES = (
    *("config.yaml", "metrics.jsonl", "privacy_report.json", "partition.json"),
    *("evaluation.json", "environment.json", "attack.json", "audit.json"),
)
CONTENTS = (
    *(b"", b"{", b"[]", b"null", b"{}", b'"text"', b"\xff\xfe\x00", b"[" * 5000),
    b'{"guarantees": [{"unit": "record", "epsilon": "3"}, 7, null], "observers": {"a": 1}}',
    b'{"clients": [{"records": 3, "classes": 7}, 4], "stretches": [{"versions": []}]}',
    b'{"round": 1, "val": 3, "epsilon": [1], "clients": {"a": 1}}',
    b'{"final": true, "test": {"accuracy": "x"}, "val": null}',
    b'{"class_names": ["a", "b"], "confusion": [[1, 2], [3]]}',
)


@pytest.mark.parametrize("name", FILES)
def test_a_broken_file_costs_its_part_of_the_page_not_the_page(a_run: Runs, name: str) -> None:
    path = a_run("sample")
    (path / "attack.json").write_text('{"auc": 0.5}')
    (path / "audit.json").write_text('{"claim": 3.0}')
    for content in (None, *CONTENTS):
        (path / name).unlink(missing_ok=True)
        if content is not None:
            (path / name).write_bytes(content)
        facts = read_run(path, ledger=content is None)
        page = run_page(facts, [])
        assert card_of(facts)
        if content in (None, *CONTENTS[8:]) and name not in ("attack.json", "audit.json"):
            assert isinstance(run_figures(facts), list)
        if content in (b"", b"{", b"\xff\xfe\x00") and name not in ("config.yaml", "metrics.jsonl"):
            assert any(name in problem for problem in facts.problems), content
            assert f"{name} cannot be read" in page
        if name == "privacy_report.json":
            assert "can reach at most" not in page, "nothing is promised that cannot be read"


def test_a_run_that_has_not_ended_is_reported_as_far_as_it_got(a_run: Runs) -> None:
    path = a_run("hybrid")
    lines = (path / "metrics.jsonl").read_text().splitlines()
    (path / "metrics.jsonl").write_text("\n".join([*lines[:3], lines[3][:40]]))
    said = text_of(page_of(path))
    assert "The run has not ended: this is its state after 2 rounds." in said
    assert "metrics.jsonl: 1 of 4 lines cannot be read" in said


def test_attack_and_audit_are_shown_where_they_were_run(a_run: Runs) -> None:
    path = a_run("sample")
    attack = {
        "schema": 1,
        "attack": "loss threshold",
        "auc": 0.53,
        "advantage": 0.04,
        "tpr_at_fpr": {"0.001": 0.002, "0.01": 0.013},
        "bound": {"epsilon": 3.0, "delta": 1e-5, "tpr_at_fpr": {"0.01": 0.2}},
        "statement": "The attack does little better than a coin; see /home/ann/runs/x.",
    }
    (path / "attack.json").write_text(json.dumps(attack))
    shutil.copy(path / "partition.png", path / "attack.png")
    audit = {"claim": 3.0, "lower_bound": 0.4, "confidence": 0.95, "canaries": 500}
    (path / "audit.json").write_text(json.dumps(audit | {"verdict": "no contradiction"}))
    page = page_of(path)
    said = text_of(page)
    assert "What an attack found The attack does little better than a coin; see …/x." in said
    assert "tpr at fpr: 0.01 0.013" in said
    assert "verdict no contradiction" in said
    assert page.count("data:image/png;base64,") == 1
    assert "attack and audit results" in said
    assert "to publish these figures is a release of its own" in said


def test_test_images_can_be_left_out(a_run: Runs) -> None:
    path = a_run("cells")
    assert page_of(path).count("data:image/png;base64,") == 1
    without = report(path, "--no-pictures")
    assert "data:image/png;base64," not in without
    assert 'id="figure-confusion"' in without
