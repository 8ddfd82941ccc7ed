"""The four styles as whole runs: exact ε, budgets, reports, and nothing private in public files."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from dp_fedmed.assemble import client_runtime
from dp_fedmed.client_app import build_client_app
from dp_fedmed.config import Config, compose
from dp_fedmed.data import load_data
from dp_fedmed.errors import BudgetSpent, ConfigError
from dp_fedmed.federation.messages import RecordOrder
from dp_fedmed.federation.plan import ClientPlan, PrivacyPlan
from dp_fedmed.federation.privacy_guard import PrivacyGuard
from dp_fedmed.federation.sampling import AllSampler
from dp_fedmed.launch import run_federation
from dp_fedmed.learning.networks import per_sample, record_check
from dp_fedmed.planning.plan import default_delta, make_plan, sample_rate, steps_per_round
from dp_fedmed.privacy import get_privacy_spent
from dp_fedmed.privacy.streams.keys import MacKey
from dp_fedmed.run.directory import RunDirectory
from dp_fedmed.run.phases import limits_of
from tests.studies import STUDY

FIXED = (
    *("privacy.sample.grad_mode=hooks", "privacy.accountant=rdp"),
    "model._target_=dp_fedmed.models.MLP",
    "model.args.hidden=[8]",
)


def report_of(run_dir: Path) -> dict:
    return json.loads((run_dir / "privacy_report.json").read_text())


def test_records_of_a_run_cost_the_worst_clients_epsilon(small: Callable[..., Config]) -> None:
    config = small(
        *("privacy=sample", *FIXED, "privacy.sample.noise_multiplier=2.0"),
        *("privacy.sample.target_epsilon=null", "data.partition.name=size_skewed"),
        *("training.batch_size=16", "training.local_steps=3", "training.local_epochs=1"),
    )
    result = run_federation(config)
    report = report_of(result.run_dir)["guarantees"][0]
    by_hand = {
        name: get_privacy_spent(
            noise_multiplier=2.0,
            sample_rate=min(1.0, 16 / client["records"]),
            steps=2 * 3,
            delta=report["delta"],
        )
        for name, client in report["clients"].items()
    }
    assert len({client["records"] for client in report["clients"].values()}) > 1
    assert report["epsilon"] == max(by_hand.values())
    assert {n: c["epsilon"] for n, c in report["clients"].items()} == by_hand
    smallest = min(report["clients"], key=lambda n: report["clients"][n]["records"])
    assert report["worst_client"] == smallest


def test_the_guarantee_is_the_worst_client_neither_sum_nor_mean() -> None:
    """Nine clients with (q=.1, T=50) and one with (.5, 10), σ=1: the tenth one's ε."""
    shapes = {f"c{i}": (0.1, 5) for i in range(9)} | {"c9": (0.5, 1)}
    clients = {
        name: ClientPlan(
            records=100, sample_rate=q, steps=t, participations=10, noise_multiplier=1.0
        )
        for name, (q, t) in shapes.items()
    }
    plan = PrivacyPlan(delta_sample=1e-5, delta_user=None, clients=clients, user_event=None)
    words = ["privacy=sample", "privacy.sample.target_epsilon=1000", "privacy.accountant=rdp"]
    guard = PrivacyGuard(limits_of(compose(words)), plan)
    for server_round in range(1, 11):
        guard.charge(server_round, list(clients))
    each = [
        get_privacy_spent(noise_multiplier=1.0, sample_rate=q, steps=10 * t, delta=1e-5)
        for q, t in shapes.values()
    ]
    assert guard.epsilons()["sample"] == max(each)
    assert each[9] == max(each)


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("sample", {"record": 3.0}),
        ("user", {"client": 8.0}),
        ("hybrid", {"record": 3.0, "client": 8.0}),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_calibrated_run_spends_its_target_and_no_more(
    style: str, expected: dict[str, float], workers: int, small: Callable[..., Config]
) -> None:
    config = small(f"privacy={style}", *FIXED, f"engine.workers={workers}")
    result = run_federation(config)
    assert result.stopped == "completed"
    report = report_of(result.run_dir)
    spent = {g["unit"]: g["epsilon"] for g in report["guarantees"]}
    assert spent.keys() == expected.keys()
    for unit, target in expected.items():
        assert 0.995 * target < spent[unit] <= target
    for guarantee in report["guarantees"]:
        other = guarantee["epsilon_by_other_accountant"]["pld"]
        assert other <= guarantee["epsilon"]
        assert guarantee["adjacency"]
        assert guarantee["delta"] < 1e-4
    assert report["noise_is_private"] is True
    assert report["conservative_sum"]["epsilon"] == pytest.approx(sum(spent.values()))


