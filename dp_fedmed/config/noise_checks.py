"""Refuses noise in a place where it cannot be, and masks where there is nothing to hide in.

Each yields what it refuses, in which `{key}` stands for `key=value`.
"""

from __future__ import annotations

from collections.abc import Iterator

from dp_fedmed.config.choices import (
    Clipping,
    NoisePlace,
    OptimizerName,
    PrivacyStyle,
    SamplerName,
    TaskKind,
    Topology,
)
from dp_fedmed.config.quorum import quorum
from dp_fedmed.config.schema import Config


def noise_place(config: Config) -> Iterator[str]:
    """Refuses noise in a place where nothing is added up, or where one step is not one sum."""
    privacy, training = config.privacy, config.training
    by_clients = privacy.noise in (NoisePlace.client, NoisePlace.shares)
    if privacy.style.protects_clients and by_clients:
        yield from _noise_by_clients(config)
    if not config.sums_records:
        return
    if config.federation.topology is not Topology.federated:
        yield (
            "{privacy.noise} contradicts {federation.topology}: no server adds up what clients "
            "answer; use privacy.noise=client"
        )
    if config.releases_rows:
        yield (
            "{privacy.noise} contradicts {anomaly.mechanism}: rows do not add up, so there is no "
            "sum to noise; use privacy.noise=client"
        )
    if privacy.style.protects_clients and privacy.user.clipping is not Clipping.fixed:
        yield (
            "{privacy.user.clipping} contradicts {privacy.noise}: one noise for records and "
            "clients needs norms that stay; use privacy.user.clipping=fixed"
        )
    if config.task.kind is TaskKind.anomaly:
        return
    if training.local_steps != 1:
        yield (
            "{training.local_steps} contradicts {privacy.noise}: the second step of a round would "
            "depend on a first that nobody has noised; use training.local_steps=1"
        )
    if training.optimizer is not OptimizerName.sgd:
        yield (
            "{training.optimizer} contradicts {privacy.noise}: clients send sums of gradients, and "
            "the server takes the step; use training.optimizer=sgd, and federation."
            "server_optimizer=fedadam for adaptive steps"
        )


def _noise_by_clients(config: Config) -> Iterator[str]:
    """Refuses what a client that noises its own update rules out."""
    federation = config.federation
    if federation.sampler is SamplerName.poisson and federation.sample_rate < 1.0:
        yield (
            "{federation.sampler} with {federation.sample_rate} contradicts {privacy.noise}: who "
            "takes part is no secret where clients draw the noise, so a random cohort protects "
            "nobody more; use federation.sampler=fixed, or federation.sample_rate=1"
        )
    if config.privacy.user.clipping is not Clipping.fixed:
        yield (
            "{privacy.user.clipping} contradicts {privacy.noise}: it needs a count of all clients' "
            "norms, which only a server that sees their updates has; use "
            "privacy.user.clipping=fixed"
        )


def secure_aggregation(config: Config) -> Iterator[str]:
    """Refuses secure aggregation where there is no sum, or too few clients to hide in it."""
    federation, style = config.federation, config.privacy.style
    if federation.secure_aggregation and config.noised_by not in ("nobody", "shares"):
        yield (
            "{federation.secure_aggregation} contradicts privacy.noise="
            f"{config.noised_by}: masks hide what the server would noise or check; use "
            "privacy.noise=shares, which has it, or federation.secure_aggregation=false"
        )
    if not config.masks:
        return
    key = "{privacy.noise}" if style is not PrivacyStyle.none else "{federation.secure_aggregation}"
    if federation.topology is not Topology.federated:
        yield f"{key} contradicts {{federation.topology}}: it needs answers that are added up"
    if style is PrivacyStyle.none and config.task.kind is TaskKind.anomaly:
        yield (
            f"{key} contradicts {{task.kind}}: a memory bank is made of rows, which do not add up; "
            "use federation.secure_aggregation=false, or privacy=user privacy.noise=shares"
        )
    if federation.sampler is SamplerName.poisson and federation.sample_rate < 1.0:
        yield (
            f"{key} contradicts {{federation.sampler}} with {{federation.sample_rate}}: the number "
            "of clients must be known before a round; use federation.sampler=fixed"
        )
    if federation.min_clients is not None:
        yield (
            f"{{federation.min_clients}} contradicts {key}: how many answers a sum needs is the "
            "cohort less federation.max_dropouts; set that instead"
        )
    agreed = quorum(config)
    if agreed.honest < 2:
        yield (
            f"{key} needs two clients or more whom nobody betrays: of {agreed.clients} per round, "
            f"{agreed.clients - agreed.minimum} may drop out (federation.max_dropouts) and "
            f"{agreed.colluding} collude (federation.max_colluding); ask at least "
            f"{agreed.clients - agreed.honest + 2} clients per round, or lower one of the two"
        )
