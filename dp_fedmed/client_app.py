"""The Flower ClientApp: one site. It tells its name, trains, evaluates; it keeps its records."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from dp_fedmed.config import Config, TaskKind, Topology, from_run_config
from dp_fedmed.crash_points import crash_point
from dp_fedmed.data import DataSet, Records, in_proportion, load_data, training_parts
from dp_fedmed.data.clients import client_indices, deployed_records
from dp_fedmed.data.registry import refuse_other_kind
from dp_fedmed.engines.local_grid import CLIENT_FAILED
from dp_fedmed.errors import BudgetRefused, ConfigError, SiteRefused
from dp_fedmed.federation import arrays as model_arrays
from dp_fedmed.federation.failures import describe_failure, describe_refusal
from dp_fedmed.federation.nodes import OWN_DATA, REFUSAL, client_name
from dp_fedmed.federation.private_log import keep_failure
from dp_fedmed.learning import LocalRound, make_work
from dp_fedmed.planning.plan import default_delta
from dp_fedmed.site.keys import (
    RoundSecrets,
    client_folder,
    client_key,
    client_ledger_key,
    round_digest,
)
from dp_fedmed.site.ledger import Asked, Budget, ClientLedger
from dp_fedmed.site.records import refuse_unfit
from dp_fedmed.site.rules import SiteRules

logger = logging.getLogger(__name__)


class ClientRuntime:
    """What a process needs to act as any of the clients: the data, the work, the ledgers."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.work = make_work(config)
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
        told, node = message.content.config_records["config"], context.node_config
        self._refuse_other_style(told)
        name = client_name(node)
        records, _ = self._enter(told, node)
        self.work.agree(told)
        if not self.config.privacy.style.protects_records:
            return
        plan = self.work.plan(told, len(records))
        if not SiteRules.of(node).deployed:
            client_ledger_key(self.config, node, name)
            return
        client_key(self.config, node, name, int(told["phase"]))  # type: ignore[arg-type]
        try:
            self.work.vet(plan, records)
        except ConfigError as error:
            raise SiteRefused(str(error), "its check of the network failed") from error
        budget = self._budget(len(records), node)
        try:
            self._ledger(node, name).refuse_new_run(str(told["run"]), plan, budget)
        except BudgetRefused as error:
            raise SiteRefused(str(error), "its own budget leaves no round") from None

    def train(self, message: Message, context: Context) -> RecordDict:
        """Answer a round from this client's records."""
        told = message.content.config_records["config"]
        self._refuse_other_style(told)
        name = client_name(context.node_config)
        records, _ = self._enter(told, context.node_config)
        self.work.agree(told)
        work = LocalRound(
            name=name,
            server_round=int(told["round"]),  # type: ignore[arg-type]
            received=self._received(message),
            records=records,
        )
        content = RecordDict()
        if self.config.privacy.style.protects_records:
            answer, metrics, content["privacy"] = self._train_charged(work, told, context)
        else:
            answer, metrics = self.work.train(work)
        content["arrays"] = model_arrays.to_record(answer)
        content["metrics"] = MetricRecord({"num-examples": len(records), **metrics})
        return content

    def _refuse_other_style(self, told: ConfigRecord) -> None:
        """Train with the guarantee that the server counts on, or not at all."""
        style = str(self.config.privacy.style)
        if told.get("style", style) != style:
            raise ConfigError(
                f"the server runs privacy.style={told['style']!r}, this client {style}: start both "
                "with the same settings"
            )

    def evaluate(self, message: Message, context: Context) -> RecordDict:
        """Evaluate the model on this client's evaluation records."""
        SiteRules.of(context.node_config).check_evaluation()
        _, records = self._enter(message.content.config_records["config"], context.node_config)
        metrics = self.work.evaluate(self._received(message), records)
        return RecordDict({"metrics": MetricRecord({**metrics, "num-examples": len(records)})})

    def _train_charged(
        self, work: LocalRound, told: ConfigRecord, context: Context
    ) -> tuple[model_arrays.State, dict[str, float], ConfigRecord]:
        """Pay for the round in this client's own ledger, then answer as the server asks."""
        config, node, count = self.config, context.node_config, len(work.records)
        plan = self.work.plan(told, count)
        if SiteRules.of(node).deployed:
            self.work.vet(plan, work.records)
        phase = int(told["phase"])  # type: ignore[arg-type]
        key = client_key(config, node, work.name, phase)
        asked = Asked(
            run=str(told["run"]),
            phase=phase,
            server_round=work.server_round,
            ledger=int(told["ledger"]),  # type: ignore[arg-type]
            digest=round_digest(list(work.received.values()), config, plan.in_force).hex(),
            data=self._data_digest(work.records, node, work.name),
        )
        ledger, budget = self._ledger(node, work.name), self._budget(count, node)
        ledger.charge(asked, plan, budget)
        crash_point("client:charged")
        secrets = RoundSecrets(
            key=key,
            run=str(told["streams"]),
            server_round=asked.server_round,
            digest=bytes.fromhex(asked.digest),
            client=work.name,
            phase=asked.phase,
        )
        answer, metrics = self.work.train(replace(work, plan=plan, secrets=secrets))
        reply = key.private_digest(answer.values()).hex()
        realised = ConfigRecord(
            {
                "noise_multiplier": plan.noise_multiplier,
                "sample_rate": plan.sample_rate,
                "steps": plan.steps,
                "charges": ledger.answer(asked, plan, budget, reply),
            }
        )
        return answer, metrics, realised

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
            self._decoded = (record, self.work.accept(record))
        return self._decoded[1]

    def _enter(self, told: ConfigRecord, node_config: Mapping[str, Any]) -> tuple[Records, Records]:
        """This client's (training, evaluation) records, all of which fit what the server says.

        Once per process: the network, and the threads on which every engine's results depend.
        """
        parts, name = self.records(node_config), client_name(node_config)
        shape = tuple(int(n) for n in told["input_shape"])  # type: ignore[union-attr]
        classes = int(told["num_classes"])  # type: ignore[arg-type]
        if (name, shape, classes) not in self._fitting:
            for records in parts:
                refuse_unfit(records, shape, classes, self.config.task.kind)
            self._fitting.add((name, shape, classes))
        self.work.build(shape, classes)
        if self._process != os.getpid():
            torch.set_num_threads(self.config.training.threads)
            self._process = os.getpid()
        return parts


