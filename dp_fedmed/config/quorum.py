"""How many clients a round of secure aggregation asks, needs and may distrust."""

from __future__ import annotations

from dataclasses import dataclass

from dp_fedmed.config.choices import SamplerName
from dp_fedmed.config.schema import Config


@dataclass(frozen=True)
class Quorum:
    """What the clients of a round agree on.

    Attributes:
        clients: K that a round asks.
        minimum: K − t, whose answers a sum must have to be unmasked.
        colluding: c that may tell the server all that they know.
    """

    clients: int
    minimum: int
    colluding: int

    @property
    def honest(self) -> int:
        """K − t − c: as many shares of the noise must be enough."""
        return self.minimum - self.colluding


def cohort_size(config: Config) -> int:
    """The (expected) number of clients in a round, at least one."""
    federation = config.federation
    if federation.sampler is SamplerName.all:
        return config.num_sites
    return max(1, round(federation.sample_rate * config.num_sites))


def quorum(config: Config) -> Quorum:
    """What a configuration says; a fifth of the clients may drop out unless it does.

    >>> from dp_fedmed.config import compose
    >>> quorum(compose(["privacy=user", "privacy.noise=shares", "federation.num_clients=20"]))
    Quorum(clients=20, minimum=16, colluding=1)
    """
    clients, most = cohort_size(config), config.federation.max_dropouts
    dropouts = clients // 5 if most is None else most
    return Quorum(clients, clients - dropouts, config.federation.max_colluding)
