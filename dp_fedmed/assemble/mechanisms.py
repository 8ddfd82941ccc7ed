"""From a configuration to what protects a run: at the server, and at each client."""

from __future__ import annotations

import math
from typing import Any

from dp_fedmed.config import Clipping, Config, GradMode, TaskKind, Topology
from dp_fedmed.errors import ConfigError
from dp_fedmed.federation import PrivacyPlan, RecordOrder, RoundOrder, Sampler
from dp_fedmed.planning.plan import MOST_ROUNDING, make_sampler, record_adjacency, round_shape
from dp_fedmed.privacy.mechanisms import (
    DPSGD,
    MECHANISMS,
    ClientUpdates,
    OwnAnswer,
    OwnNoise,
    RecordMechanism,
    ServerMechanism,
    StatisticMean,
)
from dp_fedmed.privacy.mechanisms.base import NoisedBy, gaussian_std
from dp_fedmed.privacy.mechanisms.private_sum import PrivateSum

LEAST_NOISE = 1e-2  # as in the configuration's own range


def server_mechanism(
    config: Config, plan: PrivacyPlan, sampler: Sampler, *, weights: int = 1
) -> ServerMechanism | None:
    """What bounds and noises the sum of all clients: for clients, for records, or for both at once.

    Args:
        config: the run's.
        plan: what it will spend.
        sampler: who takes part.
        weights: values in a client's answer, whose rounding adds to what a record moves.
    """
    if config.federation.topology is Topology.local_only:
        return None  # nothing is added up that a server could noise
    if config.sums_records:
        return record_sums(config, plan, sampler, weights)
    if plan.user_event is None:
        return None
    user, population = config.privacy.user, config.num_sites
    adaptive: dict[str, Any] = {}
    if user.clipping is Clipping.adaptive:
        adaptive = {"quantile": user.target_quantile, "learning_rate": user.clip_lr}
    found: ServerMechanism = MECHANISMS[user.clipping](
        plan.user_event,
        max_norm=user.max_grad_norm,
        expected_cohort=sampler.expected(population),
        population=population,
        **(adaptive or {"noised_by": _noised_by(config)}),
    )
    return found


def record_sums(
    config: Config, plan: PrivacyPlan, sampler: Sampler, weights: int
) -> ServerMechanism:
    """One noise for the records of all clients, and for clients where they are protected.

    Raises:
        ConfigError: if rounding could add more to a record's contribution than is planned for.
    """
    own = next(iter(plan.clients.values()))
    records = {name: each.records for name, each in plan.clients.items()}
    norm = config.privacy.sample.max_grad_norm  # 1 in an anomaly task
    most = max(records.values())
    each: DPSGD | StatisticMean
    if config.task.kind is TaskKind.anomaly:
        each = _statistic(config, own.noise_multiplier, most)
    else:
        each = _dp_sgd(config, own.noise_multiplier, own.sample_rate, 1, "hooks")
    moved = _moved(each, weights, most)
    if moved > MOST_ROUNDING * norm:
        raise ConfigError(
            f"privacy.noise={config.privacy.noise}: with {weights:,} weights, rounding may add "
            f"{moved / norm - 1:.1%} to what a record contributes, more than the "
            f"{MOST_ROUNDING - 1:.0%} that is planned for; use a smaller network, fewer records "
            "per client, or privacy.noise=client"
        )
    protects_clients = plan.user_event is not None
    made: ServerMechanism = MECHANISMS["record_sums"](
        own.round_event if plan.user_event is None else plan.user_event,
        records=records,
        share=sampler.expected(config.num_sites) / config.num_sites,
        sample_rate=own.sample_rate,
        max_norm=norm,
        sensitivity=moved,
        noise_multiplier=own.noise_multiplier,
        client_norm=config.privacy.user.max_grad_norm if protects_clients else None,
        noised_by=_noised_by(config),
    )
    return made


def _noised_by(config: Config) -> NoisedBy:
    """Who noises the sum of all clients' answers."""
    if config.privacy.noise == "shares":
        return "shares"
    whole = config.privacy.style.protects_clients and not config.client_noise_at_server
    return "client" if whole else "server"


def _moved(mechanism: DPSGD | StatisticMean, weights: int, records: int) -> float:
    """How far one record moves a sum of so many values over at most so many records."""
    if isinstance(mechanism, StatisticMean):
        return mechanism.sensitivity(weights=weights)
    return mechanism.sensitivity(weights=weights, records=records)


