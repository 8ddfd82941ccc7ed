"""What a run will spend, as a value: it goes into a ledger and comes back the same."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from dp_fedmed.federation.charges import OLD_RELATION
from dp_fedmed.federation.plan import ClientPlan, PrivacyPlan
from dp_fedmed.privacy import PrivacyEvent

CLIENT = ClientPlan(
    records=100, sample_rate=0.1, steps=3, participations=None, noise_multiplier=2.0
)
OTHER = replace(CLIENT, noise_multiplier=4.0, participations=2)
USER = PrivacyEvent.poisson(unit="client", noise_multiplier=5.0, sample_rate=0.5)


def plan_of(**more: Any) -> PrivacyPlan:
    held: dict[str, Any] = {"delta_sample": 1e-5, "delta_user": None, "user_event": None}
    return PrivacyPlan(clients={"a": CLIENT, "b": OTHER, "c": CLIENT}, **held | more)


def test_a_round_costs_a_record_all_of_its_steps() -> None:
    assert CLIENT.round_event == PrivacyEvent.poisson(
        unit="record", noise_multiplier=2.0, sample_rate=0.1, count=3, adjacency="zero_out"
    )


def test_a_whole_batch_has_no_amplification_and_public_noise_is_not_private() -> None:
    whole = replace(CLIENT, sample_rate=1.0, steps=1)
    public = replace(whole, is_private=False)
    assert whole.round_event == PrivacyEvent.full(
        unit="record", noise_multiplier=2.0, adjacency="zero_out"
    )
    assert (whole.round_event.is_private, public.round_event.is_private) == (True, False)


@pytest.mark.parametrize("more", [{}, {"delta_user": 1e-3, "user_event": USER}])
def test_a_plan_goes_through_json_unchanged(more: dict[str, Any]) -> None:
    plan = plan_of(**more)
    assert PrivacyPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_clients_of_one_plan_share_an_entry() -> None:
    assert [entry["names"] for entry in plan_of().to_json()["clients"]] == [["a", "c"], ["b"]]


def test_a_plan_of_an_older_version_is_read_with_the_relation_of_today() -> None:
    content = plan_of().to_json()
    for entry in content["clients"]:
        entry["adjacency"] = OLD_RELATION
    assert PrivacyPlan.from_json(content) == plan_of()
    content["clients"][0]["adjacency"] = "replace_one"
    assert PrivacyPlan.from_json(content).clients["a"].adjacency == "replace_one"


def test_an_accountant_has_the_budgets_of_the_levels_that_are_planned() -> None:
    def made(plan: PrivacyPlan) -> list[Any]:
        held = plan.accountant(method="rdp", sample_epsilon=3.0, user_epsilon=8.0).state_dict()
        levels = ("target_delta", "target_epsilon", "user_target_delta", "user_target_epsilon")
        return [held["method"], *(held[key] for key in levels)]

    assert made(plan_of(delta_user=1e-3, user_event=USER)) == ["rdp", 1e-5, 3.0, 1e-3, 8.0]
    clients = made(plan_of(delta_sample=None, delta_user=1e-3, user_event=USER))
    assert (clients[2], clients[4]) == (None, 8.0), "records are promised nothing"
    assert made(plan_of())[1:3] == [1e-5, 3.0]
