"""Going on with a run: exactly where it may, with one clear sentence where it may not."""

from __future__ import annotations

import errno
import json
import os
import pickle
import random
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dp_fedmed.config import Config, ConfigError, compose
from dp_fedmed.federation import durable, server_run
from dp_fedmed.federation.checkpoint import CheckpointError
from dp_fedmed.federation.durable import RunLock, RunLocked
from dp_fedmed.federation.engines import run_federation
from dp_fedmed.federation.journal import CHARGE, COMMIT, REWIND
from dp_fedmed.federation.ledger_check import LedgerView
from dp_fedmed.federation.resume import RunFinished, resume_run
from dp_fedmed.federation.server_run import RunResult
from dp_fedmed.federation.strategy import RoundRecord
from dp_fedmed.privacy.keys import MacKey
from dp_fedmed.privacy.ledger import Ledger, LedgerError
from dp_fedmed.reporting.display import LogDisplay

REFUSALS = (ConfigError, LedgerError, CheckpointError, RunLocked)
SETTINGS = [
    *("federation.num_clients=4", "federation.num_rounds=4", "engine.workers=1"),
    *("model._target_=dp_fedmed.models.MLP", "model.args.hidden=[4]", "training.local_steps=1"),
    *("training.local_epochs=1", "training.batch_size=32", "federation.sample_rate=1.0"),
    *("privacy.sample.grad_mode=hooks", "federation.evaluate_every=1"),
]


class Stopper(LogDisplay):
    """Presses Ctrl-C after a round."""

    def __init__(self, after: int) -> None:
        self.after = after

    def round(self, record: RoundRecord) -> None:
        if record.server_round == self.after:
            raise KeyboardInterrupt


@pytest.fixture(autouse=True, scope="module")
def without_pictures() -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setattr(server_run, "plot_metrics", lambda *_: None)
    patch.setattr(server_run.ServerRun, "_describe_clients", lambda *_: None)
    yield
    patch.undo()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A run of each style that was interrupted after two of its four rounds, made once."""
    made: dict[str, Path] = {}

    def make(style: str) -> Path:
        if style not in made:
            path = tmp_path_factory.mktemp("stopped") / style
            config = compose([f"privacy={style}", *SETTINGS, f"run_dir={path}"])
            result = run_federation(config, Stopper(2))
            assert result.stopped == "interrupted after round 2"
            made[style] = path
        return made[style]

    return make


@pytest.fixture
def copy(stopped: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of an interrupted run, to do as one likes with."""
    made = iter(range(1000))

    def make(style: str) -> Path:
        path = tmp_path / f"copy{next(made)}"
        shutil.copytree(stopped(style), path, symlinks=True)
        return path

    return make


def resume(path: Path, *words: str, display: LogDisplay | None = None) -> RunResult:
    chosen = [] if any(word.startswith("resume=") for word in words) else ["resume=last"]
    return run_federation(compose([f"run_dir={path}", *chosen, *words]), display)


def charges(path: Path) -> list[int]:
    return [r.body["round"] for r in LedgerView(path).ledger.records if r.kind == CHARGE]


