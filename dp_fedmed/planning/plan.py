"""What a run will spend, decided before round 1 from public numbers only.

For each client: q from its number of records (which counts as public), the steps per round, the
rounds it may take part in, and σ. For the federation: σ of the sum of clipped updates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from dp_fedmed.config import (
    AccountantName,
    Calibration,
    Config,
    TaskKind,
    TrainingConfig,
    Weighting,
)
from dp_fedmed.config.quorum import quorum
from dp_fedmed.errors import ConfigError
from dp_fedmed.federation.plan import ClientPlan, PrivacyPlan, Spent
from dp_fedmed.federation.run_account import MOST_TIGHT
from dp_fedmed.federation.sampling import SAMPLERS, Sampler
from dp_fedmed.privacy import History, PrivacyEvent, calibrate, compute_noise_multiplier
from dp_fedmed.privacy.accounting.events import Adjacency, Level, record_event
from dp_fedmed.privacy.accounting.history import BOUNDED_BY_RDP
from dp_fedmed.privacy.mechanisms.base import gaussian_std

#: One record moves a sum by at most so many times C, whatever rounding adds; `assemble` checks it.
MOST_ROUNDING = 1.01


def make_sampler(config: Config) -> Sampler:
    """Who takes part in a round, as configured."""
    return SAMPLERS[config.federation.sampler](rate=config.federation.sample_rate)


def record_adjacency(config: Config) -> Adjacency:
    """How neighbours differ: a record contributes or not, or is another where rows stand alone.

    A client's number of records is public, in q and in the denominator, so a record cannot be added
    or removed unseen: its contribution is there, or zero. Of rows that stand alone one could see
    which is zero.
    """
    return "replace_one" if config.releases_rows else "zero_out"


def sample_rate(records: int, training: TrainingConfig) -> float:
    """Q of a client: the batch size over its records, at most 1.

    >>> sample_rate(100, TrainingConfig(batch_size=64))
    0.64
    """
    return min(1.0, training.batch_size / records)


def steps_per_round(records: int, training: TrainingConfig) -> int:
    """Noisy steps per round: as configured, else an expected pass over the data per epoch."""
    if training.local_steps is not None:
        return training.local_steps
    return training.local_epochs * max(1, round(1.0 / sample_rate(records, training)))


def round_shape(config: Config, records: int) -> tuple[float, int]:
    """(q, steps) of a client's round; a statistic is one step with every record.

    >>> from dp_fedmed.config import compose
    >>> round_shape(compose(["task=textures"]), 100)
    (1.0, 1)
    """
    if config.task.kind is TaskKind.anomaly:
        return 1.0, 1
    return sample_rate(records, config.training), steps_per_round(records, config.training)


def make_plan(
    config: Config,
    *,
    records: Mapping[str, int],
    sampler: Sampler,
    is_private: bool,
    spent: Spent | None = None,
) -> PrivacyPlan:
    """Decide every σ, q and T of a run, or of what is left of it.

    Args:
        config: the run's configuration.
        records: each client's number of training records; empty where records are not protected.
        sampler: who takes part; it makes the client-level event.
        is_private: False when the noise comes from a public seed.
        spent: the rounds done so far, and their cost, which the targets include.

    Raises:
        ConfigError: if a target cannot be met.
    """
    style, spent = config.privacy.style, spent or Spent()
    delta_sample = delta_user = None
    clients: dict[str, ClientPlan] = {}
    user_event = None
    if style.protects_records:
        delta_sample = config.privacy.sample.target_delta or default_delta(sum(records.values()))
        clients = _client_plans(config, records, delta_sample, is_private, spent)
    if style.protects_clients:
        population = config.federation.num_clients
        delta_user = config.privacy.user.target_delta or default_delta(population)
        sigma = _user_sigma(config, sampler, delta_user, spent)
        user_event = sampler.event(
            noise_multiplier=sigma, population=population, is_private=is_private
        )
    if config.sums_records:
        clients, user_event = _one_noise(config, clients, user_event)
    return PrivacyPlan(
        delta_sample=delta_sample,
        delta_user=delta_user,
        clients=clients,
        user_event=user_event,
    )


def with_accountant(config: Config, accountant: AccountantName) -> Config:
    """The same run under another accountant."""
    return config.replace(privacy=replace(config.privacy, accountant=accountant))


def default_delta(units: int) -> float:
    """A δ well below one over the number of units: 1e-5, or n^-1.1 where that is smaller.

    >>> default_delta(500), default_delta(10**6) < 1e-6
    (1e-05, True)
    """
    return min(1e-5, math.exp(-1.1 * math.log(units)))


def _client_plans(
    config: Config, records: Mapping[str, int], delta: float, is_private: bool, spent: Spent
) -> dict[str, ClientPlan]:
    settings = config.privacy.sample
    rounds = config.federation.num_rounds - spent.rounds
    left = {
        name: _rounds_left(config, rounds, spent.participations.get(name, 0)) for name in records
    }
    shapes = {name: round_shape(config, n) for name, n in records.items() if n > 0}
    if settings.noise_multiplier is not None:
        sigmas = dict.fromkeys(shapes, settings.noise_multiplier)
    else:
        sigmas = _sample_sigmas(config, shapes, delta, left, spent)
        if settings.calibration is Calibration.worst_client:
            sigmas = dict.fromkeys(sigmas, max(sigmas.values()))
    return {
        name: ClientPlan(
            records=records[name],
            sample_rate=q,
            steps=steps,
            participations=left[name],
            noise_multiplier=sigmas[name],
            is_private=is_private,
            adjacency=record_adjacency(config),
        )
        for name, (q, steps) in sorted(shapes.items())
    }


def _rounds_left(config: Config, rounds: int, taken: int) -> int | None:
    """How often a client may still take part; None where neither a budget nor a maximum says."""
    most = config.federation.max_participations
    if most is not None:
        return max(0, min(rounds, most - taken))
    return rounds if config.privacy.sample.target_epsilon is not None else None


def _sample_sigmas(
    config: Config,
    shapes: Mapping[str, tuple[float, int]],
    delta: float,
    left: Mapping[str, int | None],
    spent: Spent,
) -> dict[str, float]:
    """Each client's σ; clients that are alike in q, T and the past are calibrated once."""
    found: dict[object, float] = {}
    sigmas = {}
    sampled = {shape for shape in shapes.values() if shape[0] < 1.0}
    if len(sampled) > MOST_TIGHT and config.privacy.accountant in BOUNDED_BY_RDP:
        # An upper bound of what the enforcing accountant gives, so never too little noise.
        config = with_accountant(config, AccountantName.rdp)
    for name, (q, steps) in shapes.items():
        before, rounds = spent.clients.get(name, History()), left[name]
        alike = (q, steps, rounds, tuple(before.rows()))
        if alike not in found:
            # A client that has used up its participations is left out, whatever its σ.
            found[alike] = (
                _calibrated(Level.sample, config, delta, q, steps, rounds, before)
                if rounds
                else 1.0
            )
        sigmas[name] = found[alike]
    return sigmas


