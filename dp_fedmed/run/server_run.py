"""One run at the server, from the first plan to the tested final model."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import math
import time
from collections.abc import Mapping
from typing import Any

from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from dp_fedmed.config import Config, PrivacyStyle, better
from dp_fedmed.data import load_data, refuse_other_kind
from dp_fedmed.errors import (
    ArrayError,
    BudgetSpent,
    CheckpointError,
    EngineLost,
    Interrupted,
    TooFewClients,
)
from dp_fedmed.federation import (
    DPStrategy,
    Node,
    PrivacyGuard,
    RoundObserver,
    RoundOrder,
    RoundRecord,
    StopRequest,
    check_ready,
)
from dp_fedmed.federation import arrays as model_arrays
from dp_fedmed.privacy.mechanisms import ServerMechanism
from dp_fedmed.run.checkpoint import Checkpoint
from dp_fedmed.run.directory import PARTITION_PICTURE, REPORT_FILE
from dp_fedmed.run.observer import Observer
from dp_fedmed.run.phases import Parts, PhaseLedger, masked_rounds, round_settings
from dp_fedmed.run.privacy_report import checkpoint_section, no_privacy, privacy_report
from dp_fedmed.run.results import (
    BUDGET,
    ENVIRONMENT_FILE,
    INTERRUPTED,
    PARTICIPATION_FILE,
    Participation,
    RunResult,
    describe_budget,
    environment_after,
    fairness_of,
    mechanism_state,
    public_record,
    write_evaluation,
)
from dp_fedmed.run.resume import resume_run
from dp_fedmed.run.store import RunStore

logger = logging.getLogger(__name__)

STORAGE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EACCES}


class ServerRun(RoundObserver):
    """One run at the server: data, network, strategy, and the run directory.

    It is the observer of its strategy: it evaluates, commits and reports every round.

    Args:
        config: of a new run, or what was given to resume one with.
        parts: makes what the run is put together from.
        observer: watches it.
        stop: what the user asks for.
    """

    def __init__(
        self, config: Config, parts: Parts, observer: Observer, stop: StopRequest | None
    ) -> None:
        self.parts, self.observer, self.stop = parts, observer, stop or StopRequest()
        self.data = load_data(config.data, seed=config.seed)
        refuse_other_kind(config, self.data)
        self.store = RunStore.create(config) if config.resume is None else resume_run(config)
        self.config = self.store.config
        self.directory = self.store.directory
        self.private = config.privacy.style is not PrivacyStyle.none
        self.result = RunResult(run_dir=self.directory.path)
        self.guard: PrivacyGuard | None = None
        self.mechanism: ServerMechanism | None = None
        self._shown: dict[str, float] = {}  # ε by level, as the last row has it
        self._best: ArrayRecord | None = None
        self._validated = -1
        self.store.refuse_other_data(self._data_digest)

    def run(self, grid: Grid, nodes: dict[str, Node]) -> RunResult:
        """Train, then choose, test and save the final model; a stopped run keeps its last one."""
        started = time.perf_counter()
        config = self.config
        pictured = (self.directory.path / PARTITION_PICTURE).exists()
        if not pictured and all(node.simulated for node in nodes.values()):
            self.observer.describe_clients(config, self.data, self.directory)
        records = {name: node.records or 0 for name, node in nodes.items()}
        self.learner = self.parts.learner(config, self.data, records)
        strategy = self.strategy = self._make_strategy(nodes)
        config = self.config = self.store.config
        initial = model_arrays.to_record(self.learner.initial())
        if self.store.start is not None:
            initial = self._resume_from(self.store.start)
        strategy.arrays = initial
        timeout = config.federation.connect_timeout
        check_ready(grid, nodes, self._order_to, timeout=timeout)
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
        self.observer.summary(config, self.result)
        return self.result

    def _train(self, grid: Grid, initial: ArrayRecord) -> None:
        """Every round that is left, or as many as can be done; `result.stopped` says which."""
        config, strategy = self.config, self.strategy
        left = config.federation.num_rounds - self.result.rounds
        planned = {} if self.guard is None else self.guard.planned_epsilons(left)
        self.observer.begin(self.result.rounds, planned)
        try:
            with self.observer, self.stop.during_rounds(self.observer.stopping):
                strategy.start(
                    grid,
                    initial,
                    num_rounds=config.federation.num_rounds,
                    timeout=config.federation.round_timeout,
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

    def _order(self) -> RoundOrder:
        """What every client is sent with every model."""
        return RoundOrder(
            input_shape=tuple(self.data.input_shape),
            num_classes=self.data.num_classes,
            run=self.store.run,
            streams=self.store.stream_name,
            phase=self.store.phase,
            style=str(self.config.privacy.style),
            noised_by=self.config.noised_by,
            learning=self.learner.order(),
        )

    def _order_to(self, name: str) -> RoundOrder:
        """What a client would be sent with its first round."""
        order = self._order()
        return order if self.guard is None else self.guard.complete(order, name, self.mechanism)

    def _resume_from(self, checkpoint: Checkpoint) -> ArrayRecord:
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
        same_phase = details["privacy"].get("phase") == self.store.phase
        if self.mechanism is not None and same_phase:
            held = details.get("mechanism", {"clip_norm": details["clip_norm"]})
            self.mechanism.restore(held)
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
        logger.info("resumed after round %d", self.result.rounds)
        return model_arrays.to_record(model)

    def _cannot_write(self, error: OSError) -> RunResult:
        """A full or failing disk: stop, and leave everything that was durable as it is."""
        self.result.stopped = (
            f"{self.directory.path} cannot be written ({error.strerror or error}); what was "
            f"committed is intact: make room, then dp-fedmed resume {self.directory.path}"
        )
        logger.error("%s", self.result.stopped)
        self.observer.summary(self.config, self.result)
        return self.result

    def _make_strategy(self, nodes: dict[str, Node]) -> DPStrategy:
        """The strategy of the configured style, with its budget, mechanism and secret streams."""
        sampler = self.parts.sampler(self.config)
        records = {name: node.records or 0 for name, node in nodes.items()}
        ledger = None
        if self.private:
            ledger = PhaseLedger(self.store, self.learner, sampler, records)
            config, self.guard = self.store.config, ledger.guard
            plan = self.guard.plan
            self.mechanism = ledger.mechanism = self.parts.mechanism(
                config, self.learner, plan, sampler
            )
            is_new = self.store.start is None
            for advice in self.parts.advice(
                config, self.learner, plan, sampler, records, is_new=is_new
            ):
                logger.warning("%s", advice)
                self.observer.note(advice)
        return DPStrategy(
            round_settings(self.store.config),
            nodes={name: node.node_id for name, node in nodes.items()},
            sampler=sampler,
            mechanism=self.mechanism,
            ledger=ledger,
            step=self.parts.step(
                self.store.config,
                self.learner,
                None if ledger is None else ledger.guard.plan,
                sampler,
            ),
            observer=self,
            order=self._order(),
            seed=self.config.seed,
            stop=self.stop,
            masked=masked_rounds(self.store),
        )

    @functools.cached_property
    def _data_digest(self) -> str:
        return self.store.data_digest(self.data)

    def evaluate(self, server_round: int, arrays: ArrayRecord) -> Mapping[str, float] | None:
        """Validation metrics of a round's model; in style `none` they choose the final model."""
        metrics = self._evaluate(arrays, "val")
        self._validated = server_round
        if self.private:  # choosing the best would be one more release: the last is kept
            self.result.val, self.result.selected_round = metrics, server_round
            return metrics
        wanted = metrics.get(self.config.task.metric)
        held = self.result.val.get(self.config.task.metric)
        sign = better(self.config.task.metric)
        if wanted is None and self._best is None:  # nothing to choose by: the last is kept
            self.result.val, self.result.selected_round = metrics, server_round
        elif wanted is not None and (held is None or sign * wanted > sign * held):
            self.result.val, self.result.selected_round = metrics, server_round
            self._best = arrays
        return metrics

    def _evaluate(self, arrays: ArrayRecord, split: str) -> dict[str, float]:
        metrics = self.learner.evaluate(model_arrays.from_record(arrays), split)
        return {key: value for key, value in metrics.items() if abs(value) < float("inf")}

    def end_round(self, record: RoundRecord) -> None:
        """Write down what may be published and what may not, commit, and show the round."""
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
            seen["fairness"] = fairness_of(record, self.config.task.metric)
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
        self.observer.round(record)

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
        section: dict[str, Any] = {"style": "none"}
        if self.guard is not None:
            section = checkpoint_section(self.config, self.guard, final=server_round == last)
        checkpoint = Checkpoint(
            server_round=server_round,
            model=model_arrays.from_record(self.strategy.arrays),
            moments=self.strategy.optimizer.moments(),
            head=head,
            details={
                "run": self.store.run,
                "task": self.config.task.name,
                "random": {"seed": self.config.seed, "next_round": server_round + 1},
                **mechanism_state(self.mechanism),
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
            self.evaluate(rounds, last)
        final = self._best if self._best is not None else last
        if self._best is None:
            self.result.selected_round = rounds
        self.directory.save_model(model_arrays.from_record(final))
        self.result.test = self._evaluate(final, "test")
        evaluation = self.learner.finish(model_arrays.from_record(final))
        write_evaluation(evaluation, self.directory, self.observer)
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
        self.observer.finish(self.config, self.directory, self.store.ledger.head)
