"""What an audit attacks: releases of the configuration's own network and loss, or its statistic.

Each source computes one release by the code that a run uses: the client's `LocalWork`, and, where
the server noises, the learner's mechanism. Canaries and the records beside them come from the
server's own validation records, changed so that they move as much as possible; no client's record
is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.assemble import (
    make_learner,
    make_work,
    record_mechanism,
    server_step,
)
from dp_fedmed.config import Config, GradMode, OptimizerName, TaskKind
from dp_fedmed.data import DataSet, Records
from dp_fedmed.data.records import joined
from dp_fedmed.evidence.audited_run import OVER, planned_privacy
from dp_fedmed.evidence.findings import QUIET, AuditTarget
from dp_fedmed.evidence.one_release import Arrays
from dp_fedmed.evidence.released_sums import released
from dp_fedmed.federation import ClientPlan, PrivacyPlan, RecordOrder
from dp_fedmed.learning import (
    AnomalyWork,
    Learner,
    LocalOnlyLearner,
    LocalRound,
    LocalWork,
    NetworkLearner,
)
from dp_fedmed.learning.anomaly.features import FeatureCache, PatchFeatures
from dp_fedmed.planning.plan import make_sampler
from dp_fedmed.privacy.streams import RoundStreams

State = dict[str, NDArray[Any]]

BESIDE = 15  # records in a canary's batch
TRIED = 6  # validation records that canaries are made from
MODELS = 6  # that are tried besides the initial one, with random weights
SCALES = (0.03, 10.0)  # of an array of random weights, relative to one over the root of its inputs
SITE, OTHER = "canary", "other"


@dataclass(frozen=True, kw_only=True)
class Attacked:
    """What an audit attacks: its description, and the sources of its releases.

    >>> described = {"network": "a.Net", "loss": "cross_entropy"}
    >>> Attacked(described=described, replaced="", sources=[]).name
    'a.Net, loss cross_entropy'
    """

    described: Mapping[str, str | int]
    replaced: str  # what of the configuration takes no part, and why it need not
    sources: Sequence[Any]
    each_one: bool = False  # attacked is each source, not only the one that moves most

    @property
    def name(self) -> str:
        """What is attacked, in words."""
        first, *rest = self.described.items()
        words = [str(first[1]), *(f"{key.replace('_', ' ')} {value}" for key, value in rest)]
        return ", ".join(word for word in words if not word.startswith("trained weights"))


def attacked(
    config: Config, target: AuditTarget, data: DataSet, rng: np.random.Generator
) -> Attacked:
    """The releases of a configuration that protect one unit.

    Raises:
        ConfigError: for what a run of the configuration would refuse.
    """
    learner = make_learner(config, data, {SITE: len(data.val), OTHER: len(data.val)})
    if isinstance(learner, LocalOnlyLearner):
        learner = learner.inner
    if isinstance(learner, NetworkLearner):
        return _network(config, target, data, learner, rng)
    return _statistic(config, target, data, learner, rng)


def _network(
    config: Config,
    target: AuditTarget,
    data: DataSet,
    learner: NetworkLearner,
    rng: np.random.Generator,
) -> Attacked:
    trained = {name for name, p in learner.model.named_parameters() if p.requires_grad}
    initial = learner.initial()
    described: dict[str, str | int] = {
        "network": config.model._target_,
        "loss": str(config.task.loss),
        "trained_weights": sum(initial[name].size for name in trained),
    }
    canaries = candidates(data, rng)
    if target.unit == "client":
        source = ClientRelease(config, target, data, initial, canaries)
        return Attacked(
            described=described,
            replaced="the server's optimizer, which sees only what was released",
            sources=[source],
        )
    mode = GradMode(learner.settle(str(config.privacy.sample.grad_mode)))
    sample = replace(config.privacy.sample, grad_mode=mode)
    config = config.replace(privacy=replace(config.privacy, sample=sample))
    described["grad_mode"] = str(mode)
    one_step = _one_step(config, target)
    work = _built(one_step, data)
    models = [initial, *(_moved(initial, trained, rng) for _ in range(MODELS))]
    return Attacked(
        described=described,
        replaced="the clients' and the server's optimizers, which see only what was released",
        sources=[RecordRelease(one_step, target, data, work, model, canaries) for model in models],
    )


def _statistic(
    config: Config, target: AuditTarget, data: DataSet, learner: Learner, rng: np.random.Generator
) -> Attacked:
    """One source for each release of a statistic: each has vectors of its own."""
    changed = _one_step(config, target)
    work, canaries = _built(changed, data), candidates(data, rng, images=True)
    if isinstance(work, AnomalyWork):
        work.detector.features = _Kept(work.detector.features)
    state, sources = learner.initial(), list[Any]()
    releases = 1 if config.releases_rows else min(config.federation.num_rounds, 2)
    for number in range(releases):
        if target.unit == "record":
            sources.append(RecordRelease(changed, target, data, work, state, canaries))
        else:
            sources.append(ClientRelease(changed, target, data, state, canaries))
        if number + 1 < releases:
            answer, _ = work.train(_round(state, data.val))
            plan = _plan(config, target, len(data.val))
            step = server_step(config, learner, plan, make_sampler(config))
            state = step.step(state, answer)
    by_server = target.unit == "client" or config.sums_records
    return Attacked(
        described={
            "mechanism": str(config.anomaly.mechanism),
            "backbone": config.anomaly.backbone,
            "noised_by": "server" if by_server else "client",
        },
        replaced="nothing",
        sources=sources,
        each_one=True,
    )


class _Kept(PatchFeatures):
    """Patch features with a cache: an audit asks for the same few images many times."""

    def __init__(self, plain: PatchFeatures) -> None:
        self.cache = FeatureCache(plain)

    def batches(self, images: NDArray[np.uint8]) -> Iterator[NDArray[np.float32]]:
        """As they were computed first."""
        return self.cache.batches(images)


def _round(model: State, records: Records, **private: Any) -> LocalRound:
    return LocalRound(name=SITE, server_round=1, received=model, records=records, **private)


def _plan(config: Config, target: AuditTarget, records: int) -> PrivacyPlan:
    """The run's plan as far as one release depends on it."""
    sigma = target.noise_multiplier
    if target.unit == "client":
        event = make_sampler(config).event(
            noise_multiplier=sigma, population=config.federation.num_clients
        )
        clients = _two_clients(records, QUIET) if config.sums_records else {}
        return PrivacyPlan(
            delta_sample=None, delta_user=target.delta, clients=clients, user_event=event
        )
    clients = _two_clients(records, sigma)
    return PrivacyPlan(delta_sample=target.delta, delta_user=None, clients=clients, user_event=None)