def _calibrated(
    level: str, config: Config, delta: float, q: float, steps: int, rounds: int, before: History
) -> float:
    """Smallest σ for so many rounds of Poisson-sampled steps, after what was spent before."""
    settings = config.privacy.sample if level == Level.sample else config.privacy.user
    target = settings.target_epsilon
    if target is None or not math.isfinite(target):
        raise ConfigError(f"privacy.{level}.target_epsilon={target} cannot be calibrated for")
    already = before.epsilon(delta=delta, method=config.privacy.accountant.value)
    if already >= 0.99 * target:  # what calibration leaves over would drown every round in noise
        raise ConfigError(
            f"privacy.{level}.target_epsilon={target:g} is spent ({already:.4g}): more rounds need "
            f"a larger one, for example new_phase=true privacy.{level}.target_epsilon="
            f"{2 * target:g}"
        )
    adjacency = record_adjacency(config) if level == Level.sample else "zero_out"
    try:
        if not before:
            # A replacement moves what is released by twice as much as a removal.
            return (2.0 if adjacency == "replace_one" else 1.0) * compute_noise_multiplier(
                target_epsilon=target,
                target_delta=delta,
                sample_rate=q,
                steps_per_round=steps,
                num_rounds=rounds,
                accountant=config.privacy.accountant.value,
            )
        return calibrate(
            lambda sigma: [
                record_event(
                    noise_multiplier=sigma,
                    sample_rate=q,
                    steps=steps * rounds,
                    adjacency=adjacency,
                )
            ],
            target_epsilon=target,
            target_delta=delta,
            accountant=config.privacy.accountant.value,
            spent=before,
        )
    except ValueError as error:
        raise ConfigError(f"privacy.{level}.target_epsilon={target:g}: {error}") from error


