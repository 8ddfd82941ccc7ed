"""How much noise a released mean carries: by hand, and in the advice."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dp_fedmed.assemble import make_learner
from dp_fedmed.config import Config, compose
from dp_fedmed.data import load_data
from dp_fedmed.federation.plan import ClientPlan, PrivacyPlan
from dp_fedmed.federation.sampling import AllSampler, PoissonSampler
from dp_fedmed.learning.anomaly.learner import AnomalyLearner
from dp_fedmed.planning.noise import anomaly_advice, largest_sigma, noise_of
from dp_fedmed.privacy import PrivacyEvent

OWN = ClientPlan(records=100, sample_rate=1.0, steps=1, participations=None, noise_multiplier=3.0)
CLIENTS = {"a": OWN, "b": replace(OWN, records=50, noise_multiplier=4.0)}
USER = PrivacyEvent.full(unit="client", noise_multiplier=5.0)


def plan_of(clients: dict[str, ClientPlan], user: PrivacyEvent | None = None) -> PrivacyPlan:
    return PrivacyPlan(delta_sample=1e-5, delta_user=1e-5, clients=clients, user_event=user)


def config_of(*words: str) -> Config:
    return compose(["task=textures", "federation.num_clients=2", *words])


def test_one_noise_for_all_is_the_largest_over_all_images() -> None:
    assert largest_sigma(CLIENTS) == 4.0
    config = config_of("privacy=sample")
    std, units = noise_of(config, plan_of(CLIENTS), AllSampler(rate=1.0))
    assert (std, units) == (pytest.approx(4.0 / 150), 150)


@pytest.mark.parametrize(("weighting", "weights"), [("examples", (100, 50)), ("uniform", (1, 1))])
def test_clients_that_noise_their_own_means_add_up_by_weight(
    weighting: str, weights: tuple[int, int]
) -> None:
    config = config_of(
        "privacy=sample", "anomaly.server_trusted=false", f"federation.weighting={weighting}"
    )
    std, units = noise_of(config, plan_of(CLIENTS), AllSampler(rate=1.0))
    by_hand = math.hypot(weights[0] * 3.0 / 100, weights[1] * 4.0 / 50) / sum(weights)
    assert (std, units) == (pytest.approx(by_hand), 150)


def test_the_servers_noise_is_for_whole_clients() -> None:
    config = config_of("privacy=user", "privacy.user.max_grad_norm=0.5")
    std, units = noise_of(config, plan_of({}, USER), AllSampler(rate=1.0))
    assert (std, units) == (pytest.approx(5.0 * 0.5 / 2), 2)
    both = config_of("privacy=hybrid", "privacy.user.max_grad_norm=0.5")
    more, _ = noise_of(both, plan_of(CLIENTS, USER), AllSampler(rate=1.0))
    assert more == pytest.approx(math.sqrt(2.5**2 + 0.03**2 + 0.08**2) / 2)


def test_of_fewer_clients_a_mean_has_more_noise() -> None:
    config = config_of("privacy=sample")
    whole, images = noise_of(config, plan_of(CLIENTS), AllSampler(rate=1.0))
    half, fewer = noise_of(config, plan_of(CLIENTS), PoissonSampler(rate=0.5))
    assert (half, fewer) == (pytest.approx(2 * whole), images / 2)


def advice(config: Config, clients: dict[str, ClientPlan]) -> Any:
    learner = make_learner(config, load_data(config.data, seed=config.seed))
    assert isinstance(learner, AnomalyLearner)
    return anomaly_advice(config, learner, plan_of(clients), AllSampler(rate=1.0))


def test_a_release_that_is_mostly_noise_is_advised_on(tiny: Callable[..., Config]) -> None:
    config = tiny("privacy=sample", "anomaly.mechanism=dp_gaussian", "federation.num_clients=2")
    said = advice(config, {name: replace(own, records=5) for name, own in CLIENTS.items()})
    assert "and a round has 10: use more images" in said
    assert advice(config, {n: replace(own, records=10**8) for n, own in CLIENTS.items()}) is None


def test_noisy_rows_are_weak_however_many_there_are(tiny: Callable[..., Config]) -> None:
    config = tiny("privacy=sample", "anomaly.mechanism=noisy_rows", "federation.num_clients=2")
    few, many = (
        advice(config, {n: replace(own, records=count) for n, own in CLIENTS.items()})
        for count in (5, 10**8)
    )
    assert "however many images there are" in few
    assert few == many
