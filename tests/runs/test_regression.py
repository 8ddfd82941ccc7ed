"""Whole runs of a regression in every style and topology, and what is made of them afterwards."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dp_fedmed.assemble import client_runtime
from dp_fedmed.cli import main
from dp_fedmed.commands.report import write_report
from dp_fedmed.config import better, compose
from dp_fedmed.data import load_data
from dp_fedmed.data.registry import refuse_other_kind
from dp_fedmed.errors import ConfigError
from dp_fedmed.evidence.finished_run import FinishedRun
from dp_fedmed.evidence.membership import attack_run
from dp_fedmed.evidence.reconstruction import compose_for
from dp_fedmed.launch import run_federation
from dp_fedmed.learning.fairness import fairness
from dp_fedmed.learning.local_only import over_clients
from dp_fedmed.reporting.figures import run_figures
from dp_fedmed.reporting.run_facts import read_run
from dp_fedmed.run.results import RunResult
from dp_fedmed.site import runtime

WORDS = {
    "none": ["privacy=none", "federation.client_evaluate_every=1"],
    "sample": ["privacy=sample"],
    "user": ["privacy=user"],
    "hybrid": ["privacy=hybrid"],
    "centralized": ["privacy=sample", "federation=centralized"],
    "local_only": ["privacy=none", "federation=local_only"],
}
COMMON = [
    *("task=diabetes", "federation.num_clients=4", "federation.num_rounds=2", "engine.workers=1"),
]


@pytest.fixture(autouse=True, scope="module")
def without_pictures() -> None:
    """Partitions are looked at here."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RunResult]:
    """A finished run of each kind, made once; not to be changed."""
    results: dict[str, RunResult] = {}

    def make(kind: str) -> RunResult:
        if kind not in results:
            path = tmp_path_factory.mktemp("regression") / kind
            results[kind] = run_federation(compose([*COMMON, *WORDS[kind], f"run_dir={path}"]))
        return results[kind]

    return make


def read(path: Path) -> dict[str, object]:
    held = json.loads(path.read_text())
    assert isinstance(held, dict)
    return held


@pytest.mark.parametrize("kind", list(WORDS))
def test_a_regression_runs_in_every_style_and_topology(
    kind: str, made: Callable[[str], RunResult]
) -> None:
    result = made(kind)
    assert (result.stopped, result.rounds) == ("completed", 2)
    for metrics in (result.val, result.test):
        assert {"rmse", "mae", "r2", "loss"} <= metrics.keys()
        assert 0.0 < metrics["mae"] <= metrics["rmse"]
    if kind == "local_only":
        assert metrics["rmse/clients_worst"] >= metrics["rmse/clients_best"]
        return
    evaluation = read(result.run_dir / "evaluation.json")
    assert "confusion" not in evaluation
    (target,) = evaluation["targets"]  # type: ignore[misc]
    assert target["metrics"]["rmse"] == pytest.approx(160.5 * result.test["rmse"], rel=1e-4)
    report = read(result.run_dir / "privacy_report.json")
    said = json.dumps(report)
    assert ("holds test records' targets" in said) is (report["style"] != "none")


def test_the_best_model_is_the_one_of_the_lowest_error(
    made: Callable[[str], RunResult], tmp_path: Path
) -> None:
    result = made("none")
    lines = (result.run_dir / "metrics.jsonl").read_text().splitlines()
    rounds = [json.loads(line) for line in lines if "round" in json.loads(line)]
    errors = {row["round"]: row["val"]["rmse"] for row in rounds}
    assert result.selected_round == min(errors, key=lambda at: errors[at])
    assert len(set(errors.values())) == 3
    own = rounds[-1]["clients"].values()
    assert rounds[-1]["fairness"]["worst"] == max(metrics["rmse"] for metrics in own)


def test_less_error_is_better_wherever_a_best_is_named() -> None:
    assert [better(name) for name in ("rmse", "mae", "loss", "r2", "dice")] == [-1, -1, -1, 1, 1]
    spread = over_clients([{"rmse": 0.5}, {"rmse": 1.0}], "rmse", sign=better("rmse"))
    assert (spread["rmse/clients_worst"], spread["rmse/clients_best"]) == (1.0, 0.5)
    assert fairness([-0.5, 0.5], sign=better("r2")) == {"worst": -0.5, "gap": 1.0}


