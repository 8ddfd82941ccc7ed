"""One client's part in a round: paid for, trained, noised and masked as its settings say.

The guarantee kept here: a round is in the client's own ledger before anything is computed from its
records, and nothing leaves that its settings do not allow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from flwr.app import Message, MetricRecord, RecordDict

from dp_fedmed.config import Config, Weighting
from dp_fedmed.config.arithmetic import computed_from
from dp_fedmed.crash_points import crash_point
from dp_fedmed.errors import ConfigError
from dp_fedmed.federation import RecordAnswer, RecordOrder, RoundOrder
from dp_fedmed.federation import arrays as model_arrays
from dp_fedmed.federation.secure_aggregation.fixed_point import to_integers
from dp_fedmed.learning import LocalRound, LocalWork
from dp_fedmed.privacy.mechanisms import OwnAnswer, RecordMechanism
from dp_fedmed.privacy.streams import RoundStreams, round_digest
from dp_fedmed.site.accounts import ClientAccounts
from dp_fedmed.site.keys import client_key
from dp_fedmed.site.ledger import Asked
from dp_fedmed.site.masked_answers import MaskedAnswers, terms_of
from dp_fedmed.site.rules import SiteRules

#: The mechanism that a round order asks for, if a client's own settings imply no other.
MakeMechanism = Callable[[RecordOrder, int], RecordMechanism]


class MakeOwnAnswer(Protocol):
    """Makes what a client does to its whole answer; None where that is nothing."""

    def __call__(
        self,
        order: RoundOrder,
        records: RecordMechanism | None,
        *,
        weights: int,
        count: int,
        shares: int,
    ) -> OwnAnswer | None:
        """See `dp_fedmed.assemble.own_answer`."""


class Trained(NamedTuple):
    """What a client's round came to.

    Attributes:
        answer: to the server.
        metrics: that may go with it.
        about: what the answer is made from, in one word; empty where nobody asks.
        paid: what was done for its records.
    """

    answer: model_arrays.State
    metrics: dict[str, float]
    about: str = ""
    paid: RecordAnswer | None = None


class OwnRounds:
    """The rounds of every client that this process acts as.

    Args:
        config: the run's.
        work: the clients' half of what is learnt.
        mechanism: makes what protects a client's records, from a round order and their number.
        own_answer: makes what bounds and noises its whole answer, where that is the client's.
        masks: what the clients remember of secure aggregation.
    """

    def __init__(
        self,
        config: Config,
        work: LocalWork,
        mechanism: MakeMechanism,
        own_answer: MakeOwnAnswer | None,
        masks: MaskedAnswers,
    ) -> None:
        self.config, self.work, self.masks = config, work, masks
        self.make_mechanism, self.make_own_answer = mechanism, own_answer
        self.accounts = ClientAccounts(config)

    @property
    def is_charged(self) -> bool:
        """Whether this client pays for its rounds: its records are protected, or its own noise."""
        style = self.config.privacy.style
        own_noise = style.protects_clients and not self.config.client_noise_at_server
        return style.protects_records or own_noise

    def mechanism(self, order: RoundOrder, records: int) -> RecordMechanism:
        """What protects a client's records as the server asks for.

        Raises:
            ConfigError: if it asks for nothing, or for something else than the settings imply.
        """
        if order.records is None:
            raise ConfigError("the server's round order has no noise_multiplier for our records")
        return self.make_mechanism(order.records, records)

    def train(
        self, work: LocalRound, order: RoundOrder, message: Message, node: Mapping[str, Any]
    ) -> RecordDict:
        """Answer a round.

        Args:
            work: what to train on, and with which model.
            order: the server's.
            message: that it came with; the terms of secure aggregation are there.
            node: the client's.
        """
        do = self._train_charged if self.is_charged else self._train_free
        done = do(work, order, message, node)
        answer, metrics = done.answer, done.metrics
        if self.config.masks:
            answer = self.masks.masked(answer, done.about, order, message, node)
            metrics.pop("train_loss", None)  # of this client alone: the server gets sums only
        content = RecordDict({"arrays": model_arrays.to_record(answer)})
        content["metrics"] = MetricRecord({"num-examples": len(work.records), **metrics})
        if done.paid is not None:
            content["privacy"] = done.paid.to_record()
        return content

    def _train_free(
        self, work: LocalRound, order: RoundOrder, message: Message, node: Mapping[str, Any]
    ) -> Trained:
        """Answer without noise of this client's."""
        answer, metrics = self.work.train(work)
        if not self.config.masks:
            return Trained(answer, metrics)
        digest = round_digest(list(work.received.values()), computed_from(self.config), {})
        weighs = self.config.federation.weighting is Weighting.examples
        answer = to_integers(
            answer,
            weight=float(len(work.records)) if weighs else 1.0,
            clients=self.masks.clients(message, node),
        )
        return Trained(answer, metrics, _about(order, digest.hex()))

    def _train_charged(
        self, work: LocalRound, order: RoundOrder, message: Message, node: Mapping[str, Any]
    ) -> Trained:
        """Pay for the round in this client's own ledgers, then answer as the server asks."""
        config, count = self.config, len(work.records)
        mechanism, paid = None, None
        if config.privacy.style.protects_records:
            mechanism = self.mechanism(order, count)
            if SiteRules.of(node).deployed:
                self.work.vet(mechanism, work.records)
        own = self._own_answer(order, mechanism, work, message)
        key = client_key(config, node, work.name, order.phase)
        in_force = {} if mechanism is None else dict(mechanism.order())
        in_force |= {} if own is None else own.order()
        digest = round_digest(list(work.received.values()), computed_from(config), in_force)
        asked = Asked(
            run=order.run,
            phase=order.phase,
            server_round=work.server_round,
            ledger=needed("ledger", order.ledger),
            digest=digest.hex(),
            data=self.accounts.data_digest(work.records, node, work.name),
        )
        accounts = self.accounts.of(mechanism, own, node, work.name, count)
        for account in accounts:
            account.ledger.charge(asked, account.mechanism, account.budget)
        crash_point("client:charged")
        streams = RoundStreams(
            key=key,
            run=order.streams,
            server_round=asked.server_round,
            digest=digest,
            client=work.name,
            phase=asked.phase,
        )
        if mechanism is not None:
            work = replace(work, mechanism=mechanism, streams=streams)
        answer, metrics = self.work.train(work)
        if own is not None:
            answer = own.release(answer, streams)
            metrics.pop("train_loss", None)  # the answer is noised, a loss is not
        reply = key.private_digest(answer.values()).hex()
        charges = [a.ledger.answer(asked, a.mechanism, a.budget, reply) for a in accounts]
        if mechanism is not None:
            paid = RecordAnswer(
                noise_multiplier=mechanism.noise_multiplier,
                sample_rate=mechanism.sample_rate,
                steps=mechanism.steps,
                charges=charges[0],
            )
        return Trained(answer, metrics, _about(order, asked.digest), paid)

    def _own_answer(
        self,
        order: RoundOrder,
        mechanism: RecordMechanism | None,
        work: LocalRound,
        message: Message,
    ) -> OwnAnswer | None:
        """What this client does to its whole answer; its share of the noise is as terms say."""
        shares = 1
        if self.config.masks:
            terms = terms_of(message)
            shares = terms.minimum - terms.colluding
        weights = sum(value.size for value in work.received.values())
        if self.make_own_answer is None:
            return None
        count = len(work.records)
        return self.make_own_answer(order, mechanism, weights=weights, count=count, shares=shares)


def needed(key: str, value: int | None) -> int:
    """A value that a round order must have."""
    if value is None:
        raise ConfigError(f"the server's round order has no {key}")
    return value


def _about(order: RoundOrder, digest: str) -> str:
    return f"{order.run}:{order.phase}:{order.server_round}:{digest}"