def _two_clients(records: int, sigma: float) -> dict[str, ClientPlan]:
    own = ClientPlan(
        records=records, sample_rate=1.0, steps=1, participations=None, noise_multiplier=sigma
    )
    return {SITE: own, OTHER: own}


def _one_step(config: Config, target: AuditTarget) -> Config:
    """One step with all records, by an optimizer whose step is the release itself."""
    plain = replace(
        config.training,
        optimizer=OptimizerName.sgd,
        lr=1.0,
        momentum=0.0,
        weight_decay=0.0,
        batch_size=1_000_000,
        local_steps=1,
        device="cpu",
    )
    return replace(config, training=plain, privacy=planned_privacy(config.privacy, target))


def _built(config: Config, data: DataSet) -> LocalWork:
    work = make_work(config)
    work.build(data.input_shape, data.num_classes)
    return work


def _moved(initial: State, trained: set[str], rng: np.random.Generator) -> State:
    """The model with its trained weights at random, each array at a scale of its own.

    A curious server may send it, and a head that starts at zero hides what the layers below do.
    """
    state = dict(initial)
    for name in sorted(trained):
        value = initial[name]
        inputs = math.prod(value.shape[1:]) if value.ndim > 1 else value.size
        std = math.exp(rng.uniform(*np.log(SCALES))) / math.sqrt(max(1, inputs))
        state[name] = (value + rng.normal(0.0, std, value.shape)).astype(value.dtype)
    return state


def candidates(data: DataSet, rng: np.random.Generator, *, images: bool = False) -> Records:
    """Records made to move as much as possible; that is what a guarantee must hold for."""
    own = data.val.subset(np.arange(min(TRIED, len(data.val)))[::-1])
    x, y = [own.x], [own.y]
    for crafted in _crafted(own.x, rng, images=images):
        x.append(crafted)
        y.append(np.resize(own.y, (len(crafted), *own.y.shape[1:])))
    inputs, labels = np.concatenate(x), np.concatenate(y)
    if images:
        return Records(inputs, np.zeros_like(labels))
    is_class = np.issubdtype(labels.dtype, np.integer)
    other = data.num_classes - 1 - labels if is_class else -10.0 * labels - 10.0
    return joined(Records(inputs, labels), Records(inputs, other.astype(labels.dtype)))


