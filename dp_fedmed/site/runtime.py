"""One process that acts as any of the clients: their records, and what they answer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict

from dp_fedmed.config import Config, TaskKind, Topology
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
from dp_fedmed.federation import RoundOrder, client_name
from dp_fedmed.federation import arrays as model_arrays
from dp_fedmed.learning import LocalRound, LocalWork
from dp_fedmed.privacy.mechanisms import RecordMechanism
from dp_fedmed.site.keys import client_key, client_ledger_key
from dp_fedmed.site.masked_answers import MaskedAnswers
from dp_fedmed.site.own_rounds import MakeMechanism, MakeOwnAnswer, OwnRounds, needed
from dp_fedmed.site.records import refuse_unfit
from dp_fedmed.site.rules import SiteRules


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
        self.config, self.work = config, work
        self.masks = MaskedAnswers(config)
        self.rounds = OwnRounds(config, work, mechanism, own_answer, self.masks)
        self._process: int | None = None
        self._decoded: tuple[ArrayRecord, model_arrays.State] | None = None
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
        if not self.rounds.is_charged:
            return
        mechanism = None
        if self.config.privacy.style.protects_records:
            mechanism = self.rounds.mechanism(order, len(records))
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
        self.rounds.accounts.refuse_unaffordable(order.run, mechanism, len(records), node)

    def train(self, message: Message, context: Context) -> RecordDict:
        """Answer a round from this client's records."""
        order, node = _order(message), context.node_config
        self._refuse_other_style(order)
        name = client_name(node)
        records, _ = self._enter(order, node)
        self.work.agree(order.learning)
        work = LocalRound(
            name=name,
            server_round=needed("round", order.server_round),
            received=self._received(message),
            records=records,
        )
        return self.rounds.train(work, order, message, node)

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
