"""Going on with a run, exactly."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from dp_fedmed.config import compose
from dp_fedmed.errors import ConfigError, LedgerError, RunFinished
from dp_fedmed.federation.rounds import RoundRecord
from dp_fedmed.launch import run_federation
from dp_fedmed.run import server_run
from dp_fedmed.run.spent import CHARGE, COMMIT, REWIND
from dp_fedmed.run.verify import LedgerView
from tests.runs.resume.runs import (
    SETTINGS,
    Stopper,
    charges,
    in_child_that_dies_at,
    model_bytes,
    resume,
)


@pytest.mark.parametrize("style", ["none", "sample", "user", "hybrid"])
def test_an_interrupted_run_goes_on_and_spends_its_target(
    style: str, copy: Callable[[str], Path]
) -> None:
    path = copy(style)
    result = resume(path)
    assert (result.stopped, result.rounds) == ("completed", 4)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert [row.get("round") for row in rows] == [0, 1, 2, 3, 4, None]
    assert charges(path) == ([1, 2, 3, 4] if style != "none" else [])
    assert not list(LedgerView(path).problems())
    targets = {"sample": 3.0, "user": 8.0}
    for level, spent in LedgerView(path).epsilons().items():
        assert 0.99 * targets[level] < spent <= targets[level]
    assert [f.name for f in (path / "private" / "secret").iterdir()] == ["ledger.key"]
    with pytest.raises(RunFinished, match=r"finished: 4 rounds, completed.*num_rounds=14"):
        resume(path)


@pytest.mark.parametrize("style", ["sample", "user", "hybrid"])
def test_going_back_to_do_the_same_costs_nothing(
    style: str,
    copy: Callable[[str], Path],
    references: Callable[[str], tuple[bytes, dict[str, float]]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = copy(style)
    assert resume(path, "resume=round:1").stopped == "completed"
    assert "stays spent" in caplog.text
    assert charges(path) == [1, 2, 3, 4], "round 2 was done twice, the same, and paid once"
    assert (model_bytes(path), LedgerView(path).epsilons()) == references(style)
    assert (path / "abandoned").is_dir()
    kinds = [r.kind for r in LedgerView(path).ledger.records]
    assert kinds.count(REWIND) == 1
    assert kinds.count(COMMIT) == 6


@pytest.mark.parametrize("style", ["sample", "user", "hybrid"])
def test_going_back_to_do_something_else_is_charged_again(
    style: str, copy: Callable[[str], Path]
) -> None:
    path = copy(style)
    result = resume(path, "resume=round:1", "training.lr=0.033")
    assert charges(path)[:3] == [1, 2, 2], "round 2 was done twice, differently"
    assert result.stopped.startswith("budget"), "four rounds were planned, and four are paid for"
    for level, spent in LedgerView(path).epsilons().items():
        assert spent <= {"sample": 3.0, "user": 8.0}[level]


def test_a_round_that_was_released_is_never_released_differently(
    copy: Callable[[str], Path],
    references: Callable[[str], tuple[bytes, dict[str, float]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else, whether two releases differ would tell whether a silent client was in the cohort."""
    from dp_fedmed.federation.replies import ReplyReader

    path = copy("user")
    resume(path, display=Stopper(3))
    original = ReplyReader._contribution

    def without_one(self, record, name, reply, like):  # type: ignore[no-untyped-def]
        return None if name == "client-00001" else original(self, record, name, reply, like)

    monkeypatch.setattr(ReplyReader, "_contribution", without_one)
    before = load_file(path / "round_0003" / "model.safetensors")
    resume(path, "resume=round:1", display=Stopper(3))
    after = load_file(path / "round_0003" / "model.safetensors")
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert charges(path) == [1, 2, 3]


