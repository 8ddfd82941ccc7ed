"""A run's phases: what each is charged with, planned on top of what earlier ones have spent."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Protocol

from dp_fedmed.config import Config, GradMode, PrivacyStyle, Weighting
from dp_fedmed.config.arithmetic import computed_from
from dp_fedmed.config.quorum import quorum
from dp_fedmed.data import DataSet
from dp_fedmed.errors import ConfigError
from dp_fedmed.federation import Limits, PrivacyGuard, PrivacyPlan, RoundSettings, Sampler, Spent
from dp_fedmed.federation.arrays import State
from dp_fedmed.federation.masked_rounds import MaskedRounds
from dp_fedmed.learning import Learner, ServerStep
from dp_fedmed.planning.plan import make_plan
from dp_fedmed.privacy.mechanisms import ServerMechanism
from dp_fedmed.privacy.streams import RoundStreams, round_digest
from dp_fedmed.run.attempts import RunAttempts
from dp_fedmed.run.spent import RELEASES
from dp_fedmed.run.store import RunStore

logger = logging.getLogger(__name__)


class Parts(Protocol):
    """Makes what a run is put together from; `dp_fedmed.assemble` knows how."""

    def sampler(self, config: Config) -> Sampler:
        """Who takes part in a round."""

    def learner(self, config: Config, data: DataSet, clients: Mapping[str, int]) -> Learner:
        """The server's half of what is learnt."""

    def mechanism(
        self, config: Config, learner: Learner, plan: PrivacyPlan, sampler: Sampler
    ) -> ServerMechanism | None:
        """What the server clips and noises, if anything."""

    def step(
        self, config: Config, learner: Learner, plan: PrivacyPlan | None, sampler: Sampler
    ) -> ServerStep:
        """What the server makes of a round's answers."""

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
        """What the user should know before anything is spent, from public numbers."""


class PhaseLedger:
    """The guard of the phase that begins or continues, and the server's secret streams in it.

    Args:
        store: what outlasts the process; its settings are settled when a phase begins.
        learner: decides how gradients of single records are computed.
        sampler: who takes part.
        records: each client's number of records.
    """

    def __init__(
        self, store: RunStore, learner: Learner, sampler: Sampler, records: Mapping[str, int]
    ) -> None:
        self.store = store
        self.mechanism: ServerMechanism | None = None
        if store.has_phase and store.plan is not None:
            plan = store.plan
            _refuse_other_sizes(plan, records)
        else:
            plan = self._begin(learner, sampler, records)
        past = {number: old for number, old in store.past.items() if number != store.phase}
        config = store.config
        self.guard = PrivacyGuard(
            limits_of(config),
            plan,
            store.journal,
            past,
            grad_mode=str(config.privacy.sample.grad_mode),
        )
        if not store.has_phase:
            self.guard.require_one_round()

    def streams(self, server_round: int, model: State) -> RoundStreams:
        """The server's streams of a round."""
        store, config = self.store, self.store.config
        if store.key is None:
            raise ValueError("privacy.style=none has no secret streams")
        order: dict[str, float | str] = {"num_clients": config.federation.num_clients}
        if self.mechanism is not None:
            order |= self.mechanism.order()
        if config.privacy.style.protects_records:
            order["grad_mode"] = str(config.privacy.sample.grad_mode)
        digest = round_digest(list(model.values()), computed_from(config), order)
        return RoundStreams(store.key, store.stream_name, server_round, digest, phase=store.phase)

    def _begin(self, learner: Learner, sampler: Sampler, records: Mapping[str, int]) -> PrivacyPlan:
        """Plan a new phase on top of what earlier ones have spent."""
        store, config = self.store, self.store.config
        if config.privacy.style.protects_records:
            mode = GradMode(learner.settle(str(config.privacy.sample.grad_mode)))
            sample = replace(config.privacy.sample, grad_mode=mode)
            config = config.replace(privacy=replace(config.privacy, sample=sample))
        spent = Spent()
        if store.past:
            last = max(store.past)
            earlier = PrivacyGuard(
                limits_of(config), store.past[last], store.journal, store.past, phase=last
            )
            spent = earlier.spent(store.start.server_round if store.start is not None else 0)
        plan = make_plan(
            config,
            records=records,
            sampler=sampler,
            is_private=config.privacy.noise_seed is None,
            spent=spent,
        )
        self._refuse(config, plan)
        store.config = config
        if store.past:
            logger.info("phase %d begins: its cost is added to what was spent", store.phase)
        return plan

    def _refuse(self, config: Config, plan: PrivacyPlan) -> None:
        """A phase that cannot be composed with earlier ones, or in which nobody may train."""
        if plan.clients and all(own.participations == 0 for own in plan.clients.values()):
            raise ConfigError(
                f"federation.max_participations={config.federation.max_participations} is "
                "used up by every client: give a larger one with new_phase=true"
            )
        if self.store.data_ledger is not None:
            self.store.data_ledger.refuse_other_neighbours(plan.user_event)
        for earlier in self.store.past.values():
            old, new = earlier.user_event, plan.user_event
            if old is not None and new is not None and old.adjacency != new.adjacency:
                raise ConfigError(
                    f"federation.sampler={config.federation.sampler} states its guarantee for "
                    f"{new.adjacency} neighbours, the rounds so far for {old.adjacency}: the two "
                    "do not compose; leave the sampler as it was"
                )


def limits_of(config: Config) -> Limits:
    """What a configuration allows to be spent."""
    return Limits(
        rounds=config.federation.num_rounds,
        method=config.privacy.accountant.value,
        sample_epsilon=config.privacy.sample.target_epsilon,
        user_epsilon=config.privacy.user.target_epsilon,
    )


def round_settings(config: Config) -> RoundSettings:
    """How a configuration has its rounds run."""
    federation = config.federation
    return RoundSettings(
        num_rounds=federation.num_rounds,
        weight_by_examples=federation.weighting is Weighting.examples,
        min_clients=federation.min_clients,
        evaluate_every=federation.evaluate_every,
        client_evaluate_every=federation.client_evaluate_every,
        client_evaluate_max=federation.client_evaluate_max,
    )


def masked_rounds(store: RunStore) -> MaskedRounds | None:
    """Secure aggregation of a run's rounds, where its settings have it."""
    config = store.config
    if not config.masks:
        return None
    attempts = RunAttempts(
        store.directory.path / RELEASES,
        store.mac_key,
        config,
        phase=store.phase,
        keeps_sums=config.privacy.style is PrivacyStyle.none,
    )
    agreed = quorum(config)
    return MaskedRounds(
        minimum=agreed.minimum,
        colluding=agreed.colluding,
        run=f"{store.run}:{store.phase}",
        store=attempts,
    )


def _refuse_other_sizes(plan: PrivacyPlan, records: Mapping[str, int]) -> None:
    """A plan holds for clients with as many records as they had when it was made."""
    for name, own in plan.clients.items():
        if records.get(name) != own.records:
            raise ConfigError(
                f"{name} has {records.get(name, 'no')} records, but the run began with "
                f"{own.records}: restore its data, or continue as a new phase with new_phase=true"
            )
