"""Who trains, in words."""

from __future__ import annotations

from dp_fedmed.config import Config, Topology


def describe_sites(config: Config) -> str:
    """The clients, or what they are replaced by.

    >>> from dp_fedmed.config import compose
    >>> describe_sites(compose(["federation=centralized"]))
    'one site with the records of 5 clients'
    """
    clients = f"{config.federation.num_clients} clients"
    return {
        Topology.federated: clients,
        Topology.centralized: f"one site with the records of {clients}",
        Topology.local_only: f"{clients}, each alone",
    }[config.federation.topology]
