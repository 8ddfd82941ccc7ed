"""One run at the server, from the first plan to the tested final model."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid

from dp_fedmed.config import Clipping, Config, PrivacyStyle, better
from dp_fedmed.data import load_data, training_parts
from dp_fedmed.data.registry import refuse_other_kind
from dp_fedmed.errors import (
    ArrayError,
    BudgetSpent,
    CheckpointError,
    ConfigError,
    EngineLost,
    Interrupted,
    TooFewClients,
)
from dp_fedmed.federation import arrays as model_arrays
from dp_fedmed.federation.nodes import Node, check_ready
from dp_fedmed.federation.privacy_guard import PrivacyGuard
from dp_fedmed.federation.sampling import Sampler, make_sampler
from dp_fedmed.federation.stopping import StopRequest
from dp_fedmed.federation.strategy import DPStrategy, RoundRecord
from dp_fedmed.learning import make_learner
from dp_fedmed.learning.fairness import fairness
from dp_fedmed.planning.plan import PrivacyPlan, Spent, make_plan
from dp_fedmed.privacy.mechanisms.client_level import ClientLevelMechanism
from dp_fedmed.reporting.display import Display
from dp_fedmed.reporting.plan_words import warnings_of_run
from dp_fedmed.reporting.plots import plot_metrics
from dp_fedmed.reporting.privacy_card import write_card
from dp_fedmed.reporting.sites import describe_sites
from dp_fedmed.run.checkpoint import Checkpoint
from dp_fedmed.run.directory import PARTITION_FILE, REPORT_FILE
from dp_fedmed.run.environment import ENVIRONMENT_FILE, environment_after
from dp_fedmed.run.participation import PARTICIPATION_FILE, Participation
from dp_fedmed.run.privacy_report import checkpoint_section, no_privacy, privacy_report
from dp_fedmed.run.resume import resume_run
from dp_fedmed.run.store import RunStore
from dp_fedmed.site.keys import RoundSecrets, round_digest

logger = logging.getLogger(__name__)

COMPLETED, INTERRUPTED, BUDGET = "completed", "interrupted", "budget"
PARTITION_PICTURE = "partition.png"
STORAGE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EACCES}


@dataclass
class RunResult:
    """How a run ended."""

    run_dir: Path
    stopped: str = COMPLETED
    rounds: int = 0
    selected_round: int = 0
    val: dict[str, float] = field(default_factory=dict)
    test: dict[str, float] = field(default_factory=dict)
    clients: dict[str, dict[str, float]] = field(default_factory=dict)
    seconds: float = 0.0
    participation: Participation | None = None  # where it is no secret


class ServerRun:
    """One run at the server: data, network, strategy, and the run directory."""

    def __init__(self, config: Config, display: Display, stop: StopRequest | None) -> None:
        self.display, self.stop = display, stop or StopRequest()
        self.data = load_data(config.data, seed=config.seed)
        refuse_other_kind(config, self.data)
        self.store = RunStore.create(config) if config.resume is None else resume_run(config)
        self.config = self.store.config
        self.directory = self.store.directory
        self.private = config.privacy.style is not PrivacyStyle.none
        self.result = RunResult(run_dir=self.directory.path)
        self.guard: PrivacyGuard | None = None
        self.mechanism: ClientLevelMechanism | None = None
        self._shown: dict[str, float] = {}  # ε by level, as the last row has it
        self._best: ArrayRecord | None = None
        self._validated = -1
        self._refuse_other_data()

    def run(self, grid: Grid, nodes: dict[str, Node]) -> RunResult:
        """Train, then choose, test and save the final model; a stopped run keeps its last one."""
        started = time.perf_counter()
        config = self.config
        pictured = (self.directory.path / PARTITION_PICTURE).exists()
        if not pictured and all(node.simulated for node in nodes.values()):
            self._describe_clients()
        records = {name: node.records or 0 for name, node in nodes.items()}
        self.learner = make_learner(config, self.data, records)
        strategy = self.strategy = self._make_strategy(nodes)
        initial = model_arrays.to_record(self.learner.initial())
        if self.store.start is not None:
            initial = self._go_on_from(self.store.start)
        strategy.arrays = initial
        timeout = config.federation.connect_timeout
        check_ready(grid, nodes, self._told_to, timeout=timeout)
        try:
            self.store.begin(self.guard.plan if self.guard is not None else None, self._data_digest)
            environment = environment_after(self.directory.path, self.result.rounds)
            self.directory.write_json(ENVIRONMENT_FILE, environment, durable=False)
            self._train(grid, initial)
            self._finish(strategy.arrays)
        except OSError as error:
            if error.errno not in STORAGE_ERRORS:
                raise
            return self._cannot_write(error)
        self.result.seconds = time.perf_counter() - started
        self.display.summary(config, self.result)
        return self.result

    def _train(self, grid: Grid, initial: ArrayRecord) -> None:
        """Every round that is left, or as many as can be done; `result.stopped` says which."""
        config, strategy = self.config, self.strategy
        left = config.federation.num_rounds - self.result.rounds
        planned = {} if self.guard is None else self.guard.planned_epsilons(left)
        self.display.begin(self.result.rounds, planned)
        try:
            with self.display, self.stop.during_rounds(self.display.stopping):
                strategy.start(
                    grid,
                    initial,
                    num_rounds=config.federation.num_rounds,
                    timeout=config.federation.round_timeout,
                    train_config=self._told(),
                    evaluate_config=self._told(),
                    evaluate_fn=self._validate,
                    after_round=None if self.store.start is None else self.result.rounds,
                )
        except (TooFewClients, EngineLost) as error:
            self.result.stopped = str(error)
            logger.error("%s", error)
        except BudgetSpent as error:
            self.result.stopped = str(error)
            logger.info("%s", error)
        except (KeyboardInterrupt, Interrupted) as error:
            self.result.stopped = f"{INTERRUPTED} after round {self.result.rounds}"
            logger.error("%s", self.result.stopped)
            # At the end of a round the model is that round's; amid one, its checkpoint will do.
            if isinstance(error, Interrupted) and self.result.rounds not in self.store.committed:
                self._checkpoint(self.result.rounds, always=True)
        except OSError:
            raise
        except Exception:  # a bug, then: what was learnt so far is kept before it is shown
            self.directory.save_model(model_arrays.from_record(strategy.arrays))
            raise

    def _told(self) -> ConfigRecord:
        """What every client is told with every model."""
        return ConfigRecord(
            {
                "input_shape": list(self.data.input_shape),
                "num_classes": self.data.num_classes,
                "run": self.store.run,
                "streams": self.store.stream_name,
                "phase": self.store.phase,
                "style": str(self.config.privacy.style),
                **self.learner.told(),
            }
        )

    def _told_to(self, name: str) -> ConfigRecord:
        """What a client would be told with its first round."""
        return ConfigRecord(
            {**self._told(), **({} if self.guard is None else self.guard.told(name))}
        )

    def _go_on_from(self, checkpoint: Checkpoint) -> ArrayRecord:
        """Restore what a checkpoint holds, and return its model.

        Raises:
            CheckpointError: if it is another model's.
        """
        record = model_arrays.to_record(checkpoint.model)
        try:
            # In the model's own order, which digests depend on and safetensors does not keep.
            model = model_arrays.checked(record, self.learner.initial())
        except ArrayError as error:
            raise CheckpointError(
                f"{self.directory.path / 'last'} does not fit the model of the settings: {error}"
            ) from None
        details = checkpoint.details
        self.strategy.optimizer.restore(checkpoint.moments)
        adapts = self.config.privacy.user.clipping is Clipping.adaptive
        same_phase = details["privacy"].get("phase") == self.store.phase
        if self.mechanism is not None and adapts and same_phase:
            self.mechanism.clip_norm = float(details["clip_norm"])
        self.result.rounds = checkpoint.server_round
        with contextlib.suppress(ValueError):  # damaged; the ledger is the truth, not this
            for past in self.directory.metrics():
                if past.get("round", math.inf) <= checkpoint.server_round:
                    self._shown.update(past.get("epsilon") or {})
        best = details.get("best")
        if best is not None:
            number = int(best["round"])
            self.result.val, self.result.selected_round = best["metrics"], number
            if number != checkpoint.server_round:
                checkpoint = self.store.checkpoints.read(number, self.store.committed[number])
            self._best = model_arrays.to_record(checkpoint.model)
        logger.info("goes on after round %d", self.result.rounds)
        return model_arrays.to_record(model)

    def _cannot_write(self, error: OSError) -> RunResult:
        """A full or failing disk: stop, and leave everything that was durable as it is."""
        self.result.stopped = (
            f"{self.directory.path} cannot be written ({error.strerror or error}); what was "
            f"committed is intact: make room, then dp-fedmed resume {self.directory.path}"
        )
        logger.error("%s", self.result.stopped)
        self.display.summary(self.config, self.result)
        return self.result

    def _make_strategy(self, nodes: dict[str, Node]) -> DPStrategy:
        """The strategy of the configured style, with its budget, mechanism and secret streams."""
        sampler = make_sampler(self.config.federation)
        plan = None
        if self.private:
            plan = self._spend_on(nodes, sampler)
            self.mechanism = self.learner.mechanism(plan, sampler)
            for advice in self._advice(plan, nodes, sampler):
                logger.warning("%s", advice)
                self.display.note(advice)
        return DPStrategy(
            self.config.federation,
            nodes={name: node.node_id for name, node in nodes.items()},
            sampler=sampler,
            seed=self.config.seed,
            on_round=self._on_round,
            guard=self.guard,
            mechanism=self.mechanism,
            step=self.learner.step(plan, sampler),
            secrets=self._secrets if self.private else None,
            stop=self.stop,
        )

    def _advice(self, plan: PrivacyPlan, nodes: dict[str, Node], sampler: Sampler) -> Iterator[str]:
        """What `dp-fedmed plan` would have warned of, when a run begins."""
        advice = self.learner.advice(plan, sampler)
        if advice is not None:
            yield advice
        if self.store.start is None:
            records = {name: node.records or 0 for name, node in nodes.items()}
            weights = sum(value.size for value in self.learner.initial().values())
            yield from warnings_of_run(self.config, records, weights)

    def _spend_on(self, nodes: dict[str, Node], sampler: Sampler) -> PrivacyPlan:
        """Plan what is spent, and set up its guard."""
        records = {name: node.records or 0 for name, node in nodes.items()}
        if self.store.has_phase and self.store.plan is not None:
            plan = self.store.plan
            _refuse_other_sizes(plan, records)
        else:
            plan = self._begin_phase(records, sampler)
        store = self.store
        past = {number: old for number, old in store.past.items() if number != store.phase}
        self.guard = PrivacyGuard(self.config, plan, store.journal, past)
        if not store.has_phase:
            self.guard.require_one_round()
        return plan

    def _begin_phase(self, records: dict[str, int], sampler: Sampler) -> PrivacyPlan:
        """Plan a new phase on top of what earlier ones have spent."""
        if self.config.privacy.style.protects_records:
            self.config = self.learner.settled(self.config)
        spent, store = Spent(), self.store
        if store.past:
            last = max(store.past)
            plan = store.past[last]
            earlier = PrivacyGuard(self.config, plan, store.journal, store.past, phase=last)
            spent = earlier.spent(store.start.server_round if store.start is not None else 0)
        plan = make_plan(
            self.config,
            records=records,
            sampler=sampler,
            is_private=self.config.privacy.noise_seed is None,
            spent=spent,
        )
        self._refuse_phase(plan)
        store.config = self.config
        if store.past:
            logger.info("phase %d begins: its cost is added to what was spent", store.phase)
        return plan

    def _refuse_phase(self, plan: PrivacyPlan) -> None:
        """A phase that cannot be composed with earlier ones, or in which nobody may train."""
        if plan.clients and all(own.participations == 0 for own in plan.clients.values()):
            raise ConfigError(
                f"federation.max_participations={self.config.federation.max_participations} is "
                "used up by every client: give a larger one with new_phase=true"
            )
        if self.store.data_ledger is not None:
            self.store.data_ledger.refuse_other_neighbours(plan.user_event)
        for earlier in self.store.past.values():
            old, new = earlier.user_event, plan.user_event
            if old is not None and new is not None and old.adjacency != new.adjacency:
                raise ConfigError(
                    f"federation.sampler={self.config.federation.sampler} states its guarantee for "
                    f"{new.adjacency} neighbours, the rounds so far for {old.adjacency}: the two "
                    "do not compose; leave the sampler as it was"
                )

    def _secrets(self, server_round: int, model: model_arrays.State) -> RoundSecrets:
        """The server's streams of a round."""
        key = self.store.key
        if key is None:
            raise ValueError("privacy.style=none has no secret streams")
        in_force: dict[str, float | str] = {"num_clients": self.config.federation.num_clients}
        if self.mechanism is not None:
            in_force |= self.mechanism.in_force
        if self.config.privacy.style.protects_records:
            in_force["grad_mode"] = str(self.config.privacy.sample.grad_mode)
        digest = round_digest(list(model.values()), self.config, in_force)
        name, phase = self.store.stream_name, self.store.phase
        return RoundSecrets(key, name, server_round, digest, phase=phase)

    @functools.cached_property
    def _data_digest(self) -> str:
        return self.store.data_digest(self.data)

    def _refuse_other_data(self) -> None:
        """Going on with other data would be another guarantee."""
        if self.store.data is not None and self.store.data != self._data_digest:
            self.store.lock.release()
            raise ConfigError(
                f"the records of data.name={self.config.data.name} have changed since the run "
                "began: restore them, or start a new run (a shared data_ledger adds up what both "
                "spend)"
            )

    def _describe_clients(self) -> None:
        """Who trains on what, as a picture: only a simulation knows."""
        from dp_fedmed.reporting.partition import partition_rows, plot_partition

        parts = training_parts(self.config, self.data)
        held = {"schema": 1, "clients": partition_rows(self.data, parts)}
        self.directory.write_json(PARTITION_FILE, held, durable=False)
        plot_partition(self.data, parts, self.directory.path / PARTITION_PICTURE)

    def _validate(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Validation metrics of a round's model; in style `none` they choose the final model."""
        metrics = self._evaluate(arrays, "val")
        self._validated = server_round
        if self.private:  # choosing the best would be one more release: the last is kept
            self.result.val, self.result.selected_round = metrics, server_round
            return MetricRecord(dict(metrics)) if metrics else None
        wanted = metrics.get(self.config.task.metric)
        held = self.result.val.get(self.config.task.metric)
        sign = better(self.config.task.metric)
        if wanted is None and self._best is None:  # nothing to choose by: the last is kept
            self.result.val, self.result.selected_round = metrics, server_round
        elif wanted is not None and (held is None or sign * wanted > sign * held):
            self.result.val, self.result.selected_round = metrics, server_round
            self._best = arrays
        return MetricRecord(dict(metrics)) if metrics else None

    def _evaluate(self, arrays: ArrayRecord, split: str) -> dict[str, float]:
        metrics = self.learner.evaluate(model_arrays.from_record(arrays), split)
        return {key: value for key, value in metrics.items() if abs(value) < float("inf")}

    def _on_round(self, record: RoundRecord) -> None:
        self.result.rounds = record.server_round
        self.result.clients = record.client_metrics or self.result.clients
        row: dict[str, Any] = {"round": record.server_round, "val": record.server_metrics}
        seen: dict[str, Any] = {
            "cohort": len(record.cohort),
            "failed": sorted(record.failed),
            "train_loss": record.train_loss,
            "seconds": round(record.seconds, 4),
        }
        if record.client_metrics:
            seen["clients"] = record.client_metrics
            seen["fairness"] = self._fairness(record)
        if self.guard is None:
            self.directory.append_metrics(row | seen)
            private = {"round": record.server_round, "names": record.cohort}
            self.directory.append_private(private | {"failed": seen["failed"]})
        else:
            # Not exact at the end either, lest it be below the bounds of earlier rounds.
            for level, epsilon in self.guard.published_epsilons(exact=False).items():
                self._shown[level] = max(epsilon, self._shown.get(level, 0.0))
            row["epsilon"] = dict(self._shown)
            self.directory.append_metrics(row)
            private = {"round": record.server_round, "names": record.cohort, **seen}
            spent = self.guard.epsilons(exact=False)
            self.directory.append_private(private | {"epsilon": spent})
            self._write_report(record.server_round)
            record = public_record(record, row["epsilon"])
            left = self.guard.rounds_left()
            logger.info("%s", describe_budget(self.config, row["epsilon"], left))
        self._checkpoint(record.server_round)
        self.display.round(record)

    @property
    def _is_last(self) -> bool:
        """Whether the round is the last that is planned: what is spent is then told exactly."""
        return self.result.rounds == self.config.federation.num_rounds

    def _fairness(self, record: RoundRecord) -> dict[str, float]:
        """How evenly the task's metric is spread over clients."""
        metric = self.config.task.metric
        values = [own[metric] for own in record.client_metrics.values() if metric in own]
        return fairness(values, metric)

    def _checkpoint(self, server_round: int, *, always: bool = False) -> None:
        """Make the round's state durable, every so many rounds and at the end."""
        every, last = self.config.checkpoint.every, self.config.federation.num_rounds
        is_best = self._best is not None and self.result.selected_round == server_round
        if server_round % every and server_round != last and not is_best and not always:
            return
        best = None
        if self._best is not None:
            best = {"round": self.result.selected_round, "metrics": self.result.val}
        head = self.store.ledger.durable_head
        if head is None:
            raise ValueError("a run's ledger begins with its settings")
        section = (
            {"style": "none"}
            if self.guard is None
            else checkpoint_section(self.guard, final=self._is_last)
        )
        checkpoint = Checkpoint(
            server_round=server_round,
            model=model_arrays.from_record(self.strategy.arrays),
            moments=self.strategy.optimizer.moments(),
            head=head,
            details={
                "run": self.store.run,
                "task": self.config.task.name,
                "random": {"seed": self.config.seed, "next_round": server_round + 1},
                "clip_norm": None if self.mechanism is None else self.mechanism.clip_norm,
                "best": best,
                "privacy": section,
            },
        )
        self.store.commit(checkpoint, self.result.selected_round if best is not None else None)

    def _write_report(self, rounds: int, *, durable: bool = False) -> None:
        report = no_privacy(self.config)
        if self.guard is not None:
            shared, plan = self.store.data_ledger, self.guard.plan
            all_runs = None
            if shared is not None:
                all_runs = shared.totals(
                    delta_record=plan.delta_sample or plan.delta_user or 1e-5,
                    delta_client=plan.delta_user or plan.delta_sample or 1e-5,
                )
            report = privacy_report(self.config, self.guard, rounds, all_runs, final=durable)
        if self.result.participation is not None:
            report["contributed_less"] = self.result.participation.less
        self.directory.write_json(REPORT_FILE, report, durable=durable)

    def _finish(self, last: ArrayRecord) -> None:
        """Choose and write the final model, and touch the test data, once."""
        rounds = self.result.rounds
        if self.config.federation.evaluate_every > 0 and self._validated != rounds:
            self._validate(rounds, last)
        final = self._best if self._best is not None else last
        if self._best is None:
            self.result.selected_round = rounds
        self.directory.save_model(model_arrays.from_record(final))
        self.result.test = self._evaluate(final, "test")
        self.learner.finish(model_arrays.from_record(final), self.directory)
        self.directory.append_metrics(
            {
                "final": True,
                "stopped": self.result.stopped,
                "selected_round": self.result.selected_round,
                "val": self.result.val,
                "test": self.result.test,
            }
        )
        participation = Participation.of(self.directory.private_rows())
        self.directory.write_private(PARTICIPATION_FILE, participation.to_json())
        if not self.strategy.hides_cohorts:
            self.result.participation = participation
        self._write_report(self.result.rounds, durable=True)
        done = self.result.rounds == self.config.federation.num_rounds
        if self.result.stopped.startswith(BUDGET) and rounds not in self.store.committed:
            self._checkpoint(rounds, always=True)
        if done or self.result.stopped.startswith(BUDGET):
            self.store.close(self.result.rounds, self.result.stopped)
        else:
            self.store.ledger.sync()
        write_card(self.directory.path, self.store.ledger.head)
        plot_metrics(
            self.directory.metrics(),
            self.config.task.metric,
            f"{self.config.task.name}: {describe_sites(self.config)}, "
            f"privacy {self.config.privacy.style}",
            self.directory.path / "metrics.png",
        )


def _refuse_other_sizes(plan: PrivacyPlan, records: dict[str, int]) -> None:
    """A plan holds for clients with as many records as they had when it was made."""
    for name, own in plan.clients.items():
        if records.get(name) != own.records:
            raise ConfigError(
                f"{name} has {records.get(name, 'no')} records, but the run began with "
                f"{own.records}: restore its data, or continue as a new phase with new_phase=true"
            )


def public_record(record: RoundRecord, epsilons: dict[str, float]) -> RoundRecord:
    """A round as it may be shown in a private style: no cohort, no client's loss or failure."""
    return RoundRecord(
        server_round=record.server_round,
        server_metrics=record.server_metrics,
        seconds=record.seconds,
        epsilons=epsilons,
    )


def describe_budget(config: Config, epsilons: dict[str, float], left: int | None) -> str:
    """One line on what is spent and what is left."""
    parts = []
    for level, spent in epsilons.items():
        settings = config.privacy.sample if level == "sample" else config.privacy.user
        target = settings.target_epsilon
        parts.append(f"ε_{level} {spent:.3f}" + (f" of {target:g}" if target else ""))
    if left is not None:
        parts.append(f"{left} rounds left in the budget")
    return ", ".join(parts)