def model_bytes(path: Path) -> bytes:
    return (path / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def references(
    stopped: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[bytes, dict[str, float]]]:
    """The final model and ε of the interrupted run when it simply goes on."""
    made: dict[str, tuple[bytes, dict[str, float]]] = {}

    def make(style: str) -> tuple[bytes, dict[str, float]]:
        if style not in made:
            path = tmp_path_factory.mktemp("reference") / style
            shutil.copytree(stopped(style), path, symlinks=True)
            assert resume(path).stopped == "completed"
            made[style] = (model_bytes(path), LedgerView(path).epsilons())
        return made[style]

    return make


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


@pytest.mark.parametrize("style", ["sample", "hybrid"])
def test_more_rounds_share_what_is_left_of_the_budget(
    style: str, copy: Callable[[str], Path]
) -> None:
    path = copy(style)
    result = resume(path, "federation.num_rounds=8")
    assert (result.stopped, result.rounds) == ("completed", 8)
    view = LedgerView(path)
    assert charges(path) == list(range(1, 9))
    assert view.history.phase == 1
    assert view.epsilons()["sample"] <= 3.0
    assert view.epsilons()["sample"] > 2.9
    report = json.loads((path / "privacy_report.json").read_text())["guarantees"][0]
    assert len(report["clients"]["client-00000"]["history"]) == 2, "two phases, two σ"
    assert report["epsilon"] <= 3.0


def test_a_finished_run_is_extended_as_a_new_phase_if_its_budget_grows(
    copy: Callable[[str], Path],
) -> None:
    path = copy("sample")
    resume(path)
    with pytest.raises(ConfigError, match=r"target_epsilon=3 is spent.*new_phase=true"):
        resume(path, "federation.num_rounds=6")
    assert not list(LedgerView(path).problems()), "a refused extension changes nothing"
    more = ["federation.num_rounds=6", "privacy.sample.target_epsilon=5"]
    with pytest.raises(ConfigError, match=r"rests on privacy.sample.target_epsilon=3.0 \(now 5.0"):
        resume(path, *more)
    assert resume(path, *more, "new_phase=true").rounds == 6
    view = LedgerView(path)
    assert 4.9 < view.epsilons()["sample"] <= 5.0
    assert view.history.phase == 1


@pytest.mark.parametrize(
    "change",
    [
        *("privacy.sample.target_delta=1e-6", "privacy.sample.max_grad_norm=2"),
        *("privacy.sample.noise_multiplier=9", "training.batch_size=16"),
        *("federation.max_participations=3", "privacy.accountant=pld"),
    ],
)
def test_what_the_guarantee_rests_on_changes_only_in_a_declared_phase(
    change: str, copy: Callable[[str], Path]
) -> None:
    path = copy("sample")
    with pytest.raises(ConfigError, match=rf"rests on .*{change.split('=')[0]}"):
        resume(path, change)


@pytest.mark.parametrize(
    "change",
    [
        *("seed=1", "data.partition.name=dirichlet", "model.args.hidden=[5]", "task=digits"),
        *("federation.num_clients=5", "data.val_fraction=0.3", "privacy=hybrid"),
    ],
)
@pytest.mark.parametrize("declared", [[], ["new_phase=true"]])
def test_other_data_clients_models_or_styles_are_another_run(
    change: str, declared: list[str], copy: Callable[[str], Path]
) -> None:
    """A record would be at another client, and composing by client would count too little."""
    with pytest.raises(ConfigError, match=r"is another run|cannot replace"):
        resume(copy("sample"), change, *declared)


def test_a_new_phase_adds_to_what_was_spent(copy: Callable[[str], Path]) -> None:
    path = copy("sample")
    before = LedgerView(path).epsilons()["sample"]
    change = ["privacy.sample.noise_multiplier=20", "privacy.sample.target_epsilon=null"]
    assert resume(path, *change, "new_phase=true").stopped == "completed"
    view = LedgerView(path)
    assert view.epsilons()["sample"] > before
    sigmas = [sigma for sigma, _, _ in view.accountant.get_history("record", "client-00000")]  # type: ignore[union-attr]
    assert 20.0 in sigmas
    assert len(sigmas) == 2


def test_steering_may_change_and_is_said(
    copy: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    path = copy("sample")
    assert resume(path, "training.lr=0.01", "engine.workers=2").stopped == "completed"
    assert charges(path) == [1, 2, 3, 4]


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
    from dp_fedmed.federation.strategy import DPStrategy

    path = copy("user")
    resume(path, display=Stopper(3))
    original = DPStrategy._contribution

    def without_one(self, name, reply, model):  # type: ignore[no-untyped-def]
        return None if name == "client-00001" else original(self, name, reply, model)

    monkeypatch.setattr(DPStrategy, "_contribution", without_one)
    before = load_file(path / "round_0003" / "model.safetensors")
    resume(path, "resume=round:1", display=Stopper(3))
    after = load_file(path / "round_0003" / "model.safetensors")
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert charges(path) == [1, 2, 3]


def test_a_release_that_is_on_disk_is_taken_from_there_and_nobody_is_asked(
    copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dp_fedmed.federation.strategy import DPStrategy

    path = copy("hybrid")
    asked: list[tuple[int, int]] = []
    original = DPStrategy._messages

    def counting(self, kind, names, server_round, *rest):  # type: ignore[no-untyped-def]
        messages = original(self, kind, names, server_round, *rest)
        asked.append((server_round, len(messages)))
        return messages

    monkeypatch.setattr(DPStrategy, "_messages", counting)
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
    result = run_federation(compose([*SETTINGS, *more]))
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


def damage(path: Path, how: str) -> None:
    ledger = path / "private" / "ledger.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True) if ledger.exists() else []
    secret = path / "private" / "secret"
    checkpoint = path / "round_0002" / "checkpoint.json"
    match how:
        case "ledger missing":
            ledger.unlink()
        case "ledger shorter":
            ledger.write_bytes(b"".join(lines[:4]))
        case "ledger edited":
            ledger.write_bytes(b"".join(lines).replace(b'"round":1', b'"round":9', 1))
        case "ledger reordered":
            ledger.write_bytes(b"".join([lines[0], lines[2], lines[1], *lines[3:]]))
        case "ledger of another run":
            shutil.rmtree(secret)
            secret.mkdir(mode=0o700)
            key = MacKey.create(secret / "ledger.key")
            ledger.unlink()
            Ledger(ledger, key).append("OPEN", {"schema": 1, "run": "x", "config": "seed: 0\n"})
        case "ledger newer":
            key = MacKey.load(secret / "ledger.key")
            ledger.unlink()
            Ledger(ledger, key).append("OPEN", {"schema": 2, "run": "x", "config": ""})
        case "checkpoint changed":
            model = checkpoint.parent / "model.safetensors"
            arrays = load_file(model)
            save_file({name: value * 2 for name, value in arrays.items()}, model)
        case "checkpoint half":
            model = checkpoint.parent / "model.safetensors"
            model.write_bytes(model.read_bytes()[:100])
        case "checkpoint missing":
            shutil.rmtree(checkpoint.parent)
        case "checkpoint newer":
            described = json.loads(checkpoint.read_text())
            checkpoint.write_text(json.dumps({**described, "schema": 2}))
        case "checkpoint edited":
            checkpoint.write_text(checkpoint.read_text().replace('"round": 2', '"round": 3'))
        case "checkpoint empty":
            checkpoint.write_text("")
        case "noise key missing":
            (secret / "noise_0.key").unlink()
        case "noise key readable":
            (secret / "noise_0.key").chmod(0o644)
        case "noise key other":
            file = secret / "noise_0.key"
            text = file.read_text()
            file.write_text(text[:-3] + ("0" if text[-3] != "0" else "1") + text[-2:])
        case "ledger key missing":
            (secret / "ledger.key").unlink()
        case "ledger key readable":
            (secret / "ledger.key").chmod(0o640)
        case "config edited":
            file = path / "config.yaml"
            file.write_text(file.read_text().replace("  lr: ", "  lr: 1"))
        case "config missing":
            (path / "config.yaml").unlink()
        case "client ledger edited":
            file = next((path / "private" / "clients").iterdir())
            file.write_bytes(file.read_bytes().replace(b'"steps":1', b'"steps":0', 1))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("ledger missing", r"ledger\.jsonl is missing, so what was spent is unknown"),
        ("ledger shorter", r"ledger\.jsonl is shorter than .*round_000\d/checkpoint\.json says"),
        ("ledger edited", r"ledger\.jsonl: record \d was edited, reordered"),
        ("ledger reordered", r"ledger\.jsonl: record 1 was edited, reordered"),
        ("ledger of another run", r"config\.yaml was edited"),
        ("ledger newer", r"ledger\.jsonl has schema 2, this version reads up to 1: update"),
        ("checkpoint changed", r"round_0002/model\.safetensors was changed or damaged"),
        ("checkpoint half", r"round_0002/model\.safetensors was changed or damaged"),
        ("checkpoint missing", r"round_0002/checkpoint\.json is missing: restore it, or resume"),
        ("checkpoint newer", r"checkpoint\.json has schema 2, this version reads up to 1: update"),
        ("checkpoint edited", r"checkpoint\.json is not what the ledger says was written"),
        ("checkpoint empty", r"round_0002/checkpoint\.json is not a checkpoint"),
        ("noise key missing", r"noise_0\.key is missing, so no round can be repeated exactly"),
        ("noise key readable", r"noise_0\.key has mode 0644, so others may have read"),
        ("noise key other", r"noise_0\.key is not the noise key that the phase began with"),
        ("ledger key missing", r"ledger\.key is missing, so the ledger cannot be checked"),
        ("ledger key readable", r"ledger\.key has mode 0640"),
        ("config edited", r"config\.yaml was edited: restore it, and give changes on the command"),
        ("config missing", r"config\.yaml is missing"),
        ("client ledger edited", r"client-\d+\.jsonl: record \d was edited"),
    ],
)
def test_what_cannot_be_trusted_is_refused_in_one_sentence(
    how: str, said: str, copy: Callable[[str], Path]
) -> None:
    path = copy("hybrid")
    damage(path, how)
    with pytest.raises(REFUSALS, match=said) as refused:
        resume_run(compose_as_given(path))
    assert "\n" not in str(refused.value)


def compose_as_given(path: Path) -> Config:
    """The run's settings; without its file, as somebody would give them again."""
    if (path / "config.yaml").exists():
        return compose([f"run_dir={path}", "resume=last"])
    return compose(["privacy=hybrid", *SETTINGS, f"run_dir={path}", "resume=last"])


def in_child_that_dies_at(point: str, work: Callable[[], object]) -> None:
    pid = os.fork()
    if pid == 0:

        def die(reached: str) -> None:
            if reached == point:
                os.kill(os.getpid(), signal.SIGKILL)

        durable.at_point = die
        try:
            work()
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


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


def test_a_refused_command_changes_nothing(copy: Callable[[str], Path]) -> None:
    path = copy("sample")
    resume(path)
    before = {name: (path / name).read_bytes() for name in files_of(path)}
    for words in (
        ["resume=round:2", "federation.num_rounds=5"],
        ["federation.num_rounds=9"],
        ["new_phase=true", "federation.num_rounds=9"],
        ["training.lr=0.5", "federation.num_rounds=9"],
    ):
        with pytest.raises(ConfigError, match="target_epsilon=3 is spent"):
            resume(path, *words)
        after = {name: (path / name).read_bytes() for name in files_of(path)}
        assert before == after, words


def test_a_damaged_last_checkpoint_can_be_left_behind(copy: Callable[[str], Path]) -> None:
    path = copy("hybrid")
    (path / "round_0002" / "checkpoint.json").write_text("{")
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        resume(path)
    assert resume(path, "resume=round:1").stopped == "completed"
    assert charges(path) == [1, 2, 3, 4]


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
    run_federation(compose([*SETTINGS, *more, f"run_dir={path}"]), Stopper(7))
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
    run_federation(compose([*SETTINGS, *more]), Stopper(6))
    assert {int(p.name[6:]) for p in path.glob("round_*")} == {1, 4, 5, 6}
    assert (path / "best").resolve().name == "round_0005"
    assert resume(path, "resume=round:4").selected_round == 1


def test_a_new_phase_clips_to_its_own_norm(copy: Callable[[str], Path]) -> None:
    path = copy("user")
    seen: list[float] = []
    from dp_fedmed.federation.client_level import ClientLevelMechanism

    original = ClientLevelMechanism.start

    def noting(self, model):  # type: ignore[no-untyped-def]
        seen.append(self.clip_norm)
        original(self, model)

    patch = pytest.MonkeyPatch()
    patch.setattr(ClientLevelMechanism, "start", noting)
    resume(path, "new_phase=true", "privacy.user.max_grad_norm=0.125")
    patch.undo()
    assert seen == [0.125, 0.125]


def test_participations_count_over_phases(tmp_path: Path) -> None:
    path = tmp_path / "run"
    fixed = ["privacy.sample.noise_multiplier=5", "privacy.sample.target_epsilon=null"]
    words = ["privacy=sample", *SETTINGS, *fixed, "federation.max_participations=3"]
    result = run_federation(compose([*words, f"run_dir={path}"]))
    assert (result.rounds, result.stopped[:6]) == (3, "budget")
    with pytest.raises(RunFinished):
        resume(path)
    with pytest.raises(ConfigError, match="max_participations=3 is used up by every client"):
        resume(path, "federation.num_rounds=9")
    assert charges(path) == [1, 2, 3]
    more = ["federation.num_rounds=9", "federation.max_participations=5", "new_phase=true"]
    assert resume(path, *more).rounds == 5


def test_a_sampler_that_does_not_compose_is_refused_before_anything_is_written(
    copy: Callable[[str], Path],
) -> None:
    path = copy("user")
    with pytest.raises(ConfigError, match="the two do not compose"):
        resume(path, "federation.sampler=fixed", "new_phase=true")
    assert resume(path).stopped == "completed"


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


def test_a_run_whose_plan_is_refused_leaves_no_directory(tmp_path: Path) -> None:
    words = ["privacy=sample", *SETTINGS, f"run_dir={tmp_path}/run"]
    with pytest.raises(ConfigError, match="target_epsilon"):
        run_federation(compose([*words, "privacy.sample.target_epsilon=0.001"]))
    assert not (tmp_path / "run").exists()
    assert run_federation(compose(words)).stopped == "completed"


def test_a_client_that_answers_again_is_charged_again_and_shown(
    copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dp_fedmed.federation.client_ledger import ClientLedger

    path = copy("hybrid")
    monkeypatch.setattr(ClientLedger, "answer", lambda *_: 2)
    resume(path, display=Stopper(3))
    view = LedgerView(path)
    again = [r for r in view.ledger.records if r.kind == CHARGE and r.body["again"]]
    assert len(again) == 4
    assert not list(view.problems()), "what is published is at least what was realised"


def test_a_client_cannot_stall_the_server_with_charges() -> None:
    from dp_fedmed.federation.privacy_guard import PrivacyGuard
    from dp_fedmed.federation.privacy_plan import ClientPlan, PrivacyPlan

    own = ClientPlan(records=9, sample_rate=0.5, steps=1, participations=9, noise_multiplier=2.0)
    plan = PrivacyPlan(delta_sample=1e-5, delta_user=None, clients={"a": own}, user_event=None)
    guard = PrivacyGuard(compose(["privacy=sample"]), plan)
    for charges_told in (10**9, 0, "many", -1):
        with pytest.raises(ValueError, match=r"answered|not a count"):
            guard.check_reply("a", {**guard.told("a"), "charges": charges_told})


def test_settings_that_a_crash_kept_from_their_file_come_from_the_ledger(
    copy: Callable[[str], Path],
) -> None:
    path = copy("sample")
    before = (path / "config.yaml").read_text()
    change = ["new_phase=true", "privacy.sample.target_epsilon=7", "training.lr=0.01"]
    resume(path, *change, display=Stopper(3))
    after = (path / "config.yaml").read_text()
    assert after != before
    (path / "config.yaml").write_text(before)  # as if killed before it was written
    assert resume(path).stopped == "completed"
    assert (path / "config.yaml").read_text() == after
    assert LedgerView(path).epsilons()["sample"] > 6.5


@pytest.mark.parametrize("how", ["noise key missing", "noise key readable"])
def test_a_lost_key_can_be_replaced_in_a_new_phase(how: str, copy: Callable[[str], Path]) -> None:
    path = copy("hybrid")
    damage(path, how)
    assert resume(path, "new_phase=true").stopped == "completed"
    assert LedgerView(path).history.phase == 1
    assert not list(LedgerView(path).problems())


def test_a_torn_last_line_is_dropped_with_a_notice(
    copy: Callable[[str], Path],
    references: Callable[[str], tuple[bytes, dict[str, float]]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = copy("hybrid")
    with open(path / "private" / "ledger.jsonl", "ab") as file:
        file.write(b'{"n":9,"kind":"CHARGE","body":{"rou')
    assert resume(path).stopped == "completed"
    assert "35 bytes was never written to its end and is dropped" in caplog.text
    assert (model_bytes(path), LedgerView(path).epsilons()) == references("hybrid")


def test_a_model_with_nan_is_refused(copy: Callable[[str], Path]) -> None:
    from dp_fedmed.federation.checkpoint import from_bytes, to_bytes

    content = to_bytes({"w": np.array([1.0, np.nan], dtype=np.float32)})
    with pytest.raises(CheckpointError, match=r"model.safetensors: tensor 'w' holds NaN"):
        from_bytes(Path("model.safetensors"), content)


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, target: str) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return (open, (self.target, "w"))


def test_a_pickle_in_the_run_directory_is_never_opened(
    copy: Callable[[str], Path], tmp_path: Path
) -> None:
    path, target = copy("none"), tmp_path / "exploded"
    bomb = pickle.dumps(Bomb(str(target)))
    for place in (path, path / "round_0002", path / "private", path / "private" / "releases"):
        place.mkdir(exist_ok=True)
        for name in ("model.pt", "checkpoint.pt", "optimizer.pkl", "charge_000001.pt"):
            (place / name).write_bytes(bomb)
    assert resume(path).stopped == "completed"
    assert not target.exists()
    (path / "round_0004" / "model.safetensors").write_bytes(bomb)
    assert list(LedgerView(path).problems())
    assert not target.exists()


def test_two_processes_cannot_work_on_one_run(copy: Callable[[str], Path]) -> None:
    path = copy("sample")
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        RunLock(path)
        os.write(writer, b"x")
        signal.pause()
    os.read(reader, 1)
    try:
        with pytest.raises(RunLocked, match=r"in use by another process \(\.lock is locked\)"):
            resume(path)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    lock = RunLock(path)
    with pytest.raises(RunLocked):
        resume(path)
    lock.release()
    assert resume(path).stopped == "completed"


def test_changed_data_are_noticed(
    copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dp_fedmed.data import load_data

    def changed(config, seed):  # type: ignore[no-untyped-def]
        data = load_data(config, seed=seed)
        other = data.train.x.copy()
        other[0] += 1.0
        return replace(data, train=replace(data.train, x=other))

    path = copy("sample")
    monkeypatch.setattr(server_run, "load_data", changed)
    with pytest.raises(ConfigError, match=r"records of data\.name=breast_cancer have changed"):
        resume(path)


def test_a_full_disk_stops_the_run_and_leaves_what_was_committed(
    copy: Callable[[str], Path],
    references: Callable[[str], tuple[bytes, dict[str, float]]],
) -> None:
    """A limit on file sizes is the kernel's own refusal to write, met in the middle of a round."""
    path = copy("hybrid")
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

        def fill(point: str) -> None:
            if point == "release:before":
                resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))

        durable.at_point = fill
        try:
            stopped = resume(path).stopped
            os._exit(0 if "cannot be written (File too large)" in stopped else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert LedgerView(path).history.round == 2
    assert resume(path).stopped == "completed"
    assert charges(path) == [1, 2, 3, 4]
    assert (model_bytes(path), LedgerView(path).epsilons()) == references("hybrid")


def test_no_space_at_a_checkpoint_is_said_with_the_way_out(
    copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copy("none")

    def full(point: str) -> None:
        if point == "checkpoint:checkpoint.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(durable, "at_point", full)
    result = resume(path)
    assert "No space left on device" in result.stopped
    assert f"dp-fedmed resume {path}" in result.stopped
    assert not list(path.glob(".tmp-*"))
    monkeypatch.undo()
    assert LedgerView(path).history.round == 2


@pytest.mark.slow
@pytest.mark.parametrize("style", ["sample", "hybrid"])
def test_damage_anywhere_is_refused_or_changes_nothing(
    style: str,
    copy: Callable[[str], Path],
    references: Callable[[str], tuple[bytes, dict[str, float]]],
) -> None:
    """Delete, cut and flip every file of a run directory, at sampled places."""
    rng = random.Random(11)
    model, epsilons = references(style)
    names = files_of(copy(style))
    refused = 0
    for name in names:
        size = (copy(style) / name).stat().st_size
        places = {rng.randrange(size) for _ in range(3)} if size else set()
        for how, place in [
            ("delete", 0),
            *(("cut", p) for p in places),
            *(("flip", p) for p in places),
        ]:
            path = copy(style)
            file = path / name
            if how == "delete":
                file.unlink()
            elif how == "cut":
                os.truncate(file, place)
            else:
                content = bytearray(file.read_bytes())
                content[place] ^= 1 << rng.randrange(8)
                file.write_bytes(content)
            try:
                result = resume(path)
            except REFUSALS:
                refused += 1
                continue
            what = f"{how} {name} at {place}"
            assert result.stopped == "completed", what
            assert model_bytes(path) == model, what
            assert LedgerView(path).epsilons() == epsilons, what
    assert refused > len(names)


def files_of(path: Path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


def test_a_data_ledger_adds_up_what_runs_spent_on_the_same_data(tmp_path: Path) -> None:
    shared = ["data.id=biopsies", f"data_ledger={tmp_path}/shared.jsonl", "privacy=hybrid"]
    reports = []
    for number in range(3):
        path = tmp_path / f"run{number}"
        run_federation(compose([*SETTINGS, *shared, f"seed={number}", f"run_dir={path}"]))
        reports.append(json.loads((path / "privacy_report.json").read_text()))
    totals = [report["all_runs_on_this_data"] for report in reports]
    assert [total["runs"] for total in totals] == [1, 2, 3]
    alone = {g["unit"]: g["epsilon"] for g in reports[0]["guarantees"]}
    for unit in ("record", "client"):
        spent = [total[unit]["epsilon"] for total in totals]
        assert spent[0] == pytest.approx(alone[unit])
        assert spent[0] < spent[1] < spent[2] < 3 * spent[0]
    with pytest.raises(ConfigError, match=r"data\.id=chest-xrays"):
        compose([f"data_ledger={tmp_path}/shared.jsonl"])


def test_a_data_ledger_that_comes_late_or_is_lost_counts_everything_or_refuses(
    copy: Callable[[str], Path], tmp_path: Path
) -> None:
    path, shared = copy("hybrid"), tmp_path / "shared.jsonl"
    resume(path, f"data_ledger={tmp_path}/late.jsonl", "data.id=late")
    assert totals_agree(path)
    words = ["data.id=x", f"data_ledger={shared}", "privacy=hybrid", f"run_dir={tmp_path}/run"]
    run_federation(compose([*SETTINGS, *words, "federation.sample_rate=0.5"]), Stopper(2))
    shared.unlink()
    with pytest.raises(LedgerError, match=r"shared\.jsonl is missing, though"):
        resume(tmp_path / "run")
    (tmp_path / "shared.jsonl.key").unlink()
    resume(tmp_path / "run")
    assert totals_agree(tmp_path / "run"), "and tell no more of the cohorts than the report"
    with pytest.raises(ConfigError, match="is another run"):
        resume(tmp_path / "run", "data.id=y")


def totals_agree(path: Path) -> bool:
    """Whether one run's total is what its report says of it."""
    report = json.loads((path / "privacy_report.json").read_text())
    total = report["all_runs_on_this_data"]
    return all(
        total[guarantee["unit"]]["epsilon"] == pytest.approx(guarantee["epsilon"])
        for guarantee in report["guarantees"]
    )


def test_a_data_ledger_notices_a_copied_run_directory(tmp_path: Path) -> None:
    path, older = tmp_path / "run", tmp_path / "older"
    shared = ["data.id=biopsies", f"data_ledger={tmp_path}/shared.jsonl", "privacy=sample"]
    run_federation(compose([*SETTINGS, *shared, f"run_dir={path}"]), Stopper(2))
    shutil.copytree(path, older, symlinks=True)
    assert resume(path).stopped == "completed"
    with pytest.raises(LedgerError, match="the run directory is an older copy"):
        resume(older)
    (tmp_path / "shared.jsonl.key").unlink()
    with pytest.raises(LedgerError, match=r"shared\.jsonl\.key is missing"):
        resume(older)