def _crafted(x: NDArray[Any], rng: np.random.Generator, *, images: bool) -> list[NDArray[Any]]:
    if x.dtype != np.uint8:
        loud = rng.normal(0.0, 10.0, x.shape)
        kinds = (10.0 * x, loud, 1e3 * loud[:2], 1e6 * loud[:2])
        return [values.astype(np.float32) for values in kinds]
    noise = rng.integers(0, 256, x[:2].shape, dtype=np.uint8)
    if not images:
        return [noise, 255 - x[:2]]
    rows, columns = np.indices(x.shape[2:])
    waves = (rows % 4 < 2, columns % 4 < 2, (rows + columns) % 8 < 4, rows % 16 < 8, rows < 0)
    made = np.stack([np.broadcast_to(255 * wave, x.shape[1:]) for wave in waves]).astype(np.uint8)
    return [noise, made, made[:3] // np.arange(1, x.shape[1] + 1, dtype=np.uint8)[:, None, None]]


class RecordRelease:
    """A client's release of its records' sum, or, where the server noises it, the server's.

    Input 0 is the records beside the canary. The number of records is public, so that the sum is
    what is protected: an answer times its denominator.
    """

    def __init__(
        self,
        config: Config,
        target: AuditTarget,
        data: DataSet,
        work: LocalWork,
        model: State,
        canaries: Records,
    ) -> None:
        self.config, self.target, self.work, self.model = config, target, work, model
        self.canaries = canaries
        self.beside = data.val.subset(np.arange(min(BESIDE, len(data.val))))
        self.name = f"one release of {target.unit}s"
        self.replaces = target.adjacency == "replace_one"
        rows = config.anomaly.rows_per_image if config.releases_rows else 1
        self.draws = 8 if config.releases_rows else 1  # which patches are drawn is random too
        self.is_statistic = config.task.kind is TaskKind.anomaly
        norm = 1.0 if self.is_statistic else target.clip_norm
        self.bound = norm * math.sqrt(rows) * (2.0 if self.replaces else 1.0)
        self.inputs = 1 + len(canaries)

    def release(self, number: int, secrets: RoundStreams) -> Arrays:
        """The noised sum."""
        records = self.beside
        if number > 0:
            # First, so that whatever depends on a place in the batch moves.
            records = joined(self.canaries.subset(np.array([number - 1])), records)
        count = len(records)
        order = RecordOrder(
            noise_multiplier=self.target.noise_multiplier,
            sample_rate=1.0,
            steps=1,
            grad_mode=str(self.config.privacy.sample.grad_mode),
        )
        mechanism = record_mechanism(self.config, order, count)
        work = _round(self.model, records, mechanism=mechanism, streams=secrets)
        answer, _ = self.work.train(work)
        if self.config.releases_rows:
            rows = count * self.config.anomaly.rows_per_image
            return {name: value[:rows].astype(np.float64) for name, value in answer.items()}
        if self.config.sums_records:
            plan = _plan(self.config, self.target, count)
            return released(self.config, plan, {SITE: answer}, secrets)
        sign = 1.0 if self.is_statistic else -1.0  # a step goes against the gradient
        return {name: sign * count * value.astype(np.float64) for name, value in answer.items()}


class ClientRelease:
    """The server's release of the clients' answers; a canary client answers ten times C.

    It may: what a client sends is not trusted by the guarantee for clients.
    """

    replaces, draws = False, 1

    def __init__(
        self,
        config: Config,
        target: AuditTarget,
        data: DataSet,
        model: State,
        canaries: Records,
    ) -> None:
        self.config = replace(config, privacy=planned_privacy(config.privacy, target))
        self.name, self.bound = "one release of clients", target.clip_norm
        self.plan = _plan(config, target, len(data.val))
        work = _built(config, data)
        half = data.val.subset(np.arange(min(BESIDE, len(data.val))))
        parts = [half, *(canaries.subset(np.array([i])) for i in range(0, len(canaries), 4))]
        self.answers = [work.train(_round(model, part))[0] for part in parts]
        self.inputs = len(parts)

    def release(self, number: int, secrets: RoundStreams) -> Arrays:
        """The noised sum."""
        answers = {OTHER: self.answers[0]}
        if number > 0:
            answers[SITE] = _enlarged(self.answers[number], OVER * self.bound)
        return released(self.config, self.plan, answers, secrets)


def _enlarged(answer: State, norm: float) -> State:
    squares = (float(np.square(value, dtype=np.float64).sum()) for value in answer.values())
    own = math.sqrt(sum(squares))
    factor = norm / own if own > 0.0 else 1.0
    return {
        name: (value * factor).astype(value.dtype) if value.dtype.kind == "f" else value
        for name, value in answer.items()
    }
