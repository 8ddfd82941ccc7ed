"""What it would change who draws the noise of records: each client, or the server for the sum."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dp_fedmed.config import Config, NoisePlace, PrivacyStyle, Topology
from dp_fedmed.config.checks import validate
from dp_fedmed.errors import ConfigError
from dp_fedmed.planning.forecast import Forecast
from dp_fedmed.planning.plan import largest_sigma


@dataclass(frozen=True, kw_only=True)
class PlacedNoise:
    """The noise of records, drawn in one place.

    Attributes:
        place: `client` or `server`.
        is_chosen: whether the plan has it there.
        sigma: the largest of all clients'.
        noise: standard deviation in the federation's sum, in units of C.
        server: ε of a record against the server; None where it is promised nothing.
        others: ε of a record against whoever receives the model.
        refused: why it cannot be there.
    """

    place: str
    is_chosen: bool
    sigma: float
    noise: float
    server: float | None
    others: float
    refused: str | None


def noise_places(made: Forecast) -> list[PlacedNoise]:
    """Each place, where there is a choice: style `sample`, and clients whose sums are added up."""
    config, plan, binding = made.config, made.plan, made.binding
    is_sum = config.federation.topology is Topology.federated and not config.releases_rows
    if config.privacy.style is not PrivacyStyle.sample or not is_sum:
        return []
    if plan is None or not plan.clients or binding is None:
        return []
    sigma, epsilon = largest_sigma(plan.clients), binding.spending.enforced(made.method)
    share = made.cohort / len(made.records)
    each = math.sqrt(share * sum(own.noise_multiplier**2 for own in plan.clients.values()))
    found = []
    for place, noise in ((NoisePlace.client, each), (NoisePlace.server, sigma)):
        at_server = place is NoisePlace.server
        found.append(
            PlacedNoise(
                place=place.value,
                is_chosen=config.record_noise_at_server is at_server,
                sigma=sigma,
                noise=noise,
                server=None if at_server else epsilon,
                others=epsilon,
                refused=_refusal(config, place),
            )
        )
    return found


def _refusal(config: Config, place: NoisePlace) -> str | None:
    try:
        validate(config.replace(privacy=replace(config.privacy, noise=place)))
    except ConfigError as error:
        return str(error)
    return None
