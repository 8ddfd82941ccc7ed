"""One process that acts as any of the clients: their records, their work, their ledgers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict

from dp_fedmed.config import Config, TaskKind, Topology
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
from dp_fedmed.errors import BudgetRefused, ConfigError, SiteRefused
from dp_fedmed.federation import RecordAnswer, RecordOrder, RoundOrder, client_name
from dp_fedmed.federation import arrays as model_arrays
from dp_fedmed.learning import LocalRound, LocalWork
from dp_fedmed.planning.plan import default_delta
from dp_fedmed.privacy.mechanisms import RecordMechanism
from dp_fedmed.privacy.streams import RoundStreams, round_digest
from dp_fedmed.site.keys import client_folder, client_key, client_ledger_key
from dp_fedmed.site.ledger import Asked, Budget, ClientLedger
from dp_fedmed.site.rules import SiteRules

#: The mechanism that a round order asks for, if a client's own settings imply no other.
MakeMechanism = Callable[[RecordOrder, int], RecordMechanism]


class ClientRuntime:
    """What a process needs to act as any of the clients.

    Args:
        config: the run's.
        work: the clients' half of what is learnt.
        mechanism: makes what protects a client's records, from a round order and their number.
    """

    def __init__(self, config: Config, work: LocalWork, mechanism: MakeMechanism) -> None:
        self.config, self.work, self.mechanism = config, work, mechanism
        self._process: int | None = None
        self._decoded: tuple[ArrayRecord, model_arrays.State] | None = None
        self._ledgers: dict[str, ClientLedger] = {}
        self._digests: dict[str, str] = {}
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
        if not self.config.privacy.style.protects_records:
            return
        mechanism = self._mechanism(order, len(records))
        if not SiteRules.of(node).deployed:
            client_ledger_key(self.config, node, name)
            return
        client_key(self.config, node, name, order.phase)
        try:
            self.work.vet(mechanism, records)
        except ConfigError as error:
            raise SiteRefused(str(error), "its check of the network failed") from error
        budget = self._budget(len(records), node)
        try:
            self._ledger(node, name).refuse_new_run(order.run, mechanism, budget)
        except BudgetRefused as error:
            raise SiteRefused(str(error), "its own budget leaves no round") from None

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
        content = RecordDict()
        if self.config.privacy.style.protects_records:
            answer, metrics, paid = self._train_charged(work, order, context)
            content["privacy"] = paid.to_record()
        else:
            answer, metrics = self.work.train(work)
        content["arrays"] = model_arrays.to_record(answer)
        content["metrics"] = MetricRecord({"num-examples": len(records), **metrics})
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

    def _train_charged(
        self, work: LocalRound, order: RoundOrder, context: Context
    ) -> tuple[model_arrays.State, dict[str, float], RecordAnswer]:
        """Pay for the round in this client's own ledger, then answer as the server asks."""
        config, node, count = self.config, context.node_config, len(work.records)
        mechanism = self._mechanism(order, count)
        if SiteRules.of(node).deployed:
            self.work.vet(mechanism, work.records)
        key = client_key(config, node, work.name, order.phase)
        model, settings = list(work.received.values()), computed_from(config)
        asked = Asked(
            run=order.run,
            phase=order.phase,
            server_round=work.server_round,
            ledger=_needed("ledger", order.ledger),
            digest=round_digest(model, settings, mechanism.order()).hex(),
            data=self._data_digest(work.records, node, work.name),
        )
        ledger, budget = self._ledger(node, work.name), self._budget(count, node)
        ledger.charge(asked, mechanism, budget)
        crash_point("client:charged")
        streams = RoundStreams(
            key=key,
            run=order.streams,
            server_round=asked.server_round,
            digest=bytes.fromhex(asked.digest),
            client=work.name,
            phase=asked.phase,
        )
        answer, metrics = self.work.train(replace(work, mechanism=mechanism, streams=streams))
        reply = key.private_digest(answer.values()).hex()
        paid = RecordAnswer(
            noise_multiplier=mechanism.noise_multiplier,
            sample_rate=mechanism.sample_rate,
            steps=mechanism.steps,
            charges=ledger.answer(asked, mechanism, budget, reply),
        )
        return answer, metrics, paid

    def _ledger(self, node: Mapping[str, Any], name: str) -> ClientLedger:
        """This client's own ledger, opened once per process."""
        if name not in self._ledgers:
            self._ledgers[name] = ClientLedger(
                client_folder(self.config, node),
                name,
                client_ledger_key(self.config, node, name),
                durable="state-dir" in node,
            )
        return self._ledgers[name]

    def _budget(self, records: int, node: Mapping[str, Any]) -> Budget:
        settings, rules = self.config.privacy.sample, SiteRules.of(node)
        # The server's default δ is for all records, so smaller than this, and its ε larger.
        default = default_delta(records)
        return Budget(
            settings.target_epsilon,
            settings.target_delta or default,
            self.config.privacy.accountant.value,
            all_runs_epsilon=rules.max_epsilon,
            all_runs_delta=rules.delta or default,
        )

    def _data_digest(self, records: Records, node: Mapping[str, Any], name: str) -> str:
        """Keyed digest of this client's records, computed once per process."""
        if name not in self._digests:
            key = client_ledger_key(self.config, node, name)
            self._digests[name] = key.digest([records.x, records.y]).hex()
        return self._digests[name]

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


MOST_CLASSES, MOST_CHANNELS = 100_000, 16
UNFIT = "its records do not fit the shape and classes of the server's"


def refuse_unfit(records: Records, shape: Sequence[int], classes: int, kind: TaskKind) -> None:
    """Refuse records that a network of the server's cannot be trained on, if only one does not fit.

    One that failed when its turn came would tell, without noise, that it was drawn.

    Raises:
        SiteRefused: for a shape, a class id or a number.
    """
    # A backbone takes grey and coloured images alike; a network takes what it was built for.
    first = 1 if kind is TaskKind.anomaly else 0
    same = tuple(shape[first:]) == records.x.shape[1 + first :]
    if (
        not same
        or max(shape[:first], default=1) > MOST_CHANNELS
        or not 1 <= classes <= MOST_CLASSES
    ):
        raise SiteRefused(
            f"the server's records have shape {list(shape)} and {classes} classes, this client's "
            f"shape {list(records.x.shape[1:])}: start both with the same data settings",
            UNFIT,
        )
    y = records.y
    if len(y) and kind is not TaskKind.anomaly and np.issubdtype(y.dtype, np.integer):
        low, high = int(y.min()), int(y.max())
        if low < 0 or high >= classes:
            raise SiteRefused(
                f"this client's class ids go from {low} to {high}, the server's from 0 to "
                f"{classes - 1}: correct the labels, or have the server's data name every class",
                UNFIT,
            )
    for array in (records.x, y):
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            raise SiteRefused("this client's records have numbers that are not finite", UNFIT)