def _dp_sgd(config: Config, sigma: float, q: float, steps: int, grad_mode: str) -> DPSGD:
    settings = config.privacy.sample
    made: DPSGD = MECHANISMS["dp_sgd"](
        noise_multiplier=sigma,
        max_grad_norm=settings.max_grad_norm,
        grad_mode=str(GradMode(grad_mode)),  # a server may send any word
        physical_batch_size=settings.physical_batch_size,
        sample_rate=q,
        steps=steps,
        noised_by=_noised_by(config) if config.sums_records else "client",
        client_norm=_client_norm(config),
    )
    return made


def _statistic(config: Config, sigma: float, records: int) -> StatisticMean:
    made: StatisticMean = MECHANISMS["statistic_mean"](
        noise_multiplier=sigma,
        records=records,
        noised_by=_noised_by(config) if config.sums_records else "client",
        client_norm=_client_norm(config),
        adjacency=record_adjacency(config),
    )
    return made


def _client_norm(config: Config) -> float | None:
    """The bound of a client's whole sum, where one noise protects records and clients."""
    both = config.sums_records and config.privacy.style.protects_clients
    return config.privacy.user.max_grad_norm if both else None


def record_mechanism(config: Config, order: RecordOrder, records: int) -> RecordMechanism:
    """What protects a client's records as a server asks for, if its own settings imply no other.

    Raises:
        ConfigError: naming what differs.
        ValueError: for a way to compute gradients that there is not.
    """
    q, steps = round_shape(config, records)
    for key, value in (("sample_rate", q), ("steps", steps)):
        asked = getattr(order, key)
        if asked != value:
            raise ConfigError(f"the server asks for {key}={asked!r}, we have {value}")
    sigma, least = order.noise_multiplier, config.privacy.sample.noise_multiplier or 0.0
    if not max(least, LEAST_NOISE) <= sigma < math.inf:
        raise ConfigError(f"the server asks for noise_multiplier={sigma}, too little")
    made: RecordMechanism
    if config.task.kind is not TaskKind.anomaly:
        made = _dp_sgd(config, sigma, q, steps, order.grad_mode)
    elif config.releases_rows:
        made = MECHANISMS["noisy_rows"](
            noise_multiplier=sigma, rows_per_record=config.anomaly.rows_per_image
        )
    else:
        made = _statistic(config, sigma, records)
    return made


def own_answer(
    config: Config,
    order: RoundOrder,
    records: RecordMechanism | None,
    *,
    weights: int,
    count: int,
    shares: int,
) -> OwnAnswer | None:
    """What a client does to its whole answer; None where it does nothing to it.

    Args:
        config: this client's settings.
        order: the server's, which says how much noise the sum has.
        records: what protects this client's records.
        weights: of the model.
        count: this client's records.
        shares: honest clients that draw the noise together.

    Raises:
        ConfigError: if the server asks for less noise than its own words need.
    """
    noised_by = _noised_by(config)
    if noised_by == "server":
        return None
    updates, needed, sums = None, 0.0, list[PrivateSum]()
    if config.privacy.style.protects_clients:
        updates = _own_updates(config, order.client_noise)
        needed, sums = updates.std, [updates.sums]
    if config.sums_records and isinstance(records, DPSGD | StatisticMean):
        moved, sigma = _moved(records, weights, count), records.noise_multiplier
        needed = max(needed, gaussian_std(noise_multiplier=sigma, sensitivity=moved))
        sums = [records.sums]
    std = order.noise_std
    if std is None or not needed <= std < math.inf:
        raise ConfigError(f"the server asks for noise_std={std}, too little for {needed:g}")
    try:
        noise = OwnNoise(grid=sums[0].grid, std=std, shares=shares)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return OwnAnswer(noise=noise, updates=updates, is_sum=config.sums_records)


def _own_updates(config: Config, sigma: float | None) -> ClientUpdates:
    """What one client's whole update is clipped to, and charged for."""
    least = config.privacy.user.noise_multiplier or 0.0
    if sigma is None or not max(least, LEAST_NOISE) <= sigma < math.inf:
        raise ConfigError(f"the server asks for client_noise={sigma}, too little")
    sampler, population = make_sampler(config), config.num_sites
    made: ClientUpdates = MECHANISMS["fixed"](
        sampler.event(noise_multiplier=sigma, population=population),
        max_norm=config.privacy.user.max_grad_norm,
        expected_cohort=sampler.expected(population),
        population=population,
        noised_by=_noised_by(config),
    )
    return made
