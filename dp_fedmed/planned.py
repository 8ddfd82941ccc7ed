"""`plan` from a command or a notebook: what a run would spend, with advice and suggestions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dp_fedmed.errors import ConfigError

if TYPE_CHECKING:
    from dp_fedmed.config import Config
    from dp_fedmed.data import DataSet
    from dp_fedmed.federation import PrivacyPlan
    from dp_fedmed.reporting.plan import Plan


def make_plan_of(
    words: Sequence[str], *, records: Mapping[str, int] | None = None, fast: bool = False
) -> Plan:
    """What a run with these overrides would spend, untrained.

    Args:
        words: Hydra's overrides.
        records: each client's number of training records, instead of those of the data.
        fast: RDP for all clients, more only for the one that binds; weights uncounted.

    Raises:
        ConfigError: for settings that cannot be, or a target that no noise reaches.
    """
    from dp_fedmed.config import TaskKind, compose
    from dp_fedmed.config.overrides import parsed
    from dp_fedmed.config.own_data import with_absolute_data_path
    from dp_fedmed.planning.forecast import count_weights, forecast, simulated_records
    from dp_fedmed.planning.suggestions import suggestions
    from dp_fedmed.reporting.plan import Plan
    from dp_fedmed.reporting.shared_data import shared_spending

    for word in words:
        if word.lstrip("+~").split("=")[0] in ("resume", "new_phase"):
            raise ConfigError(f"{word}: a plan is for a new run; leave resume and new_phase out")
        if parsed(word).is_sweep_override():
            raise ConfigError(f"{word} names several values: a plan is for one run; give one")
    overrides = list(words)
    if records is not None:
        given = [word for word in overrides if word.startswith("federation.num_clients=")]
        wanted = f"federation.num_clients={len(records)}"
        if any(word != wanted for word in given):
            raise ConfigError(f"{given[0]} contradicts --records, which names {len(records)}")
        overrides += [] if given else [wanted]
    config = with_absolute_data_path(compose(overrides))
    data = None
    if records is None:
        data = _data(config)
        records = simulated_records(config, data)
    made = forecast(config, records, fast=fast)
    weights = advice = None
    if data is not None and made.plan is not None and not fast:  # these import torch
        if config.task.kind is TaskKind.anomaly:
            advice = _advice(config, data, made.plan)
        else:
            weights = count_weights(config, data)
            advice = _refusal(config, data)
    return Plan(
        forecast=made,
        fast=fast,
        weights=weights,
        advice=advice,
        suggestions=tuple(suggestions(made, fast=fast)),
        shared=shared_spending(config, made),
    )


def _data(config: Config) -> DataSet:
    from dp_fedmed.data import load_data
    from dp_fedmed.data.registry import refuse_other_kind

    data = load_data(config.data, seed=config.seed)
    refuse_other_kind(config, data)
    return data


def _advice(config: Config, data: DataSet, plan: PrivacyPlan) -> str | None:
    """What an anomaly task says about how many images or clients it needs."""
    import torch

    from dp_fedmed.assemble import make_learner
    from dp_fedmed.assemble.advice import learner_advice
    from dp_fedmed.planning.plan import make_sampler

    torch.set_num_threads(1)  # for so little work, threads wait for each other
    return learner_advice(config, make_learner(config, data), plan, make_sampler(config))


def _refusal(config: Config, data: DataSet) -> str | None:
    """Why a run would refuse the network; None if it would not."""
    if not config.privacy.style.protects_records:
        return None
    import torch

    from dp_fedmed.assemble import make_learner

    torch.set_num_threads(1)
    learner = make_learner(config, data)
    try:
        learner.settle(str(config.privacy.sample.grad_mode))
    except ConfigError as error:
        return f"a run would be refused: {error}"
    return None
