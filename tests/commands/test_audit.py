"""`dp-fedmed audit`: what it writes, how it ends, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dp_fedmed import cli

KEYS = {
    *("schema", "style", "unit", "claim", "lower_bound", "confidence", "canaries", "guesses"),
    *("correct", "verdict", "statement", "settings", "attack", "attacked", "replaced", "findings"),
}


def run_command(*words: str) -> int:
    return cli.main(["audit", *words])


def test_the_command_writes_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    words = [
        *("privacy=sample", "recipe=none", "training.batch_size=100000", "--canaries-count"),
        *("200", "federation.num_rounds=1", "--output", str(tmp_path / "a"), "--seed", "1"),
        *("--trials", "200"),
    ]
    assert run_command(*words) == 0
    shown = capsys.readouterr().out
    assert "Nothing found against the claim" in shown
    assert "dp_fedmed.models.MLP, loss cross_entropy" in shown  # what was attacked,
    assert "Took no part: network, loss, grad_mode, data" in shown  # and what was not
    content = json.loads((tmp_path / "a" / "audit.json").read_text())
    assert content.keys() >= KEYS
    assert content["claim"] == {"epsilon": pytest.approx(3.0, abs=0.05), "delta": 1e-5}
    assert (tmp_path / "a" / "audit.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["audit.json", "audit.png"]


def test_a_public_seed_is_told_for_certain_and_ends_with_3(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = ["privacy=user", "recipe=none", "privacy.noise_seed=1", "federation.num_rounds=1"]
    words.append("engine.workers=1")
    assert run_command(*words, "--json", "--output", str(tmp_path)) == 3
    content = json.loads(capsys.readouterr().out)
    assert (content["verdict"], content["lower_bound"]) == ("not private", None)
    assert content["correct"] == 1  # the replay came out bit for bit


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["privacy=none"], "privacy.style=none"),
        (["privacy=user", "--canaries", "grey-box"], "grey-box"),
        (["privacy=user", "--canaries-count", "many"], "--canaries-count"),
        (["privacy=user", "--canaries-count", "3"], "from 50"),
        (["privacy=user", "--repeat", "0"], "--repeat 0"),
        (["privacy=user", "--trials", "9"], "--trials 9"),
        (["privacy=user", "--seed", "-1"], "--seed -1"),
        (["privacy=user", "--confidence", "nan"], "--confidence"),
        (["privacy=user", "--confidence", "95"], "0.95"),
        (["privacy=user", "--what"], "--what"),
        (["privacy=user", "run_dir=/x"], "--output"),
        (["privacy=user", "resume=last"], "dp-fedmed run"),
        (["privacy=usr"], "user"),
        (["privacy=user", "--output", "/dev/null/x"], "--output"),
    ],
)
def test_wrong_words_are_named(words: list[str], said: str, capsys: pytest.CaptureFixture) -> None:
    assert run_command(*words) == 2
    assert said in capsys.readouterr().err


def test_help_teaches(capsys: pytest.CaptureFixture) -> None:
    assert run_command("--help") == 0
    text = capsys.readouterr().out
    for word in (
        "--canaries",
        "--trials",
        "--repeat",
        "--json",
        "exceeded",
        "Exit codes",
        "privacy=hybrid",
    ):
        assert word in text
