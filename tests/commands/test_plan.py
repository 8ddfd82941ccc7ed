"""`dp-fedmed plan`: the numbers of the run that it plans, without running it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dp_fedmed.assemble import make_learner
from dp_fedmed.assemble.advice import learner_advice
from dp_fedmed.cli import main
from dp_fedmed.config import Config, compose
from dp_fedmed.data import load_data
from dp_fedmed.launch import run_federation
from dp_fedmed.planning.forecast import forecast, simulated_records
from dp_fedmed.planning.plan import make_sampler

Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """Plans with `--json`."""

    def plan(*words: str) -> dict[str, Any]:
        code = main(["plan", "--json", *words])
        shown = capsys.readouterr()
        assert code == 0, shown.err
        made: dict[str, Any] = json.loads(shown.out)
        return made

    return plan


def reported(config: Config) -> dict[str, Any]:
    """Run it, and read what it says of its guarantees."""
    result = run_federation(config)
    report = json.loads((result.run_dir / "privacy_report.json").read_text())
    return {"rounds": result.rounds, **{g["unit"]: g for g in report["guarantees"]}}


TINY = [
    *("recipe=none", "federation.num_clients=4", "federation.num_rounds=2", "engine.workers=1"),
    *("model.args.hidden=[4]", "privacy.sample.grad_mode=hooks"),
]


@pytest.mark.parametrize("accountant", ["rdp", "tight"])
def test_a_run_spends_and_noises_just_as_planned(accountant: str, ask: Ask, tmp_path: Path) -> None:
    words = [
        *TINY,
        *("privacy=hybrid", "data.partition.name=size_skewed", "training.batch_size=32"),
        *(f"privacy.accountant={accountant}", "federation.sample_rate=0.7"),
    ]
    planned = ask(*words)["levels"]
    run = reported(compose([*words, f"run_dir={tmp_path}/run"]))
    clients = {name: row for row in planned["sample"]["clients"] for name in row["names"]}
    assert clients.keys() == run["record"]["clients"].keys()
    for name, real in run["record"]["clients"].items():
        for key in ("records", "sample_rate", "noise_multiplier", "steps", "rounds"):
            assert clients[name][key] == real[key], (name, key)
        assert clients[name]["epsilon"][accountant] == real["epsilon"]
    assert run["record"]["worst_client"] in clients
    assert planned["sample"]["delta"] == run["record"]["delta"]
    user, real = planned["user"], run["client"]
    for key in ("noise_multiplier", "sample_rate", "steps", "delta", "adjacency", "sampling"):
        assert user[key] == real[key], key
    assert user["epsilon"][accountant] == real["epsilon"]
    other = {"rdp": "pld", "tight": "rdp"}[accountant]
    assert user["epsilon"][other] == real["epsilon_by_other_accountant"][other]


def test_a_given_noise_ends_the_run_where_the_plan_says(ask: Ask, tmp_path: Path) -> None:
    words = [
        *(*TINY, "privacy=sample", "privacy.sample.target_epsilon=2", "federation.num_rounds=9"),
        *("privacy.sample.noise_multiplier=2", "federation.evaluate_every=0"),
        "privacy.accountant=rdp",
    ]
    planned = ask("--fast", *words)
    run = reported(compose([*words, f"run_dir={tmp_path}/run"]))
    assert 1 < planned["rounds"] == run["rounds"] < 9
    assert planned["levels"]["sample"]["rounds_within_target"] == run["rounds"]
    assert f"after round {run['rounds']} of 9" in planned["warnings"][0]
    for row in planned["levels"]["sample"]["clients"]:
        real = run["record"]["clients"][row["names"][0]]
        assert row["epsilon"]["rdp"] == real["epsilon"] <= 2.0


def test_a_fast_plan_imports_nothing_heavy_and_prints_json_only() -> None:
    words = ["--fast", "--json", "task=digits", "privacy=hybrid", "recipe=none"]
    probe = (
        f"import sys; from dp_fedmed.cli import main; code = main(['plan', *{words!r}]); "
        "heavy = {'torch', 'flwr', 'opacus', 'sklearn', 'pandas', 'matplotlib'} & set(sys.modules);"
        "assert not heavy, heavy; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["fast"] is True
    assert made["weights"] is None
    (row,) = [r for r in made["levels"]["sample"]["clients"] if r["binds"]]
    assert set(row["epsilon"]) == {"rdp", "tight"}
    others = [r for r in made["levels"]["sample"]["clients"] if not r["binds"]]
    assert all(set(r["epsilon"]) == {"rdp"} for r in others)


def test_what_is_suggested_does_what_it_says(ask: Ask) -> None:
    words = ["task=digits", "privacy=hybrid", "recipe=none", "federation.sample_rate=0.4"]
    words.append("privacy.accountant=rdp")
    made = ask(*words)
    found = {each["override"].split("=")[0]: each for each in made["suggestions"]}
    assert {
        "training.batch_size",
        "federation.num_clients",
        "federation.sample_rate",
        "federation.max_participations",
        "privacy.accountant",
    } <= found.keys()
    for each in made["suggestions"]:
        if each["override"].startswith("federation.num_clients") or each["level"] == "sample":
            continue  # these compare the client that binds, with its records as they are now
        then = ask("--fast", *words, each["override"])["levels"][each["level"]]
        assert each["noise_multiplier"][0] == made["levels"][each["level"]]["noise_multiplier"]
        assert then["noise_multiplier"] == pytest.approx(each["noise_multiplier"][1], rel=1e-9)
    batch = found["training.batch_size"]
    size = int(batch["override"].split("=")[1])
    then = ask("--fast", *words, f"training.batch_size={size}")["levels"]["sample"]
    assert then["noise_multiplier"] == pytest.approx(batch["noise_multiplier"][1], rel=1e-9)
    assert batch["noise_in_average"][1] < batch["noise_in_average"][0]


def test_warnings_are_for_those_who_need_them(ask: Ask) -> None:
    def said(*words: str) -> str:
        return "\n".join(ask(*words)["warnings"])

    assert said("privacy=sample") == ""
    assert "not below 1/74" in said("--fast", "privacy=sample", "privacy.sample.target_delta=0.1")
    few = said("privacy=user", "recipe=none", "federation.num_clients=5")
    assert "noise drowns the updates" in few
    assert "times the clients" in few
    fewest = said("--fast", "privacy=user", "federation.num_clients=2", "recipe=none",
                  "privacy.user.target_epsilon=1")  # fmt: skip
    assert "cohort is too small" in fewest
    wasteful = said("--fast", "privacy=sample", "recipe=none", "training.batch_size=1",
                    "privacy.sample.target_epsilon=8")  # fmt: skip
    assert "training.batch_size wastes budget" in wasteful
    assert "weak promise" in said("--fast", "privacy=sample", "privacy.sample.target_epsilon=20")
    assert "protects nobody" in said("--fast", "privacy=sample", "privacy.noise_seed=1")
    assert "max_participations" in said("--fast", "privacy=sample", "federation.sample_rate=0.5")


def test_a_target_that_no_round_fits_is_shown_and_warned_of(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["privacy.sample.noise_multiplier=0.1", "privacy.sample.target_epsilon=0.5"]
    assert main(["plan", "--fast", "privacy=sample", *words]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "ε by round no round fits the target" in shown
    assert "not a single round fits the target" in shown


def test_a_network_that_a_run_would_refuse_is_warned_of(ask: Ask) -> None:
    words = ["model._target_=tests.evidence.broken.Centred", "allow_code=[tests]", "recipe=none"]
    [said] = [w for w in ask("privacy=sample", *words)["warnings"] if "refused" in w]
    assert said.startswith("a run would be refused: model._target_ with task.loss couples records")
    assert "refused" not in str(ask("privacy=user", *words)["warnings"])


def test_an_anomaly_task_says_how_many_clients_it_needs(ask: Ask) -> None:
    words = ["task=textures", "privacy=user", "federation.num_clients=4", "data.num_records=60"]
    made = ask(*words)
    config = compose(words)
    data = load_data(config.data, seed=config.seed)
    plan = forecast(config, simulated_records(config, data)).plan
    assert plan is not None
    advice = learner_advice(config, make_learner(config, data), plan, make_sampler(config))
    assert advice is not None
    assert advice in made["warnings"]
    assert made["levels"]["user"]["steps"] == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--fsat"], "did you mean --fast?"),
        (["--multirun"], "plan has no flag --multirun"),
        (["--plot", "plan.pdf"], "is not a PNG"),
        (["--plot", "nowhere/plan.png"], "there is no folder"),
        (["--records", "12,many"], "for example --records 1200,400,90"),
        (["--records"], "for example --records 1200,400,90"),
        (["--records", "5,0"], "for example --records 1200,400,90"),
        (["--records", "50,60", "federation.num_clients=5"], "contradicts --records"),
        (["federation.num_rounds=3,5"], "a plan is for one run"),
        (["federation.num_round=3"], "did you mean 'federation.num_rounds'"),
        (["privacy=sample", "privacy.sample.target_delta=1.5"], "privacy.sample.target_delta=1.5"),
        (["privacy=sample", "privacy.sample.target_epsilon=nan"], "not a finite number"),
        (["privacy=sample", "privacy.sample.target_epsilon=0.001"], "cannot be met"),
        (["privacy=user", "privacy.user.target_epsilon=null"], "privacy.user.target_epsilon"),
        (["privacy=user", "privacy.user.clipping=adaptive", "federation.num_clients=5"], "cohort"),
        (["resume=last", "run_dir=/nowhere"], "a plan is for a new run"),
        (["task=medmnist", "privacy=sample"], "data.path is not set"),
        (["task=medmnist", "data.path=nowhere.npz"], "nowhere.npz"),
        (["data.name=cells"], "does not fit data.name=cells"),
        (["federation.num_clients=100000"], "federation.num_clients"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--fast", *words]) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""
    assert len(shown.err.strip().splitlines()) == 1


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--help"]) == 0
    shown = capsys.readouterr().out
    for word in ("--fast", "--json", "--plot", "--records", "dp-fedmed plan privacy=sample"):
        assert word in shown


def test_a_shared_ledger_is_read_and_never_made(ask: Ask, tmp_path: Path) -> None:
    shared = tmp_path / "shared.jsonl"
    words = [*TINY, "privacy=hybrid", f"data_ledger={shared}", "data.id=biopsies"]
    before = ask("--fast", *words)
    assert before["data_ledger"]["runs"] == 0
    assert list(tmp_path.iterdir()) == []
    result = run_federation(compose([*words, f"run_dir={tmp_path}/run"]))
    report = json.loads((result.run_dir / "privacy_report.json").read_text())
    content = shared.read_bytes()
    after = ask("--fast", *words)["data_ledger"]
    assert shared.read_bytes() == content
    assert after["runs"] == 1
    for unit in ("record", "client"):
        spent = report["all_runs_on_this_data"][unit]["epsilon"]
        assert after["before"][unit]["epsilon"] == spent
        assert spent < after["after"][unit]["epsilon"] < 2 * spent


def test_plan_says_when_the_server_is_trusted(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--json", "--records", "50,50", "task=textures", "privacy=sample"]
    assert main([*words, "privacy.noise=server"]) == 0
    assert "server is trusted" in " ".join(json.loads(capsys.readouterr().out)["notes"])
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == []
