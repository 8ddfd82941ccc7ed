"""One process that acts as any of the clients: their records, their work, their ledgers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict

from dp_fedmed.config import Config, TaskKind, Topology, Weighting
from dp_fedmed.config.arithmetic import computed_from
from dp_fedmed.crash_points import crash_point
from dp_fedmed.data import (
    DataSet,
    Records,
    client_indices,
    deployed_records,
    in_proportion,
    load_data,
    refuse_other_kind,
    training_parts,
)
from dp_fedmed.errors import ConfigError, SiteRefused
from dp_fedmed.federation import RecordAnswer, RecordOrder, RoundOrder, client_name
from dp_fedmed.federation import arrays as model_arrays
from dp_fedmed.federation.secure_aggregation.fixed_point import to_integers
from dp_fedmed.learning import LocalRound, LocalWork
from dp_fedmed.privacy.mechanisms import OwnAnswer, RecordMechanism
from dp_fedmed.privacy.streams import RoundStreams, round_digest
from dp_fedmed.site.accounts import ClientAccounts
from dp_fedmed.site.keys import client_key, client_ledger_key
from dp_fedmed.site.ledger import Asked
from dp_fedmed.site.masked_answers import MaskedAnswers, terms_of
from dp_fedmed.site.records import refuse_unfit
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


class ClientRuntime:
    """What a process needs to act as any of the clients.

    Args:
        config: the run's.
        work: the clients' half of what is learnt.
        mechanism: makes what protects a client's records, from a round order and their number.
        own_answer: makes what bounds and noises its whole answer, where that is the client's.
    """

    def __init__(
        self,
        config: Config,
        work: LocalWork,
        mechanism: MakeMechanism,
        own_answer: MakeOwnAnswer | None = None,
    ) -> None:
        self.config, self.work, self.mechanism = config, work, mechanism
        self.own_answer = own_answer
        self._process: int | None = None
        self._decoded: tuple[ArrayRecord, model_arrays.State] | None = None
        self.accounts, self.masks = ClientAccounts(config), MaskedAnswers(config)
        self._fitting: set[tuple[str, tuple[int, ...], int]] = set()

    def preload(self, num_clients: int) -> None:
        """Load what every client needs, so that processes forked from this one share it."""
        data = load_data(self.config.data, seed=self.config.seed)
        if data.train.patient is not None:
            training_parts(self.config, data)  # what cannot be kept whole is refused here
        client_indices(self.config, data, client=0, num_clients=num_clients)
        self.work.build(data.input_shape, data.num_classes)

    def records(self, node_config: Mapping[str, Any]) -> tuple[Records, Records]:
        """(training, evaluation) records of the client that this node-config names.

        In a simulation that is a partition of the configured data; a deployed node names its own
        with `data-path` in its node-config and uses all of it. An anomaly task is evaluated with
        test images, since a client's own are normal: a site's own ones, or, in a simulation, those
        of the client's categories.
        """
        data, train, val = self._held(node_config)
        if self.config.task.kind is TaskKind.anomaly:
            seed, name = self.config.seed, client_name(node_config)
            # A site without defects of its own has its normal validation images.
            judged = val if len(val) and not data.test.image_labels.any() else data.test
            return train, in_proportion(judged, train, seed=seed, client=name)
        return train, val

    def _held(self, node_config: Mapping[str, Any]) -> tuple[DataSet, Records, Records]:
        """A client's data set, and its own training and validation records."""
        config = self.config
        if "partition-id" in node_config and "data-path" not in node_config:
            number, count = int(node_config["partition-id"]), int(node_config["num-partitions"])
            data = load_data(config.data, seed=config.seed)
            train, val = client_indices(config, data, client=number, num_clients=count)
            return data, data.train.subset(train), data.train.subset(val)
        if config.federation.topology is Topology.centralized:
            raise ConfigError(
                "federation.topology=centralized pools the records of a simulation, and this node "
                "has records of its own: use federation.topology=federated"
            )
        own = config.data
        if "data-path" in node_config:
            own = replace(own, path=str(node_config["data-path"]))
        data = load_data(own, seed=config.seed, at_site=True)
        refuse_other_kind(config, data)
        return data, *deployed_records(config, data)

    def check(self, message: Message, context: Context) -> None:
        """Refuse, before round 1, for whatever would make this client fail in every round.

        Nothing is trained, so nothing that is refused here depends on which records are drawn.

        Raises:
            ConfigError: for settings, records, a folder or a budget that do not do.
        """
        order, node = _order(message), context.node_config
        self._refuse_other_style(order)
        name = client_name(node)
        records, _ = self._enter(order, node)
        self.work.agree(order.learning)
        if self.config.masks:
            self.masks.of(node)
        if not self.is_charged:
            return
        mechanism = None
        if self.config.privacy.style.protects_records:
            mechanism = self._mechanism(order, len(records))
        if not SiteRules.of(node).deployed:
            client_ledger_key(self.config, node, name)
            return
        client_key(self.config, node, name, order.phase)
        if mechanism is not None:
            self._check_records(mechanism, records, order, node)

    def _check_records(
        self,
        mechanism: RecordMechanism,
        records: Records,
        order: RoundOrder,
        node: Mapping[str, Any],
    ) -> None:
        """Refuse a network that couples records, and a run that this site cannot afford."""
        try:
            self.work.vet(mechanism, records)
        except ConfigError as error:
            raise SiteRefused(str(error), "its check of the network failed") from error
        self.accounts.refuse_unaffordable(order.run, mechanism, len(records), node)

    def train(self, message: Message, context: Context) -> RecordDict:
        """Answer a round from this client's records."""
        order, node = _order(message), context.node_config
        self._refuse_other_style(order)
        name = client_name(node)
        records, _ = self._enter(order, node)
        self.work.agree(order.learning)
        work = LocalRound(
            name=name,
            server_round=_needed("round", order.server_round),
            received=self._received(message),
            records=records,
        )
        do = self._train_charged if self.is_charged else self._train_free
        done = do(work, order, message, node)
        answer, metrics = done.answer, done.metrics
        if self.config.masks:
            answer = self.masks.masked(answer, done.about, order, message, node)
            metrics.pop("train_loss", None)  # of this client alone: the server gets sums only
        content = RecordDict({"arrays": model_arrays.to_record(answer)})
        content["metrics"] = MetricRecord({"num-examples": len(records), **metrics})
        if done.paid is not None:
            content["privacy"] = done.paid.to_record()
        return content

    def evaluate(self, message: Message, context: Context) -> RecordDict:
        """Evaluate the model on this client's evaluation records."""
        SiteRules.of(context.node_config).check_evaluation()
        _, records = self._enter(_order(message), context.node_config)
        metrics = self.work.evaluate(self._received(message), records)
        return RecordDict({"metrics": MetricRecord({**metrics, "num-examples": len(records)})})

    def _refuse_other_style(self, order: RoundOrder) -> None:
        """Train with the guarantee that the server counts on, or not at all."""
        style = str(self.config.privacy.style)
        if order.style != style:
            raise ConfigError(
                f"the server runs privacy.style={order.style!r}, this client {style}: start both "
                "with the same settings"
            )
        if order.noised_by != self.config.noised_by:
            raise ConfigError(
                f"the server counts on noise by {order.noised_by!r}, this client on noise by "
                f"{self.config.noised_by!r}: start both with the same privacy.noise"
            )

    def _mechanism(self, order: RoundOrder, records: int) -> RecordMechanism:
        if order.records is None:
            raise ConfigError("the server's round order has no noise_multiplier for our records")
        return self.mechanism(order.records, records)

    @property
    def is_charged(self) -> bool:
        """Whether this client pays for its rounds: its records are protected, or its own noise."""
        style = self.config.privacy.style
        own_noise = style.protects_clients and not self.config.client_noise_at_server
        return style.protects_records or own_noise

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
            mechanism = self._mechanism(order, count)
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
            ledger=_needed("ledger", order.ledger),
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
        if self.own_answer is None:
            return None
        count = len(work.records)
        return self.own_answer(order, mechanism, weights=weights, count=count, shares=shares)

    def _received(self, message: Message) -> model_arrays.State:
        """The model of a message; clients of one round that share a process decode it once."""
        record = message.content.array_records["arrays"]
        if self._decoded is None or self._decoded[0] is not record:
            like = self.work.expected()
            model = (
                model_arrays.finite(record) if like is None else model_arrays.checked(record, like)
            )
            self._decoded = (record, model)
        return self._decoded[1]

    def _enter(self, order: RoundOrder, node: Mapping[str, Any]) -> tuple[Records, Records]:
        """This client's (training, evaluation) records, all of which fit what the server says.

        Once per process: the network, and the threads on which every engine's results depend.
        """
        parts, name = self.records(node), client_name(node)
        fitting = (name, order.input_shape, order.num_classes)
        if fitting not in self._fitting:
            for records in parts:
                kind = self.config.task.kind
                refuse_unfit(records, order.input_shape, order.num_classes, kind)
            self._fitting.add(fitting)
        self.work.build(order.input_shape, order.num_classes)
        if self._process != os.getpid():
            torch.set_num_threads(self.config.training.threads)
            self._process = os.getpid()
        return parts


def _order(message: Message) -> RoundOrder:
    return RoundOrder.from_record(message.content.config_records["config"])


def _needed(key: str, value: int | None) -> int:
    if value is None:
        raise ConfigError(f"the server's round order has no {key}")
    return value


def _about(order: RoundOrder, digest: str) -> str:
    return f"{order.run}:{order.phase}:{order.server_round}:{digest}"