def test_a_release_that_is_on_disk_is_taken_from_there_and_nobody_is_asked(
    copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dp_fedmed.federation.messenger import Messenger

    path = copy("hybrid")
    asked: list[tuple[int, int]] = []
    original = Messenger.messages

    def counting(self, kind, names, server_round, *rest):  # type: ignore[no-untyped-def]
        messages = original(self, kind, names, server_round, *rest)
        asked.append((server_round, len(messages)))
        return messages

    monkeypatch.setattr(Messenger, "messages", counting)
    resume(path, "resume=round:1")
    assert [server_round for server_round, _ in asked] == [3, 4]
    assert charges(path) == [1, 2, 3, 4]


def test_the_best_model_can_be_gone_back_to_without_privacy_only(
    copy: Callable[[str], Path],
) -> None:
    assert resume(copy("none"), "resume=best").stopped == "completed"
    with pytest.raises(ConfigError, match="keeps no best model"):
        resume(copy("sample"), "resume=best")
    with pytest.raises(ConfigError, match=r"round:9: there are checkpoints of rounds 0, 1, 2"):
        resume(copy("sample"), "resume=round:9")


def test_the_last_and_the_best_checkpoints_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "run"
    more = ["federation.num_rounds=7", "checkpoint.keep=2", f"run_dir={path}"]
    result = run_federation(compose(["privacy=none", *SETTINGS, *more]))
    kept = {int(p.name[6:]) for p in path.glob("round_*")}
    assert kept == {6, 7, result.selected_round}
    assert (path / "last").resolve().name == "round_0007"
    best = load_file(path / "best" / "model.safetensors")
    final = load_file(path / "model.safetensors")
    assert all(np.array_equal(best[name], final[name]) for name in final)


def test_checkpoints_every_few_rounds_resume_as_exactly(tmp_path: Path) -> None:
    base = tmp_path / "base"
    words = ["privacy=user", *SETTINGS, "federation.num_rounds=7", "checkpoint.every=3"]
    run_federation(compose([*words, f"run_dir={base}"]), Stopper(5))
    assert [p.name for p in sorted(base.glob("round_*"))] == ["round_0000", "round_0003"]
    assert len(list((base / "private" / "releases").iterdir())) == 5, "as far back as one can go"
    other = tmp_path / "other"
    shutil.copytree(base, other, symlinks=True)
    for file in (other / "private" / "releases").iterdir():
        assert file.name.startswith("charge_")
    resume(base)
    assert charges(base) == [1, 2, 3, 4, 5, 6, 7]
    sorted((other / "private" / "releases").iterdir())[3].unlink()
    with pytest.raises(LedgerError, match="is missing, but round 4 was released"):
        resume(other)


@pytest.mark.parametrize(
    ("point", "words", "rounds"),
    [
        ("phase:written", ["federation.num_rounds=6"], 6),
        ("config:written", ["training.lr=0.01"], 4),
        ("rewound", ["resume=round:1"], 4),
        ("closed", [], 4),
    ],
)
def test_a_crash_while_a_run_goes_on_or_ends_loses_nothing(
    point: str, words: list[str], rounds: int, copy: Callable[[str], Path]
) -> None:
    path = copy("hybrid")
    in_child_that_dies_at(point, lambda: resume(path, *words))
    if point == "closed":
        with pytest.raises(RunFinished):
            resume(path)
    else:
        assert resume(path).rounds == rounds
    assert charges(path) == list(range(1, rounds + 1))
    assert not list(LedgerView(path).problems())
    assert LedgerView(path).history.phase == (1 if rounds == 6 else 0)
    assert [f.name for f in (path / "private" / "secret").iterdir()] == ["ledger.key"]
    assert ("lr: 0.01\n" in (path / "config.yaml").read_text()) is (point == "config:written")


def test_without_privacy_an_extended_run_that_is_killed_goes_on(
    copy: Callable[[str], Path],
) -> None:
    path = copy("none")
    resume(path)
    assert resume(path, "federation.num_rounds=8", display=Stopper(6)).rounds == 6
    assert resume(path).rounds == 8


def test_the_best_round_survives_whatever_the_rhythm_of_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "run"
    more = ["federation.num_rounds=9", "checkpoint.every=4", "checkpoint.keep=1"]
    run_federation(compose(["privacy=none", *SETTINGS, *more, f"run_dir={path}"]), Stopper(7))
    held = json.loads((path / "last" / "checkpoint.json").read_text())["best"]
    assert (path / "best").resolve().name == f"round_{held['round']:04d}"
    assert resume(path).rounds == 9
    other = tmp_path / "other"
    shutil.copytree(path, other, symlinks=True)
    assert resume(other, "resume=best", "federation.num_rounds=12").rounds == 12


def test_the_best_of_every_kept_checkpoint_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    scores = iter([0.1, 0.5, 0.2, 0.2, 0.2, 0.9, 0.1, *[0.1] * 20])
    monkeypatch.setattr(
        server_run.ServerRun, "_evaluate", lambda *_: {"balanced_accuracy": next(scores)}
    )
    more = ["federation.num_rounds=9", "federation.client_evaluate_every=0", f"run_dir={path}"]
    run_federation(compose(["privacy=none", *SETTINGS, *more]), Stopper(6))
    assert {int(p.name[6:]) for p in path.glob("round_*")} == {1, 4, 5, 6}
    assert (path / "best").resolve().name == "round_0005"
    assert resume(path, "resume=round:4").selected_round == 1


@pytest.mark.parametrize("style", ["none", "sample", "hybrid"])
def test_with_one_checkpoint_kept_a_lost_commit_loses_no_run(style: str, tmp_path: Path) -> None:
    """A power cut takes what was not on disk: the ledger up to its durable head stays."""
    path = tmp_path / "run"
    words = [f"privacy={style}", *SETTINGS, "checkpoint.keep=1", f"run_dir={path}"]
    heads: list[int] = []

    class Watch(Stopper):
        def round(self, record: RoundRecord) -> None:
            heads.append(stores[-1].ledger.durable_head.number)
            super().round(record)

    stores = []
    original = server_run.RunStore.create
    patch = pytest.MonkeyPatch()
    patch.setattr(
        server_run.RunStore, "create", lambda config: stores.append(original(config)) or stores[-1]
    )
    run_federation(compose(words), Watch(2))
    patch.undo()
    ledger = path / "private" / "ledger.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join(lines[: heads[-1] + 1]))
    assert resume(path).stopped == "completed"
    assert charges(path) == ([1, 2, 3, 4] if style != "none" else [])


@pytest.mark.parametrize("style", ["sample", "hybrid"])
def test_another_way_to_compute_gradients_is_another_round(
    style: str, copy: Callable[[str], Path]
) -> None:
    path = copy(style)
    resume(path, "resume=round:1", "privacy.sample.grad_mode=functorch", display=Stopper(2))
    assert charges(path) == [1, 2, 2]
    rows = (path / "private" / "rounds.jsonl").read_text().splitlines()
    assert json.loads(rows[-1])["failed"] == [], "clients and server agree that it is new"


def test_clients_follow_a_server_back_to_a_round_that_they_had_left(tmp_path: Path) -> None:
    path = tmp_path / "run"
    fixed = ["privacy.sample.noise_multiplier=5", "privacy.sample.target_epsilon=null"]
    words = ["privacy=sample", *SETTINGS, *fixed, "training.lr=0.05", f"run_dir={path}"]
    run_federation(compose(words), Stopper(2))
    in_child_that_dies_at("training:before", lambda: resume(path))
    resume(path, "training.lr=0.01", display=Stopper(3))
    resume(path, "resume=round:2", "training.lr=0.05", display=Stopper(3))
    rows = (path / "private" / "rounds.jsonl").read_text().splitlines()
    assert json.loads(rows[-1])["failed"] == []
    assert charges(path) == [1, 2, 3, 3], "each of the two rounds 3 is paid for once"


def test_without_a_target_going_back_is_never_over_budget(tmp_path: Path) -> None:
    path = tmp_path / "run"
    fixed = ["privacy.sample.noise_multiplier=5", "privacy.sample.target_epsilon=null"]
    run_federation(compose(["privacy=sample", *SETTINGS, *fixed, f"run_dir={path}"]), Stopper(3))
    resume(path, "resume=round:1", "training.lr=0.011", display=Stopper(3))
    assert resume(path, "resume=round:1", "training.lr=0.012").stopped == "completed"
    assert charges(path) == [1, 2, 3, 2, 3, 2, 3, 4]
    assert not list(LedgerView(path).problems())


def test_a_run_can_be_ended_where_it_stands(copy: Callable[[str], Path]) -> None:
    for style in ("sample", "hybrid", "none"):
        path = copy(style)
        assert resume(path, "federation.num_rounds=2").stopped == "completed"
        assert LedgerView(path).history.closed == "completed"
        assert LedgerView(path).history.phase == 0


def test_a_client_that_answers_again_is_charged_again_and_shown(
    copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dp_fedmed.site.ledger import ClientLedger

    path = copy("hybrid")
    monkeypatch.setattr(ClientLedger, "answer", lambda *_: 2)
    resume(path, display=Stopper(3))
    view = LedgerView(path)
    again = [r for r in view.ledger.records if r.kind == CHARGE and r.body["again"]]
    assert len(again) == 4
    assert not list(view.problems()), "what is published is at least what was realised"