def test_a_resumed_regression_is_the_uninterrupted_one(
    made: Callable[[str], RunResult], tmp_path: Path
) -> None:
    words = [*COMMON, *WORDS["none"], f"run_dir={tmp_path}/cut"]
    run_federation(compose([*words, "federation.num_rounds=1"]))
    resumed = run_federation(compose([*words, "resume=last"]))
    assert resumed.rounds == 2
    assert resumed.test == made("none").test


def test_the_page_shows_predictions_and_no_confusion_matrix(
    made: Callable[[str], RunResult], tmp_path: Path
) -> None:
    run = made("sample").run_dir
    page = write_report(run, output=tmp_path / "page.html").read_text()
    assert "Predicted against true" in page
    assert "RMSE by round" in page
    assert "In the target&#39;s unit" in page or "In the target's unit" in page
    assert "What is taken for what" not in page
    drawn = {one.name: one.caption for one in run_figures(read_run(run))}
    assert "predictions" in drawn
    assert drawn["metric"].endswith("Lower is better.")
    without = write_report(run, output=tmp_path / "other.html", pictures=False)
    assert "Predicted against true" not in without.read_text()
    assert not (without.with_suffix("") / "figures" / "predictions.png").exists()


def test_a_broken_evaluation_is_named_and_not_drawn(
    made: Callable[[str], RunResult], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(made("sample").run_dir, run, symlinks=True)
    for targets in ([], [{"truth": [1.0], "predicted": [], "range": [0, 1]}], 3, [{"truth": "x"}]):
        (run / "evaluation.json").write_text(json.dumps({"targets": targets}))
        facts = read_run(run, ledger=False)
        assert "evaluation.json holds no predictions" in facts.problems
        assert "predictions" not in [drawn.name for drawn in run_figures(facts)]


def test_the_partition_counts_ranges_of_the_target(made: Callable[[str], RunResult]) -> None:
    clients = read(made("none").run_dir / "partition.json")["clients"]
    for row in clients:  # type: ignore[attr-defined]
        assert next(iter(row["classes"])) == "25–105.2 points"
        assert sum(row["classes"].values()) == row["records"]


def test_a_membership_attack_on_a_regression(made: Callable[[str], RunResult]) -> None:
    attack = attack_run(FinishedRun.open(made("none").run_dir))
    assert 0.3 < attack.per_class.roc.auc < 0.7
    assert attack.claim is None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["audit", "task=diabetes", "privacy=sample", "--canaries", "black-box"], "class labels"),
        (["run", "task=diabetes", "task.loss=dice_ce"], "task.loss=mse or task.loss=huber"),
        (["run", "task=diabetes", "task.metric=accuracy"], "rmse, mae, r2, loss"),
        (["run", "task=digits", "task.loss=mse"], "task.loss=cross_entropy"),
    ],
)
def test_what_does_not_fit_a_regression_is_refused(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) != 0
    assert says in capsys.readouterr().err


def test_reconstruction_needs_classes() -> None:
    with pytest.raises(ConfigError, match="numbers instead of classes"):
        compose_for(["task=diabetes"], ("privacy=none",))


@pytest.mark.parametrize(
    ("task", "data", "found"),
    [
        ("diabetes", "breast_cancer", "one class per record"),
        ("breast_cancer", "diabetes", "numbers"),
        ("cells", "diabetes", "numbers"),
        ("textures", "diabetes", "numbers"),
        ("diabetes", "cells", "masks"),
    ],
)
def test_a_task_refuses_labels_of_another_kind(task: str, data: str, found: str) -> None:
    config = compose([f"task={task}", "privacy=none", f"data.name={data}"])
    with pytest.raises(ConfigError, match=f"labels are {found}"):
        refuse_other_kind(config, load_data(config.data, seed=0))


def test_a_site_whose_labels_are_classes_does_not_train_a_regression(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = compose([*COMMON, "privacy=sample"])
    classes = load_data(compose(["task=breast_cancer", "privacy=none"]).data, seed=0)
    monkeypatch.setattr(runtime, "load_data", lambda *_, **__: classes)
    with pytest.raises(ConfigError, match="labels are one class per record"):
        client_runtime(config).records({"client-id": "north"})
