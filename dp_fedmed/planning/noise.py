"""How much noise a released mean of an anomaly task will carry, and what to do about it.

Of public numbers only: each σ, the clients' sizes, and how many a round is expected to ask.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from dp_fedmed.config import Config, Weighting
from dp_fedmed.federation.plan import ClientPlan, PrivacyPlan
from dp_fedmed.federation.sampling import Sampler
from dp_fedmed.learning.anomaly.learner import AnomalyLearner
from dp_fedmed.privacy.mechanisms.base import gaussian_std
from dp_fedmed.privacy.mechanisms.noisy_rows import NoisyRows


def anomaly_advice(
    config: Config, learner: AnomalyLearner, plan: PrivacyPlan, sampler: Sampler
) -> str | None:
    """How many images or clients it would take, if a release would be mostly noise."""
    if config.releases_rows:
        return _weakness(config, learner, plan)
    noise_std, units = noise_of(config, plan, sampler)
    needed = learner.units_needed(noise_std * units)
    if needed <= units:
        return None
    what = "clients" if config.privacy.style.protects_clients else "images"
    return (
        f"anomaly.mechanism={config.anomaly.mechanism} in {learner.dimension} dimensions with "
        f"noise of {noise_std * units:.3g} on the sum needs about {needed} {what} to say more "
        f"than noise, and a round has {units:.0f}: use more {what}, a larger target_epsilon, "
        f"or anomaly.dimension={max(1, int(learner.dimension * units / needed))}"
    )


def _weakness(config: Config, learner: AnomalyLearner, plan: PrivacyPlan) -> str:
    rows = NoisyRows(
        noise_multiplier=largest_sigma(plan.clients),
        rows_per_record=config.anomaly.rows_per_image,
    )
    length = rows.std * learner.dimension**0.5
    return (
        "anomaly.mechanism=noisy_rows is weak, and kept for comparison: rows do not add up, so "
        f"each bears all the noise, here of length {length:.3g} on a row of length 1, however "
        "many images there are; use anomaly.mechanism=dp_gaussian to find anomalies"
    )


def noise_of(config: Config, plan: PrivacyPlan, sampler: Sampler) -> tuple[float, float]:
    """(standard deviation of the noise in a released mean, units that the mean is over).

    Of public numbers only: each σ, the clients' sizes, and how many a round is expected to ask.
    """
    population = config.num_sites
    asked = sampler.expected(population)
    clients = plan.clients
    if plan.user_event is not None:
        server = gaussian_std(
            noise_multiplier=plan.user_event.noise_multiplier,
            sensitivity=config.privacy.user.max_grad_norm,
        )
        inside = asked / population * _noise_of_means(clients, dict.fromkeys(clients, 1.0))
        return math.sqrt(server**2 + inside) / asked, asked
    share = asked / population
    images = share * sum(own.records for own in clients.values())
    if config.record_noise_at_server:
        return largest_sigma(clients) / images, images
    by_examples = config.federation.weighting is Weighting.examples
    weights = {name: float(own.records if by_examples else 1) for name, own in clients.items()}
    spread = math.sqrt(share * _noise_of_means(clients, weights))
    return spread / (share * sum(weights.values())), images


def largest_sigma(clients: Mapping[str, ClientPlan]) -> float:
    """One noise for all must be enough for the client that needs most."""
    return max(own.noise_multiplier for own in clients.values())


def _noise_of_means(clients: Mapping[str, ClientPlan], weights: Mapping[str, float]) -> float:
    """Variance of the weighted sum of means that each client has noised."""
    return math.fsum(
        (weights[name] * own.noise_multiplier / own.records) ** 2 for name, own in clients.items()
    )
