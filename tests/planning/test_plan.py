"""How much noise a released mean carries, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dp_fedmed.config import Config, compose
from dp_fedmed.federation.plan import ClientPlan, PrivacyPlan
from dp_fedmed.federation.sampling import AllSampler, PoissonSampler
from dp_fedmed.planning.plan import largest_sigma, noise_of
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
    config = config_of("privacy=sample", "privacy.noise=server")
    std, units = noise_of(config, plan_of(CLIENTS), AllSampler(rate=1.0))
    assert (std, units) == (pytest.approx(4.0 / 150), 150)


@pytest.mark.parametrize(("weighting", "weights"), [("examples", (100, 50)), ("uniform", (1, 1))])
def test_clients_that_noise_their_own_means_add_up_by_weight(
    weighting: str, weights: tuple[int, int]
) -> None:
    config = config_of(
        "privacy=sample", "privacy.noise=client", f"federation.weighting={weighting}"
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
    config = config_of("privacy=sample", "privacy.noise=server")
    whole, images = noise_of(config, plan_of(CLIENTS), AllSampler(rate=1.0))
    half, fewer = noise_of(config, plan_of(CLIENTS), PoissonSampler(rate=0.5))
    assert (half, fewer) == (pytest.approx(2 * whole), images / 2)
