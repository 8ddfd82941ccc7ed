"""What a run has spent, without running one: everybody who took part, planned numbers, targets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dp_fedmed.config import Config, compose, from_run_config
from dp_fedmed.errors import BudgetSpent, ConfigError
from dp_fedmed.federation.charges import Charge, from_entries
from dp_fedmed.federation.plan import ClientPlan, PrivacyPlan, Spent
from dp_fedmed.federation.privacy_guard import PrivacyGuard
from dp_fedmed.federation.sampling import AllSampler, PoissonSampler
from dp_fedmed.planning.plan import make_plan
from dp_fedmed.privacy import (
    History,
    PrivacyEvent,
    compute_max_rounds,
    get_privacy_spent,
    group_epsilon,
)
from dp_fedmed.privacy.accounting import pld
from dp_fedmed.privacy.ledger import Ledger
from dp_fedmed.privacy.streams.keys import MacKey
from dp_fedmed.run.journal import Journal
from dp_fedmed.run.phases import limits_of
from dp_fedmed.run.privacy_report import checkpoint_section, privacy_report


def client(sigma: float = 5.0, *, q: float = 1.0, steps: int = 1, **more: int) -> ClientPlan:
    return ClientPlan(
        records=more.get("records", 100),
        sample_rate=q,
        steps=steps,
        participations=more.get("participations", 20),
        noise_multiplier=sigma,
    )


def plan_of(clients: dict[str, ClientPlan], user: PrivacyEvent | None = None) -> PrivacyPlan:
    delta_user = None if user is None else 1e-5
    return PrivacyPlan(delta_sample=1e-5, delta_user=delta_user, clients=clients, user_event=user)


def many_targets(style: str, *words: str) -> Config:
    wide = (f"privacy.{level}.target_epsilon=1000" for level in ("sample", "user"))
    return compose([f"privacy={style}", *wide, *words])


@pytest.fixture(params=["sample", "hybrid"])
def after_leaving(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Config, PrivacyGuard]:
    """Two phases: `b`, with little noise, took part in the first only."""
    user = (
        None
        if request.param == "sample"
        else PrivacyEvent.full(unit="client", noise_multiplier=5.0)
    )
    first = plan_of({"a": client(), "b": client(0.7)}, user)
    second = plan_of({"a": client(), "c": client()}, user)
    key = MacKey.generate()
    journal = Journal(Ledger(tmp_path / "ledger.jsonl", key), key, tmp_path / "releases", phase=0)
    config = many_targets(request.param)
    before = PrivacyGuard(limits_of(config), first, journal)
    for server_round in (1, 2):
        before.charge(server_round, ["a", "b"])
    journal.phase = 1
    guard = PrivacyGuard(limits_of(config), second, journal, past={0: first})
    guard.charge(3, ["a", "c"])
    return config, guard


def test_a_site_that_left_stays_in_the_maximum(after_leaving: tuple[Config, PrivacyGuard]) -> None:
    config, guard = after_leaving
    worst = get_privacy_spent(
        noise_multiplier=0.7, sample_rate=1.0, steps=2, delta=1e-5, accountant="exact"
    )
    for spent in (guard.epsilons(), guard.published_epsilons(), guard.planned_epsilons(5)):
        assert spent["sample"] == pytest.approx(worst)
    report = privacy_report(config, guard, rounds=3)["guarantees"][0]
    assert report["epsilon"] == pytest.approx(worst)
    assert report["worst_client"] == "b"
    assert report["clients"]["b"]["left"] is True
    assert "left" not in report["clients"]["a"]
    section = checkpoint_section(config, guard)
    assert section["cumulative_sample_epsilon"] == pytest.approx(worst)
    assert section["sample_history"] == [(0.7, 1.0, 2)]


def test_a_site_that_comes_back_has_spent_what_it_had(
    after_leaving: tuple[Config, PrivacyGuard],
) -> None:
    _, guard = after_leaving
    spent = guard.spent(3)
    assert spent.clients["b"].rows() == [(0.7, 1.0, 2)]
    assert spent.participations["b"] == 2
    with pytest.raises(ConfigError, match=r"target_epsilon=3 is spent"):
        make_plan(
            compose(["privacy=sample", "training.batch_size=1000"]),
            records={"a": 100, "b": 100},
            sampler=AllSampler(rate=1.0),
            is_private=True,
            spent=Spent(rounds=3, clients={"b": spent.clients["b"]}),
        )


def test_phases_are_an_odometer_and_the_report_says_so(
    after_leaving: tuple[Config, PrivacyGuard],
) -> None:
    config, guard = after_leaving
    report = privacy_report(config, guard, rounds=3)
    assert report["phases"] == 2
    assert "odometer" in " ".join(report["outside_the_guarantee"])
    config = many_targets("sample")
    one = PrivacyGuard(limits_of(config), plan_of({"a": client()}))
    one.charge(1, ["a"])
    assert "odometer" not in json.dumps(privacy_report(config, one, rounds=1))


def test_secret_participations_that_are_used_up_do_not_end_the_run() -> None:
    user = PrivacyEvent.poisson(unit="client", noise_multiplier=5.0, sample_rate=0.5)
    clients = {name: client(participations=2) for name in "ab"}
    guard = PrivacyGuard(limits_of(many_targets("hybrid")), plan_of(clients, user))
    ends = []
    for drawn in (["a", "b"], ["a", "b"], ["a"], ["b"], []):
        cohort = guard.admit(drawn)
        guard.charge(len(ends) + 1, cohort)
        ends.append(cohort)
    assert ends == [["a", "b"], ["a", "b"], [], [], []], "left out, and nobody told"
    assert guard.published_histories()["a"].rows() == [(5.0, 1.0, 2)]
    sample = PrivacyGuard(limits_of(many_targets("sample")), plan_of(clients))
    for server_round in (1, 2):
        sample.charge(server_round, ["a", "b"])
    with pytest.raises(BudgetSpent, match="every client has spent"):
        sample.charge(3, [])


@pytest.mark.parametrize("cohort", [["a", "b"], ["a"], []])
def test_a_hidden_run_ends_after_as_many_rounds_whoever_was_drawn(cohort: list[str]) -> None:
    user = PrivacyEvent.poisson(unit="client", noise_multiplier=50.0, sample_rate=0.5)
    config = compose(["privacy=hybrid", "privacy.sample.target_epsilon=2"])
    guard = PrivacyGuard(limits_of(config), plan_of({name: client() for name in "ab"}, user))
    within = compute_max_rounds(
        noise_multiplier=5.0,
        target_epsilon=2.0,
        target_delta=1e-5,
        sample_rate=1.0,
        steps_per_round=1,
        accountant="exact",
    )
    for server_round in range(1, within + 1):
        guard.charge(server_round, guard.admit(cohort))
    assert guard.rounds_left() == 0
    with pytest.raises(BudgetSpent, match="every client"):
        guard.charge(within + 1, guard.admit(cohort))
    assert 1.8 < guard.published_epsilons()["sample"] <= 2.0


NOISE = ["privacy.sample.noise_multiplier=1.0", "privacy.user.noise_multiplier=0.5"]


def test_a_noise_that_is_given_lifts_the_default_target_but_not_a_given_one() -> None:
    def targets(config: Config) -> tuple[float | None, float | None]:
        return config.privacy.sample.target_epsilon, config.privacy.user.target_epsilon

    assert targets(compose(["privacy=hybrid"])) == (3.0, 8.0)
    assert targets(compose(["privacy=hybrid", *NOISE])) == (None, None)
    assert targets(compose(["privacy=hybrid", NOISE[1]])) == (3.0, None)
    given = "privacy.sample.target_epsilon=3.0"
    assert targets(compose(["privacy=hybrid", *NOISE, given])) == (3.0, None)
    assert targets(compose([given, "privacy=hybrid", *NOISE])) == (3.0, None)
    flower = from_run_config({"privacy": "hybrid", "overrides": " ".join(NOISE)})
    assert targets(flower) == (None, None)


def test_the_protocols_own_parameters_hold_all_rounds() -> None:
    config = compose(["privacy=hybrid", *NOISE, "privacy.user.max_grad_norm=0.1"])
    names = [f"c{n}" for n in range(config.federation.num_clients)]
    sampler = PoissonSampler(rate=1.0)
    plan = make_plan(config, records=dict.fromkeys(names, 50), sampler=sampler, is_private=True)
    guard = PrivacyGuard(limits_of(config), plan)
    guard.require_one_round()
    for server_round in range(1, config.federation.num_rounds + 1):
        guard.charge(server_round, guard.admit(names))
    assert guard.rounds_left() is None


def test_a_target_that_holds_no_round_is_refused_before_anything_is_spent() -> None:
    for level, event in (
        ("sample", None),
        ("user", PrivacyEvent.full(unit="client", noise_multiplier=0.5)),
    ):
        style = "sample" if event is None else "hybrid"
        words = [f"privacy={style}", *NOISE, f"privacy.{level}.target_epsilon=1"]
        guard = PrivacyGuard(limits_of(compose(words)), plan_of({"a": client(1.0)}, event))
        with pytest.raises(ConfigError, match=rf"{level}.target_epsilon=1 does not hold a single"):
            guard.require_one_round()


def test_a_patients_epsilon_is_the_worst_over_all_clients() -> None:
    """Larger for a record need not be larger for a patient: of sampled and full steps."""
    clients = {"sampled": client(0.7, q=0.02, steps=100), "full": client(1.3)}
    config = many_targets("sample")
    patients = replace(config.data, group_by="patient", max_records_per_group=4)
    config = replace(config, data=patients)
    guard = PrivacyGuard(limits_of(config), plan_of(clients))
    guard.charge(1, list(clients))
    histories = guard.published_histories()
    groups = {n: group_epsilon(h, size=4, delta=1e-5) for n, h in histories.items()}
    record = privacy_report(config, guard, rounds=1)["guarantees"][0]
    worst = max(groups, key=lambda name: groups[name])
    assert record["worst_client"] != worst, "the case that this is about"
    assert record["group"]["worst_client"] == worst
    assert record["group"]["epsilon"] == groups[worst]
    between = privacy_report(config, guard, rounds=1, final=False)["guarantees"][0]["group"]
    assert between["epsilon"] is None, "nothing is promised before it is computed"


def test_an_old_ledger_is_read_and_composes() -> None:
    """Before 0.2 the relation of records was called add_remove; the numbers are the same."""
    old = PrivacyEvent.full(unit="record", noise_multiplier=5.0, adjacency="add_remove")
    new = client().round_event
    assert new.adjacency == "zero_out"
    (read,) = from_entries([{"event": old.to_json(), "names": ["a"]}]).values()
    assert (read.adjacency, read.key) == ("zero_out", old.key)
    stored = plan_of({"a": client()}).to_json()
    stored["clients"][0]["adjacency"] = "add_remove"
    plan = PrivacyPlan.from_json(stored)
    config = many_targets("sample")
    guard = PrivacyGuard(limits_of(config), plan)
    guard.record(Charge(phase=0, server_round=1, digest="", cohort=["a"], clients={"a": read}))
    guard.charge(2, ["a"])
    assert guard.published_histories()["a"].rows() == [(5.0, 1.0, 2)]
    report = privacy_report(config, guard, rounds=2)["guarantees"][0]
    assert report["adjacency"] == "zero_out"


def test_tight_calibrates_and_enforces_and_rdp_stands_beside_it() -> None:
    for words, exact in (
        (["training.batch_size=1000"], "exact"),
        (["training.batch_size=30"], "pld"),
    ):
        config = compose(["privacy=sample", "recipe=none", *words, "federation.num_rounds=5"])
        assert config.privacy.accountant == "tight"
        sigmas = {}
        for accountant in ("tight", "rdp"):
            chosen = compose(
                [
                    *("privacy=sample", "recipe=none", *words, "federation.num_rounds=5"),
                    f"privacy.accountant={accountant}",
                ]
            )
            plan = make_plan(
                chosen, records={"a": 100}, sampler=AllSampler(rate=1.0), is_private=True
            )
            sigmas[accountant] = plan.clients["a"].noise_multiplier
            if accountant == "tight":
                guard = PrivacyGuard(limits_of(chosen), plan)
        assert 0.85 < sigmas["tight"] / sigmas["rdp"] < 0.97
        for server_round in range(1, 6):
            guard.charge(server_round, guard.admit(["a"]))
        assert guard.admit(["a"]) == []
        record = privacy_report(config, guard, rounds=5)["guarantees"][0]
        assert 0.995 * 3.0 < record["epsilon"] <= 3.0
        assert record["epsilon"] == guard.published_histories()["a"].epsilon(
            delta=record["delta"], method=exact
        )
        assert record["epsilon_by_other_accountant"]["rdp"] > 3.0


def test_a_run_does_not_ask_pld_for_every_client_in_every_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    compose_pld = pld._compose
    pld._pld_epsilon.cache_clear()
    monkeypatch.setattr(
        pld, "_compose", lambda *args, **more: asked.append(1) or compose_pld(*args, **more)
    )
    config = compose(["privacy=sample", "recipe=none", "training.batch_size=30"])
    records = {f"c{n}": 100 + n for n in range(6)}
    plan = make_plan(config, records=records, sampler=AllSampler(rate=1.0), is_private=True)
    guard = PrivacyGuard(limits_of(config), plan)
    calibrating = len(asked)
    for server_round in range(1, 21):
        guard.charge(server_round, guard.admit(list(records)))
        final = server_round == 20
        spent = guard.published_epsilons(exact=final)["sample"]
        assert spent <= 3.0
        privacy_report(config, guard, server_round, final=final)
        checkpoint_section(config, guard, final=final)
        guard.rounds_left()
    assert len(asked) - calibrating < 20, "six clients and twenty rounds"
    assert spent > 2.98


@pytest.mark.parametrize("noise", ["null", "4.0"])
@pytest.mark.parametrize("style", ["sample", "hybrid"])
def test_epsilon_never_falls_from_round_to_round(style: str, noise: str) -> None:
    words = ["recipe=none", "training.batch_size=30", f"privacy.sample.noise_multiplier={noise}"]
    config = compose([f"privacy={style}", "federation.num_clients=6", *words])
    records = {f"c{n}": 100 + n for n in range(6)}
    plan = make_plan(config, records=records, sampler=PoissonSampler(rate=1.0), is_private=True)
    guard = PrivacyGuard(limits_of(config), plan)
    shown = []
    for server_round in range(1, config.federation.num_rounds + 1):
        guard.charge(server_round, guard.admit(list(records)))
        shown.append(guard.published_epsilons(exact=False)["sample"])
        assert shown[-1] >= guard.published_epsilons()["sample"]
    assert shown == sorted(shown)
    assert shown[-1] == guard.published_epsilons()["sample"], "the end is exact"


def test_phases_of_different_accountants_compose_by_the_one_in_force() -> None:
    """The history is canonical; whoever converts it bounds the same truth."""
    before = PrivacyEvent.full(unit="record", noise_multiplier=6.0, count=4, adjacency="zero_out")
    spent = Spent(rounds=4, clients={"a": History([before])}, participations={"a": 4})
    words = ["privacy=sample", "training.batch_size=1000", "federation.num_rounds=9"]
    config = compose(words)
    plan = make_plan(
        config, records={"a": 100}, sampler=AllSampler(rate=1.0), is_private=True, spent=spent
    )
    after = spent.clients["a"].plus(History([plan.clients["a"].round_event.times(5)]))
    assert 2.98 < after.epsilon(delta=plan.delta_sample or 0.0, method="exact") <= 3.0


def test_reports_tell_the_cost_of_one_round() -> None:
    user = PrivacyEvent.full(unit="client", noise_multiplier=4.0)
    config = many_targets("hybrid")
    guard = PrivacyGuard(limits_of(config), plan_of({"a": client(), "b": client(6.0)}, user))
    guard.charge(1, ["a"])
    guard.charge(2, ["a"])
    record, whole = privacy_report(config, guard, rounds=2)["guarantees"]
    exact = {"sample_rate": 1.0, "steps": 1, "delta": 1e-5, "accountant": "exact"}
    assert record["epsilon_of_one_round"] == get_privacy_spent(noise_multiplier=5.0, **exact)  # type: ignore[arg-type]
    assert whole["epsilon_of_one_round"] == get_privacy_spent(noise_multiplier=4.0, **exact)  # type: ignore[arg-type]
    assert whole["epsilon"] > whole["epsilon_of_one_round"]
    assert "no amplification" in whole["assumption"]
