"""What a run is warned of when it begins."""

from __future__ import annotations

import pytest

from dp_fedmed.assemble import make_learner
from dp_fedmed.assemble.advice import advice_of, alone
from dp_fedmed.config import compose
from dp_fedmed.data import load_data
from dp_fedmed.planning.plan import make_plan, make_sampler

RECORDS = {"north": 40, "south": 60}


@pytest.mark.parametrize("is_new", [True, False])
def test_a_public_seed_is_said_when_a_run_is_new(is_new: bool) -> None:
    config = compose(["privacy=sample", "privacy.noise_seed=1", "federation.num_clients=2"])
    sampler = make_sampler(config)
    plan = make_plan(config, records=RECORDS, sampler=sampler, is_private=False)
    learner = make_learner(config, load_data(config.data, seed=0), RECORDS)
    said = list(advice_of(config, learner, plan, sampler, RECORDS, is_new=is_new))
    assert any("noise_seed=1 is public" in line for line in said) is is_new


def test_one_clients_plan_is_its_own() -> None:
    config = compose(["privacy=sample", "federation.num_clients=2"])
    sampler = make_sampler(config)
    plan = make_plan(config, records=RECORDS, sampler=sampler, is_private=True)
    own = alone(plan, "south")
    assert own is not None
    assert list(own.clients) == ["south"]
    assert own.delta_sample == plan.delta_sample
    assert alone(None, "south") is None
