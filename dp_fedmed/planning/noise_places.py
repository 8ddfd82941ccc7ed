"""What changes with who draws the noise: each client, all clients together, or the server."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dp_fedmed.config import Config, NoisePlace, PrivacyStyle, Topology
from dp_fedmed.config.quorum import quorum
from dp_fedmed.errors import ConfigError
from dp_fedmed.planning.forecast import Forecast, forecast
from dp_fedmed.planning.plan import largest_sigma, noise_in_sum
from dp_fedmed.privacy.accounting.events import Level


@dataclass(frozen=True, kw_only=True)
class PlacedNoise:
    """The noise of a run, drawn in one place.

    Attributes:
        place: `client`, `shares` or `server`; `null` where a style has two.
        is_chosen: whether the plan has it there.
        sigma: σ by level; the largest of all clients' for records.
        noise: standard deviation in the federation's sum, in units of C: of a client where clients
            are protected, else of a record.
        honest: clients that must not collude or drop out, where they share the noise.
        server: ε by level against the server; without those that promise it nothing.
        others: ε by level against whoever receives the model.
        refused: why it cannot be there.
    """

    place: str
    is_chosen: bool
    sigma: Mapping[str, float] = field(default_factory=dict)
    noise: float = math.nan
    honest: int | None = None
    server: Mapping[str, float] = field(default_factory=dict)
    others: Mapping[str, float] = field(default_factory=dict)
    refused: str | None = None


def noise_places(made: Forecast) -> list[PlacedNoise]:
    """Each place, where there is a choice: clients' answers are added up, and noised."""
    config = made.config
    is_sum = config.federation.topology is Topology.federated and not config.releases_rows
    if made.plan is None or not is_sum or not made.levels:
        return []
    places: list[NoisePlace | None] = list(NoisePlace)
    if config.privacy.style is PrivacyStyle.hybrid:
        places.insert(0, None)
    return [_placed(made, place) for place in places]


def _placed(made: Forecast, place: NoisePlace | None) -> PlacedNoise:
    config, name = made.config, "null" if place is None else str(place)
    mixes = config.privacy.style is PrivacyStyle.hybrid
    chosen = config.privacy.noise is place if mixes else config.noised_by == name
    try:
        if not chosen:
            privacy = replace(config.privacy, noise=place)
            made = forecast(config.replace(privacy=privacy), made.records, fast=True)
    except ConfigError as error:
        return PlacedNoise(place=name, is_chosen=False, refused=str(error))
    spent = {level: held.enforced(made.method) for level, held in made.levels.items()}
    return PlacedNoise(
        place=name,
        is_chosen=chosen,
        sigma={level: held.sigma for level, held in made.levels.items()},
        noise=_noise(made),
        honest=quorum(made.config).honest if made.config.masks else None,
        server={level: epsilon for level, epsilon in spent.items() if _holds(made.config, level)},
        others=spent,
    )


def _holds(config: Config, level: str) -> bool:
    """Whether a guarantee is against the server too."""
    if level == Level.sample:
        return not config.record_noise_at_server
    return not config.client_noise_at_server


def _noise(made: Forecast) -> float:
    """In the sum, in units of C; what each client adds for its records besides is left out."""
    config, plan = made.config, made.plan
    if plan is None:
        return math.nan
    if plan.user_event is not None:
        return noise_in_sum(config) * plan.user_event.noise_multiplier
    if config.sums_records:
        return noise_in_sum(config) * largest_sigma(plan.clients)
    share = made.cohort / len(made.records)
    return math.sqrt(share * sum(own.noise_multiplier**2 for own in plan.clients.values()))
