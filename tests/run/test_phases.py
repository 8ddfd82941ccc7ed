"""What a configuration allows to be spent."""

from __future__ import annotations

import pytest

from dp_fedmed.config import compose
from dp_fedmed.errors import ConfigError
from dp_fedmed.federation.plan import ClientPlan, PrivacyPlan
from dp_fedmed.federation.run_account import Limits
from dp_fedmed.run.phases import _refuse_other_sizes, limits_of


def test_limits_are_the_targets_of_the_configuration() -> None:
    words = ["privacy=hybrid", "federation.num_rounds=7", "privacy.accountant=rdp"]
    targets = ["privacy.sample.target_epsilon=2.5", "privacy.user.target_epsilon=6"]
    assert limits_of(compose([*words, *targets])) == Limits(
        rounds=7, method="rdp", sample_epsilon=2.5, user_epsilon=6.0
    )
    free = compose(["privacy=sample", "privacy.sample.noise_multiplier=1.0"])
    assert limits_of(free).sample_epsilon is None


def test_a_plan_holds_for_the_sizes_that_it_was_made_for() -> None:
    own = ClientPlan(
        records=50, sample_rate=0.1, steps=10, participations=None, noise_multiplier=1.0
    )
    plan = PrivacyPlan(delta_sample=1e-5, delta_user=None, clients={"a": own}, user_event=None)
    _refuse_other_sizes(plan, {"a": 50, "new": 3})
    for records, said in (({"a": 51}, "a has 51 records"), ({}, "a has no records")):
        with pytest.raises(ConfigError, match=rf"{said}, but the run began with 50.*new_phase"):
            _refuse_other_sizes(plan, records)
