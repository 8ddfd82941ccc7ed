"""From a configuration to the objects of a run: the only room that knows both."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import TYPE_CHECKING

from flwr.serverapp import Grid

from dp_fedmed.assemble.advice import advice_of, alone
from dp_fedmed.assemble.mechanisms import own_answer as own_answer
from dp_fedmed.assemble.mechanisms import record_mechanism as record_mechanism
from dp_fedmed.assemble.mechanisms import server_mechanism as server_mechanism
from dp_fedmed.config import Config, PrivacyStyle, TaskKind, Topology, better
from dp_fedmed.engines.running import with_connected_clients
from dp_fedmed.errors import ConfigError
from dp_fedmed.federation import PrivacyPlan, Sampler, ServerOptimizer, StopRequest
from dp_fedmed.learning import Learner, LocalOnlyLearner, LocalOnlyStep, LocalWork, ServerStep
from dp_fedmed.planning.plan import make_sampler, noise_of
from dp_fedmed.privacy.mechanisms import ServerMechanism
from dp_fedmed.reporting.run_log import log_to
from dp_fedmed.run import Observer, RunResult, ServerRun

if TYPE_CHECKING:
    from dp_fedmed.data import DataSet
    from dp_fedmed.learning import Build, DetectorSettings, LocalTraining, Task
    from dp_fedmed.site import ClientRuntime

logger = logging.getLogger(__name__)


class Assembly:
    """Makes the parts of a server's run: see `dp_fedmed.run.phases.Parts`."""

    def sampler(self, config: Config) -> Sampler:
        """The sampler that the configuration names."""
        return make_sampler(config)

    def learner(self, config: Config, data: DataSet, clients: Mapping[str, int]) -> Learner:
        """The server's half of what is learnt."""
        return make_learner(config, data, clients)

    def mechanism(
        self, config: Config, learner: Learner, plan: PrivacyPlan, sampler: Sampler
    ) -> ServerMechanism | None:
        """What the server clips and noises, if anything."""
        weights = sum(value.size for value in learner.initial().values())
        return server_mechanism(config, plan, sampler, weights=weights)

    def step(
        self, config: Config, learner: Learner, plan: PrivacyPlan | None, sampler: Sampler
    ) -> ServerStep:
        """What the server makes of a round's answers."""
        return server_step(config, learner, plan, sampler)

    def advice(
        self,
        config: Config,
        learner: Learner,
        plan: PrivacyPlan,
        sampler: Sampler,
        records: Mapping[str, int],
        *,
        is_new: bool,
    ) -> Iterator[str]:
        """What `dp-fedmed plan` would have warned of, when a run begins."""
        return advice_of(config, learner, plan, sampler, records, is_new=is_new)


def network_builder(config: Config) -> Build:
    """Makes the configured network for records of a shape and a number of classes."""
    from dp_fedmed.models import build_model

    return lambda input_shape, num_classes: build_model(
        config.model, input_shape=input_shape, num_classes=num_classes, seed=config.seed
    )


def make_task(config: Config) -> Task:
    """The task that the configuration names."""
    from dp_fedmed.learning import make_task as task_of

    return task_of(config.task.kind, config.task.loss)


def local_training(config: Config) -> LocalTraining:
    """How a client trains."""
    from dp_fedmed.learning import LocalTraining

    given = {f.name: getattr(config.training, f.name) for f in fields(LocalTraining)}
    return LocalTraining(**given)


def detector_settings(config: Config) -> DetectorSettings:
    """What an anomaly detector is made of."""
    from dp_fedmed.learning import BANK_MECHANISM, DetectorSettings

    settings, is_bank = config.anomaly, config.privacy.style is PrivacyStyle.none
    return DetectorSettings(
        mechanism=BANK_MECHANISM if is_bank else str(settings.mechanism),
        backbone=settings.backbone,
        weights=settings.weights,
        layers=settings.layers,
        grid=settings.grid,
        dimension=settings.dimension,
        coreset_size=settings.coreset_size,
        coreset_ratio=settings.coreset_ratio,
        neighbours=settings.neighbours,
        rows_per_image=settings.rows_per_image,
        seed=config.seed,
        data_name=config.data.name,
    )