def build_client_app(
    config: Config | None = None, runtime: ClientRuntime | None = None
) -> ClientApp:
    """The ClientApp for a configuration; without one, for Flower's run-config.

    Args:
        config: the run's configuration, when the caller has it.
        runtime: a runtime to use in this process and in those forked from it.
    """
    app = ClientApp()
    made: dict[str, ClientRuntime] = {}

    def runtime_for(context: Context) -> ClientRuntime:
        rules = SiteRules.of(context.node_config)
        if runtime is not None:
            rules.check(runtime.config)
            return runtime
        key = f"{context.run_id} {json.dumps(dict(context.run_config), sort_keys=True)}"
        if key not in made:
            made.clear()  # one federation at a time: a changed run-config frees the old data
            composed = config or from_run_config(context.run_config, run_id=context.run_id)
            rules.check(composed)
            made[key] = ClientRuntime(composed)
        return made[key]

    @app.query("name")
    def name(message: Message, context: Context) -> Message:
        def sizes() -> dict[str, Any]:
            site = runtime_for(context)
            if not site.config.asks_for_sizes:
                return {}
            return {"num-records": len(site.records(context.node_config)[0])}

        told = _told(context, lambda: _introduction(context))
        return _query_reply(message, told | _told(context, sizes))

    @app.query("ready")
    def ready(message: Message, context: Context) -> Message:
        def check() -> dict[str, Any]:
            runtime_for(context).check(message, context)
            return {}

        return _query_reply(message, _told(context, check))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return _guarded("train", runtime_for, ClientRuntime.train, message, context)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return _guarded("evaluate", runtime_for, ClientRuntime.evaluate, message, context)

    return app


def _introduction(context: Context) -> dict[str, Any]:
    node = context.node_config
    told: dict[str, Any] = {"name": client_name(node)}
    if "num-partitions" in node:
        told["num-partitions"] = int(node["num-partitions"])
    if "data-path" in node or "partition-id" not in node:
        told[OWN_DATA] = True
    return told


def _told(context: Context, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a client says before round 1, or why it cannot take part.

    No cohort has been drawn then, so a site's own log and a simulation's user may see it all.
    """
    simulated = not SiteRules.is_deployed(context.node_config)
    try:
        return work()
    except Exception as error:
        if not (simulated and isinstance(error, ConfigError)):  # who is told in full anyway
            logger.exception("this client cannot take part")
        return {REFUSAL: describe_refusal(error, simulated=simulated), OWN_DATA: not simulated}


def _query_reply(message: Message, told: dict[str, Any]) -> Message:
    return Message(RecordDict({"client": ConfigRecord(told)}), reply_to=message)


def _guarded(
    verb: str,
    runtime_for: Callable[[Context], ClientRuntime],
    work: Callable[[ClientRuntime, Message, Context], RecordDict],
    message: Message,
    context: Context,
) -> Message:
    """Run a client's work; what went wrong stays in the client's own log.

    A failure is answered, not raised: Flower would print what is raised on the user's stream, and
    so show that a client that fails was drawn.
    """
    node, site = context.node_config, None
    try:
        site = runtime_for(context)
        return Message(work(site, message, context), reply_to=message)
    except Exception as error:
        if SiteRules.is_deployed(node):
            logger.exception("this client could not %s", verb)
        elif site is not None:
            keep_failure(site.config.run_dir, client_name(node), verb)
        return Message(Error(CLIENT_FAILED, describe_failure(error)), reply_to=message)


app = build_client_app()