def test_epsilon_grows_with_every_round_and_never_restarts(small: Callable[..., Config]) -> None:
    for style in ("sample", "hybrid"):
        config = small(f"privacy={style}", *FIXED, "federation.num_rounds=4")
        rows = RunDirectory(run_federation(config).run_dir).metrics()
        for level in rows[0]["epsilon"]:
            spent = [row["epsilon"][level] for row in rows[:-1]]
            assert spent[0] == 0.0
            assert all(b > a for a, b in pairwise(spent))


def test_clients_keep_their_own_account(small: Callable[..., Config]) -> None:
    config = small("privacy=sample", *FIXED, "federation.num_rounds=3", "engine.workers=2")
    result = run_federation(config)
    report = report_of(result.run_dir)["guarantees"][0]
    for name, client in report["clients"].items():
        lines = (result.run_dir / "private" / "clients" / f"{name}.jsonl").read_text().splitlines()
        own = [json.loads(line)["body"] for line in lines if '"kind":"CHARGE"' in line]
        assert sum(row["steps"] for row in own) == client["steps"]
        assert {row["noise_multiplier"] for row in own} == {client["noise_multiplier"]}


def test_a_budget_ends_the_run_cleanly_before_the_round_that_does_not_fit(
    small: Callable[..., Config],
) -> None:
    for style, level in (("sample", "sample"), ("user", "user")):
        config = small(
            *(f"privacy={style}", *FIXED, f"privacy.{level}.noise_multiplier=3.0"),
            *(f"privacy.{level}.target_epsilon=4", "federation.num_rounds=50"),
        )
        result = run_federation(config)
        assert result.stopped.startswith("budget")
        assert 0 < result.rounds < 50
        assert report_of(result.run_dir)["guarantees"][0]["epsilon"] <= 4.0
        assert RunDirectory(result.run_dir).load_model()


def test_a_client_whose_participations_are_used_up_is_left_out() -> None:
    clients = {
        name: ClientPlan(
            records=10, sample_rate=1.0, steps=1, participations=n, noise_multiplier=5.0
        )
        for name, n in (("a", 1), ("b", 2))
    }
    plan = PrivacyPlan(delta_sample=1e-5, delta_user=None, clients=clients, user_event=None)
    config = compose(["privacy=sample", "privacy.sample.target_epsilon=100"])
    guard = PrivacyGuard(limits_of(config), plan)
    assert guard.admit(["a", "b"]) == ["a", "b"]
    guard.charge(1, ["a", "b"])
    assert guard.admit(["a", "b"]) == ["b"]
    guard.charge(2, ["b"])
    assert guard.admit(["a", "b"]) == []
    with pytest.raises(BudgetSpent, match="every client has spent"):
        guard.charge(3, [])


def test_hidden_cohorts_stay_out_of_public_files(small: Callable[..., Config]) -> None:
    for style in ("user", "hybrid"):
        config = small(
            *(f"privacy={style}", *FIXED, "federation.num_clients=8"),
            *("federation.sample_rate=0.5", "federation.num_rounds=3"),
        )
        folder = run_federation(config).run_dir
        rows = RunDirectory(folder).metrics()
        for row in rows:
            assert not {"cohort", "failed", "train_loss", "seconds", "clients"} & row.keys()
        assert not (folder / "run.log").exists()
        private = [
            json.loads(line)
            for line in (folder / "private" / "rounds.jsonl").read_text().splitlines()
        ]
        assert any(len(row["names"]) not in (0, 8) for row in private[1:])
        for guarantee in report_of(folder)["guarantees"]:
            for client in guarantee.get("clients", {}).values():
                assert client["rounds"] == 3, "planned worst case, not who came"
                steps = 3 * 3  # rounds, and batches of 16 out of about 42 records
                sigma, q = client["noise_multiplier"], client["sample_rate"]
                assert client["history"] == [[sigma, q, steps]]


