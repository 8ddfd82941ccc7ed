"""What a run is warned of when it begins, from public numbers."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace

from dp_fedmed.config import Config, TaskKind
from dp_fedmed.federation import PrivacyPlan, Sampler
from dp_fedmed.learning import Learner, LocalOnlyLearner
from dp_fedmed.reporting.plan_words import anomaly_advice, delta_warnings, warnings_of_run

logger = logging.getLogger(__name__)


def advice_of(
    config: Config,
    learner: Learner,
    plan: PrivacyPlan,
    sampler: Sampler,
    records: Mapping[str, int],
    *,
    is_new: bool,
) -> Iterator[str]:
    """What `dp-fedmed plan` would have warned of, when a run begins."""
    for said in delta_warnings(config, plan, records):
        logger.warning("%s", said)
    advice = learner_advice(config, learner, plan, sampler)
    if advice is not None:
        yield advice
    if is_new:
        weights = sum(value.size for value in learner.initial().values())
        yield from warnings_of_run(config, records, weights)


def learner_advice(
    config: Config, learner: Learner, plan: PrivacyPlan, sampler: Sampler
) -> str | None:
    """What noise will do to an anomaly task; what it costs a network is not known before."""
    if config.task.kind is not TaskKind.anomaly:
        return None
    if isinstance(learner, LocalOnlyLearner):
        for name in plan.clients:
            advice = learner_advice(config, learner.inner, alone(plan, name) or plan, sampler)
            if advice is not None:
                return f"{name}: {advice}"
        return None
    from dp_fedmed.learning import AnomalyLearner

    if not isinstance(learner, AnomalyLearner):
        return None
    return anomaly_advice(config, learner, plan, sampler)


def alone(plan: PrivacyPlan | None, name: str) -> PrivacyPlan | None:
    """The plan of one client, where each is alone."""
    return None if plan is None else replace(plan, clients={name: plan.clients[name]})