def make_learner(
    config: Config, data: DataSet, clients: Mapping[str, int] = MappingProxyType({})
) -> Learner:
    """The server's half of what the configuration names.

    Args:
        config: the run's.
        data: the server's own.
        clients: each one's number of records where `Config.asks_for_sizes`, else 0.
    """
    num_records = sum(clients.values())
    if config.federation.topology is Topology.local_only:
        each = num_records // max(1, len(clients))
        metric = config.task.metric
        inner = _one_learner(config, data, each)
        return LocalOnlyLearner(inner, list(clients), metric=metric, sign=better(metric))
    return _one_learner(config, data, num_records)


def _one_learner(config: Config, data: DataSet, num_records: int) -> Learner:
    if config.task.kind is TaskKind.anomaly:
        from dp_fedmed.learning import AnomalyLearner

        settings = detector_settings(config)
        return AnomalyLearner(settings, data, num_records)
    from dp_fedmed.learning import NetworkLearner

    device = config.training.device
    return NetworkLearner(network_builder(config), make_task(config), data, device=device)


def make_work(config: Config) -> LocalWork:
    """A client's half of what the configuration names."""
    if config.task.kind is TaskKind.anomaly:
        from dp_fedmed.learning import AnomalyWork

        return AnomalyWork(detector_settings(config))
    from dp_fedmed.learning import NetworkWork

    return NetworkWork(
        network_builder(config),
        make_task(config),
        local_training(config),
        seed=config.seed,
        device=config.training.device,
    )


def server_step(
    config: Config, learner: Learner, plan: PrivacyPlan | None, sampler: Sampler
) -> ServerStep:
    """What the server makes of a round's answers; one step per client where each is alone."""
    if isinstance(learner, LocalOnlyLearner):
        return LocalOnlyStep(
            {
                name: server_step(config, learner.inner, alone(plan, name), sampler)
                for name in learner.names
                if plan is None or name in plan.clients
            }
        )
    if config.task.kind is not TaskKind.anomaly:
        from dp_fedmed.learning import GradientStep, NetworkLearner

        federation = config.federation
        optimizer = ServerOptimizer(
            str(federation.server_optimizer),
            lr=federation.server_lr,
            momentum=federation.server_momentum,
            beta2=federation.server_beta2,
            tau=federation.server_tau,
        )
        if not config.sums_records or not isinstance(learner, NetworkLearner):
            return optimizer
        training, trained = config.training, learner.trained
        return GradientStep(
            optimizer, lr=training.lr, weight_decay=training.weight_decay, trained=trained
        )
    from dp_fedmed.learning import AnomalyLearner, BankStep, NoisyRowsStep, StatisticStep

    if plan is None:
        return BankStep(config.seed)
    if config.releases_rows:
        return NoisyRowsStep(config.seed)
    if not isinstance(learner, AnomalyLearner):
        raise TypeError(f"{type(learner).__name__} has no detector")
    return StatisticStep(learner.detector, noise_of(config, plan, sampler)[0])


def client_runtime(config: Config) -> ClientRuntime:
    """What a process needs to act as any of the clients."""
    from dp_fedmed.site import ClientRuntime

    own = functools.partial(own_answer, config)
    records = functools.partial(record_mechanism, config)
    return ClientRuntime(config, make_work(config), records, own)


def serve(
    grid: Grid,
    config: Config,
    observer: Observer,
    *,
    num_clients_given: bool = True,
    stop: StopRequest | None = None,
    parts: Assembly | None = None,
) -> RunResult:
    """Run a configuration on a grid, whichever engine is behind it; `parts` may be your own."""
    config, nodes = with_connected_clients(grid, config, num_clients_given=num_clients_given)
    run = ServerRun(config, parts or Assembly(), observer, stop)
    try:
        log = run.directory.log_file(secret=config.privacy.style.protects_clients)
        with log_to(log, run.directory.path):
            return run.run(grid, nodes)
    except ConfigError:
        run.store.withdraw()
        raise
    finally:
        run.store.release()