def test_a_secret_cohort_does_not_follow_from_the_seed(small: Callable[..., Config]) -> None:
    def cohorts() -> list[list[str]]:
        config = small(
            *("privacy=user", *FIXED, "federation.num_clients=8", "federation.evaluate_every=0"),
            *("federation.sample_rate=0.5", "federation.num_rounds=4", "seed=0"),
        )
        lines = (run_federation(config).run_dir / "private" / "rounds.jsonl").read_text()
        return [json.loads(line)["names"] for line in lines.splitlines()]

    assert cohorts() != cohorts()


def test_running_statistics_do_not_leave_a_private_client(
    small: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mean over a batch that is kept in a buffer would be a release without noise."""
    own = ("allow_code=[tests]", "model._target_=tests.runs.apps.RemembersItsInputs")
    noisy = ("privacy.sample.grad_mode=hooks", "privacy.sample.noise_multiplier=20")
    words = (*own, *noisy, "training.lr=0.1")
    model = RunDirectory(run_federation(small("privacy=none", *words)).run_dir).load_model()
    assert model["mean"].any()
    with pytest.raises(ConfigError, match="'mean' changes in a training pass"):
        run_federation(small("privacy=sample", *words))
    for module in (per_sample, record_check):
        monkeypatch.setattr(module, "refuse_changed", lambda *_: None)
    model = RunDirectory(run_federation(small("privacy=sample", *words)).run_dir).load_model()
    assert not model["mean"].any(), "also if nobody had looked"


def test_private_files_are_for_their_owner_only(small: Callable[..., Config]) -> None:
    folder = run_federation(small("privacy=hybrid", *FIXED)).run_dir
    assert stat.S_IMODE((folder / "private").stat().st_mode) == 0o700
    for path in (folder / "private").rglob("*"):
        allowed = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == allowed, path


def test_the_key_of_a_finished_run_is_gone(small: Callable[..., Config]) -> None:
    folder = run_federation(small("privacy=user", *FIXED)).run_dir
    assert [file.name for file in (folder / "private" / "secret").iterdir()] == ["ledger.key"]


def test_no_loss_of_private_records_is_sent(small: Callable[..., Config]) -> None:
    folder = run_federation(small("privacy=sample", *FIXED)).run_dir
    private = (folder / "private" / "rounds.jsonl").read_text().splitlines()
    assert {json.loads(line)["train_loss"] for line in private} == {None}


def test_a_public_noise_seed_taints_the_report_and_repeats_the_run(
    small: Callable[..., Config],
) -> None:
    seeded = ["privacy=hybrid", *FIXED, "privacy.noise_seed=1"]
    first, second = (run_federation(small(*seeded)) for _ in range(2))
    assert report_of(first.run_dir)["warning"] == "not private: noise seed is public"
    assert report_of(first.run_dir)["noise_is_private"] is False
    secret = run_federation(small("privacy=hybrid", *FIXED))
    models = [RunDirectory(r.run_dir).load_model() for r in (first, second, secret)]
    name = next(iter(models[0]))
    assert np.array_equal(models[0][name], models[1][name])
    assert not np.array_equal(models[0][name], models[2][name])


def test_the_last_model_is_kept_not_the_best(
    small: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    worse_and_worse = iter(range(100))
    monkeypatch.setattr(
        "dp_fedmed.run.server_run.ServerRun._evaluate",
        lambda self, arrays, split: {"balanced_accuracy": 1.0 / (1 + next(worse_and_worse))},
    )
    assert run_federation(small("federation.num_rounds=3")).selected_round == 0
    assert run_federation(small("privacy=sample", *FIXED)).selected_round == 2


def test_observers_are_promised_what_they_get(small: Callable[..., Config]) -> None:
    rows = report_of(run_federation(small("privacy=hybrid", *FIXED)).run_dir)["observers"]
    by_name = {row["observer"]: row for row in rows}
    assert by_name["server"]["client"] is None, "the server sees updates before the noise"
    assert by_name["server"]["record"]["epsilon"] <= 3.0
    assert by_name["model recipients"]["client"]["epsilon"] <= 8.0
    only_user = report_of(run_federation(small("privacy=user", *FIXED)).run_dir)["observers"]
    assert {row["observer"]: row["record"] for row in only_user} == {
        "server": None,
        "model recipients": None,
    }


@pytest.mark.parametrize("key", ["noise_multiplier", "sample_rate", "steps"])
def test_a_reply_that_does_not_fit_the_plan_is_refused(key: str) -> None:
    clients = {
        "a": ClientPlan(
            records=10, sample_rate=0.5, steps=4, participations=9, noise_multiplier=2.0
        )
    }
    plan = PrivacyPlan(delta_sample=1e-5, delta_user=None, clients=clients, user_event=None)
    guard = PrivacyGuard(limits_of(compose(["privacy=sample"])), plan)
    order = guard.order("a")
    assert order is not None
    told = order.to_dict()
    guard.check_reply("a", told)
    with pytest.raises(ValueError, match=key):
        guard.check_reply("a", {**told, key: 1})
    with pytest.raises(ValueError, match="did not report"):
        guard.check_reply("a", None)


def test_a_client_refuses_a_plan_that_its_data_do_not_imply(small: Callable[..., Config]) -> None:
    config = small("privacy=sample", *FIXED, "training.local_steps=2")
    runtime = client_runtime(config)
    assert build_client_app(runtime=runtime)
    order = RecordOrder(
        noise_multiplier=1.0,
        sample_rate=sample_rate(50, config.training),
        steps=2,
        grad_mode="hooks",
    )
    assert runtime.rounds.make_mechanism(order, 50).steps == 2
    for other in (replace(order, steps=3), replace(order, sample_rate=1e-3)):
        key = "steps" if other.steps == 3 else "sample_rate"
        with pytest.raises(ConfigError, match=key):
            runtime.rounds.make_mechanism(other, 50)


def test_rates_and_steps_follow_from_the_number_of_records() -> None:
    training = compose(
        ["privacy=none", "training.batch_size=64", "training.local_epochs=2"]
    ).training
    assert sample_rate(100, training) == 0.64
    assert sample_rate(10, training) == 1.0
    assert steps_per_round(100, training) == 4
    assert steps_per_round(10, training) == 2


def test_calibration_per_client_gives_each_its_own_noise() -> None:
    base = ["privacy=sample", "training.batch_size=10", "federation.num_rounds=5"]
    records = {"large": 500, "small": 20}
    plans = {}
    for calibration in ("per_client", "worst_client"):
        config = compose([*base, f"privacy.sample.calibration={calibration}"])
        plan = make_plan(config, records=records, sampler=AllSampler(rate=1.0), is_private=True)
        plans[calibration] = {n: c.noise_multiplier for n, c in plan.clients.items()}
    assert plans["per_client"]["small"] > plans["per_client"]["large"]
    assert set(plans["worst_client"].values()) == {plans["per_client"]["small"]}


def test_delta_is_defensible_by_default() -> None:
    assert default_delta(1000) < 1 / 1000
    assert default_delta(10**7) < 1e-7


def test_patients_are_capped_and_have_their_own_epsilon(small: Callable[..., Config]) -> None:
    settings = [
        *("privacy=sample", *STUDY, "data.client_val_fraction=0", "privacy.sample.grad_mode=hooks"),
        *("federation.num_clients=3", "federation.num_rounds=1", "training.local_steps=1"),
    ]
    whole = report_of(run_federation(small(*settings)).run_dir)["guarantees"][0]
    assert whole["group"] is None
    assert "a patient with several records is not a record" in whole["unit_in_words"]
    assert "patient" not in whole["assumption"]
    config = small(*settings, "data.group_by=patient", "data.max_records_per_group=2")
    capped = report_of(run_federation(config).run_dir)["guarantees"][0]
    patients = len(set(load_data(config.data, seed=0).train.patient.tolist()))
    assert sum(client["records"] for client in capped["clients"].values()) <= 2 * patients
    for name, client in capped["clients"].items():
        assert client["records"] < whole["clients"][name]["records"]
    assert capped["group"]["epsilon"] > 2 * 0.9 * capped["epsilon"]
    assert "each deployed site promises" in capped["assumption"]
    with pytest.raises(ConfigError, match=r"data\.group_by=patient needs"):
        client_runtime(small("privacy=sample", "data.group_by=patient")).records(
            {"partition-id": 0, "num-partitions": 4}
        )


@pytest.mark.parametrize("style", ["sample", "user", "hybrid"])
def test_the_log_tells_what_is_spent_and_how_many_rounds_are_left(
    style: str, small: Callable[..., Config]
) -> None:
    folder = run_federation(small(f"privacy={style}", *FIXED, "federation.num_rounds=3")).run_dir
    log = next(folder.rglob("run.log")).read_text()
    for left in (3, 2, 1, 0):
        assert f"{left} rounds left in the budget" in log
    assert ("ε_user" in log) is (style != "sample")


def ask_client(config: Config, noise_multiplier: float, ledger: int = 1) -> np.ndarray:
    """The update of one client that is asked for round 1 with this noise, by hand."""
    secret = Path(config.run_dir) / "private" / "secret"
    if not secret.exists():
        secret.mkdir(parents=True)
        MacKey.create(secret / "ledger.key")
    from flwr.app import ConfigRecord, Message, RecordDict

    from dp_fedmed.federation import arrays as model_arrays
    from dp_fedmed.federation import flower_compat

    flower_compat.set_identity(1)
    runtime = client_runtime(config)
    runtime.preload(config.federation.num_clients)
    node = {"partition-id": 0, "num-partitions": config.federation.num_clients}
    records, _ = runtime.records(node)
    told = {
        "round": 1,
        "noise_multiplier": noise_multiplier,
        "sample_rate": sample_rate(len(records), config.training),
        "steps": steps_per_round(len(records), config.training),
        "grad_mode": "hooks",
        "run": "demo",
        "streams": "demo",
        "phase": 0,
        "ledger": ledger,
        "style": str(config.privacy.style),
        "noised_by": config.noised_by,
        "input_shape": [30],
        "num_classes": 2,
    }
    arrays = model_arrays.to_record({k: v.copy() for k, v in runtime.work.state.read().items()})
    message = Message(RecordDict({"arrays": arrays, "config": ConfigRecord(told)}), 1, "train")
    reply = runtime.train(message, flower_compat.make_context(1, 1, node))
    update = model_arrays.from_record(reply["arrays"])  # type: ignore[arg-type]
    return np.concatenate([v.ravel() for v in update.values()]).astype(np.float64)


def test_one_sum_at_two_noise_scales_does_not_share_its_noise(small: Callable[..., Config]) -> None:
    """Else (σ₂u₁ − σ₁u₂)/(σ₂ − σ₁) would be the exact update."""
    config = small(
        *("privacy=sample", *FIXED, "privacy.noise_seed=3", "privacy.sample.noise_multiplier=1"),
        *("privacy.sample.target_epsilon=null", "training.local_steps=1", "training.lr=1"),
    )
    once, again = ask_client(config, 5.0), ask_client(config, 5.0)
    assert np.array_equal(once, again)
    other = ask_client(config, 8.0, ledger=2)  # on the same grid: a sum is the same integers
    assert abs(np.corrcoef(once, other)[0, 1]) < 0.5


def test_a_client_refuses_noise_that_breaks_its_budget(small: Callable[..., Config]) -> None:
    from dp_fedmed.errors import BudgetRefused

    whole = ["training.batch_size=100000", "training.local_steps=1", "federation.num_rounds=1"]
    config = small("privacy=sample", *FIXED, "privacy.noise_seed=3", *whole)
    with pytest.raises(BudgetRefused):
        ask_client(config, 0.1)
    ask_client(config, 50.0)
    ask_client(config, 1.8, ledger=2)  # by itself within the budget of 3, with another it is not
    ask_client(config, 1.8, ledger=2)  # the very same again costs nothing
    with pytest.raises(BudgetRefused):
        ask_client(config, 1.9, ledger=3)


def test_a_client_refuses_a_server_whose_ledger_went_back(small: Callable[..., Config]) -> None:
    from dp_fedmed.errors import ServerRefused

    config = small("privacy=sample", *FIXED, "privacy.noise_seed=3", "federation.num_rounds=1")
    ask_client(config, 50.0, ledger=7)
    with pytest.raises(ServerRefused, match="went back"):
        ask_client(config, 60.0, ledger=7)
    with pytest.raises(ServerRefused, match="went back"):
        ask_client(config, 60.0, ledger=3)
    ask_client(config, 60.0, ledger=8)


def test_a_site_that_cannot_load_its_data_tells_no_path(small: Callable[..., Config]) -> None:
    from flwr.app import Context, Message, RecordDict

    from dp_fedmed.federation import flower_compat

    flower_compat.set_identity(1)
    config = small("privacy=sample", "task=medmnist", "data.path=/home/jane/patients.npz")
    node = {"client-id": "north"}
    context = Context(run_id=1, node_id=1, node_config=node, state=RecordDict(), run_config={})
    reply = build_client_app(config)(Message(RecordDict(), 1, "query.name"), context)
    told = reply.content.config_records["client"]
    assert told["name"] == "north"
    assert told["refusal"] == "ConfigError in the client (details are in its own log)"