def _user_sigma(config: Config, sampler: Sampler, delta: float, spent: Spent) -> float:
    settings = config.privacy.user
    if settings.noise_multiplier is not None:
        return settings.noise_multiplier
    population = config.federation.num_clients
    rounds = config.federation.num_rounds - spent.rounds
    probe = sampler.event(noise_multiplier=1.0, population=population)
    q = probe.key[2]
    if probe.sampling == "poisson" or q == 1.0:
        return _calibrated(Level.user, config, delta, q, 1, rounds, spent.federation)
    target = settings.target_epsilon or 0.0
    try:
        return calibrate(
            lambda sigma: [
                sampler.event(noise_multiplier=sigma, population=population).times(rounds)
            ],
            target_epsilon=target,
            target_delta=delta,
            accountant=config.privacy.accountant.value,
            spent=spent.federation,
        )
    except ValueError as error:
        raise ConfigError(f"privacy.user.target_epsilon={target:g}: {error}") from error


def _one_noise(
    config: Config, clients: Mapping[str, ClientPlan], user_event: PrivacyEvent | None
) -> tuple[dict[str, ClientPlan], PrivacyEvent | None]:
    """The plan of a sum that is noised once: one q and one σ for the records of all.

    Where clients are protected too, the noise is the larger of what records and clients need, and
    both are charged with what they have of it.
    """
    if len({own.sample_rate for own in clients.values()}) > 1:
        largest = max(own.records for own in clients.values())
        raise ConfigError(
            f"privacy.noise={config.privacy.noise} needs the same share of every client's records "
            f"in a step, and training.batch_size={config.training.batch_size} is not the same "
            f"share of all: use "
            f"training.batch_size={largest} or more, with which every record is in every step"
        )
    sigma, norm = largest_sigma(clients), config.privacy.sample.max_grad_norm
    if user_event is not None:
        client_norm, needed = config.privacy.user.max_grad_norm, user_event.noise_multiplier
        user_event = replace(user_event, noise_multiplier=max(needed, sigma * norm / client_norm))
        sigma = max(sigma, needed * client_norm / (norm * MOST_ROUNDING))
    return {n: replace(own, noise_multiplier=sigma) for n, own in clients.items()}, user_event


def noise_of(config: Config, plan: PrivacyPlan, sampler: Sampler) -> tuple[float, float]:
    """(standard deviation of the noise in a released mean, units that the mean is over).

    Of public numbers only: each σ, the clients' sizes, and how many a round is expected to ask.
    """
    population = config.num_sites
    asked = sampler.expected(population)
    clients = plan.clients
    if plan.user_event is not None and not config.sums_records:
        server = noise_in_sum(config) * gaussian_std(
            noise_multiplier=plan.user_event.noise_multiplier,
            sensitivity=config.privacy.user.max_grad_norm,
        )
        inside = asked / population * _noise_of_means(clients, dict.fromkeys(clients, 1.0))
        return math.sqrt(server**2 + inside) / asked, asked
    share = asked / population
    images = share * sum(own.records for own in clients.values())
    if config.sums_records:
        return noise_in_sum(config) * largest_sigma(clients) / images, images
    by_examples = config.federation.weighting is Weighting.examples
    weights = {name: float(own.records if by_examples else 1) for name, own in clients.items()}
    spread = math.sqrt(share * _noise_of_means(clients, weights))
    return spread / (share * sum(weights.values())), images


def noise_in_sum(config: Config) -> float:
    """How many times the noise that a sum needs it has, where it is noised as a whole.

    Clients that draw all of it, each, bring √K times as much; shares allow for those who drop out
    or collude.
    """
    agreed = quorum(config)
    if config.noised_by == "shares":
        return math.sqrt(agreed.clients / agreed.honest)
    by_clients = config.privacy.style.protects_clients and not config.client_noise_at_server
    return math.sqrt(agreed.clients) if by_clients else 1.0


def largest_sigma(clients: Mapping[str, ClientPlan]) -> float:
    """One noise for all must be enough for the client that needs most."""
    return max(own.noise_multiplier for own in clients.values())


def _noise_of_means(clients: Mapping[str, ClientPlan], weights: Mapping[str, float]) -> float:
    """Variance of the weighted sum of means that each client has noised."""
    return math.fsum(
        (weights[name] * own.noise_multiplier / own.records) ** 2 for name, own in clients.items()
    )
