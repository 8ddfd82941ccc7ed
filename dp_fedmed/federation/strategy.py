"""One round of the federation, from top to bottom.

Sample, charge, configure, receive, check, clip, sum, noise, apply, evaluate, commit.

This is the one place where a client's reply becomes part of the model; `ReplyReader` has checked it
before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from dp_fedmed.crash_points import crash_point
from dp_fedmed.errors import Interrupted, TooFewClients
from dp_fedmed.federation import arrays as model_arrays
from dp_fedmed.federation.masked_rounds import MaskedRounds
from dp_fedmed.federation.messages import RoundOrder
from dp_fedmed.federation.messenger import Messenger, names_of_nodes
from dp_fedmed.federation.round_sums import RoundSums
from dp_fedmed.federation.rounds import RoundLedger, RoundObserver, RoundRecord, RoundSettings
from dp_fedmed.federation.sampling import Sampler
from dp_fedmed.federation.server_optimizer import ServerOptimizer
from dp_fedmed.federation.stopping import StopRequest
from dp_fedmed.learning import ServerStep
from dp_fedmed.privacy.mechanisms.base import ServerMechanism, exact_inputs
from dp_fedmed.privacy.streams import Purpose, RoundStreams, stream

logger = logging.getLogger(__name__)


class DPStrategy(Strategy):
    """Federated averaging by stable client names, private if a mechanism and a ledger are given.

    Args:
        settings: how many rounds, and how they are evaluated.
        sampler: decides who takes part.
        nodes: each client's Flower node by its name; None to meet as many as `num_clients`.
        num_clients: how many nodes to wait for, where they are not given.
        mechanism: bounds and noises the sum of answers; None where the server adds no noise.
        ledger: what is spent, written down before a round; needed where anything is protected.
        step: what the server makes of the answers; FedAvg unless given.
        observer: evaluates, commits and reports each round.
        order: what clients are sent besides the model.
        answers: whether clients answer changes of the model, or whole models.
        seed: for the draw of clients that evaluate, and of cohorts that are no secret.
        stop: what the user asks for while the run lasts.
        masked: shows the server the sum of the answers only, if given.
    """

    def __init__(
        self,
        settings: RoundSettings,
        *,
        sampler: Sampler,
        nodes: Mapping[str, int] | None = None,
        num_clients: int | None = None,
        mechanism: ServerMechanism | None = None,
        ledger: RoundLedger | None = None,
        step: ServerStep | None = None,
        observer: RoundObserver | None = None,
        order: RoundOrder | None = None,
        answers: Literal["updates", "weights"] = "updates",
        seed: int = 0,
        stop: StopRequest | None = None,
        masked: MaskedRounds | None = None,
    ) -> None:
        if mechanism is not None and ledger is None:
            raise ValueError("noise at the server needs a ledger to charge and to draw from")
        self.settings, self.sampler, self.seed = settings, sampler, seed
        self.mechanism, self.ledger, self.order = mechanism, ledger, order
        self.guard = None if ledger is None else ledger.guard
        self.observer = observer or RoundObserver()
        self.answers, self.num_clients, self.stop = answers, num_clients, stop
        self.masked = masked
        self._timeout: float | None = None
        self.hides_cohorts = mechanism is not None and mechanism.hides_cohorts
        self.optimizer: ServerStep = step or ServerOptimizer()
        self.arrays = ArrayRecord()
        self.nodes: dict[str, int] = {}
        self._meet(nodes or {})
        self._record = RoundRecord(server_round=0)
        self._made_streams: tuple[ArrayRecord, RoundStreams] | None = None

    def _meet(self, nodes: Mapping[str, int]) -> None:
        self.nodes = dict(nodes)
        self._mail = Messenger(
            self.nodes,
            step=self.optimizer,
            order=self.order,
            guard=self.guard,
            mechanism=self.mechanism,
            stop=self.stop,
        )
        self._sums = RoundSums(
            self._mail.names,
            guard=self.guard,
            mechanism=self.mechanism,
            step=self.optimizer,
            masked=self.masked,
            weight_by_examples=self.settings.weight_by_examples,
            whole_models=self.answers == "weights",
        )

    def summary(self) -> None:
        """Log the set-up as a tree."""
        rounds, sampler = self.settings.num_rounds, self.sampler
        weights = "examples" if self.settings.weight_by_examples else "uniform"
        kind = type(sampler).__name__.removesuffix("Sampler").lower()
        logger.info("federation of %d clients, %d rounds", len(self.nodes), rounds)
        logger.info("├── sampler: %s, rate %g", kind, sampler.rate)
        logger.info("├── weights: %s", weights if self.mechanism is None else "by the mechanism")
        logger.info("└── server step: %s", getattr(self.optimizer, "name", "the learner's own"))

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float | None = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Any = None,
        after_round: int | None = None,
    ) -> Result:
        """Run every round, or those after `after_round`; `self.arrays` is the last good model.

        Flower's own loop cannot stop early, commit a round or begin in the middle, so the loop is
        here.

        Raises:
            TooFewClients: when a round has too few usable replies.
            Interrupted: at the end of a round, if the user asked for it.
        """
        if not self.nodes:
            self._meet(names_of_nodes(grid, self.num_clients or 1, timeout=timeout))
        if self.guard is not None and self.mechanism is not None:
            self.guard.refuse_other_cost(self.sampler, self.mechanism, len(self.nodes))
        self.summary()
        self.arrays, self._timeout = initial_arrays, timeout
        result = Result(arrays=initial_arrays)
        if after_round is None:
            self._record = RoundRecord(server_round=0)
            self._evaluate_here(0, evaluate_fn, result)
            self.observer.end_round(self._record)
        last = self.settings.num_rounds if num_rounds is None else num_rounds
        for server_round in range((after_round or 0) + 1, last + 1):
            if self.stop is not None and self.stop.after_round:
                raise Interrupted
            started = time.perf_counter()
            self._record = RoundRecord(server_round=server_round)
            config = train_config or ConfigRecord()
            messages = self.configure_train(server_round, self.arrays, config, grid)
            crash_point("training:before")
            replies = self._replies(grid, list(messages), timeout)
            released, train_metrics = self.aggregate_train(server_round, replies)
            if released is not None:
                self.arrays = result.arrays = released
            if train_metrics is not None:
                result.train_metrics_clientapp[server_round] = train_metrics
            self._evaluate_at_clients(grid, server_round, evaluate_config, timeout, result)
            self._evaluate_here(server_round, evaluate_fn, result)
            self._record.seconds = time.perf_counter() - started
            self.observer.end_round(self._record)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the cohort, charge its round, and make one message to each client, in name order.

        Raises:
            BudgetSpent: if the round does not fit into a privacy budget.
        """
        self.arrays = arrays
        if self.guard is None:
            cohort = self._draw(server_round)
        else:
            digest = self._streams(server_round).digest
            cohort = self.guard.open_round(server_round, digest, lambda: self._draw(server_round))
        self._record.cohort = cohort
        if self.guard is not None and self.guard.stored is not None:
            logger.info("round %d was released before a crash: taken from disk", server_round)
            return []
        if self.masked is None:
            return self._mail.messages("train", cohort, server_round, arrays, config)
        model = model_arrays.from_record(arrays)
        ask = self._mail.ask(grid, server_round, self._timeout, self._sums.reader.shown)
        like = self._sums.answer_like(model)
        beside = self.masked.open(server_round, model, cohort, like, ask)
        messages = self._mail.messages("train", beside, server_round, arrays, config)
        for message, records in zip(messages, beside.values(), strict=True):
            message.content.update(records)
        return messages

    def _draw(self, server_round: int) -> list[str]:
        """The cohort: secret where the guarantee rests on hidden cohorts, else from the seed."""
        if self.hides_cohorts:
            rng = self._streams(server_round).sampling(Purpose.COHORT)
        else:
            rng = stream(self.seed, "cohort", server_round)
        return self.sampler.cohort(list(self.nodes), rng)

    def _streams(self, server_round: int) -> RoundStreams:
        """The secret streams of a round; the model is digested once."""
        if self.ledger is None:
            raise ValueError("this strategy has no secret streams")
        made = self._made_streams
        if made is None or made[0] is not self.arrays or made[1].server_round != server_round:
            streams = self.ledger.streams(server_round, model_arrays.from_record(self.arrays))
            made = self._made_streams = (self.arrays, streams)
        return made[1]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The next model, or None when nobody contributed; and the mean training loss."""
        model = model_arrays.from_record(self.arrays)
        average: Mapping[str, np.ndarray[Any, Any]] | None
        if self.mechanism is not None:
            average = self._noised_average(server_round, model, replies, self.mechanism)
        else:
            average, contributed = self._sums.mean(self._record, model, replies)
            if contributed is not None:
                self._require_enough(contributed)
        if average is None:
            return None, None
        new_model = self.optimizer.step(model, average)
        loss = self._record.train_loss
        # Clients' losses are no part of the guarantee: with hidden cohorts they stay here.
        metrics = None
        if loss is not None and not self.hides_cohorts:
            metrics = MetricRecord({"train_loss": loss})
        return model_arrays.to_record(new_model), metrics

    def _noised_average(
        self,
        server_round: int,
        model: model_arrays.State,
        replies: Iterable[Message],
        mechanism: ServerMechanism,
    ) -> Mapping[str, np.ndarray[Any, Any]]:
        """The released average: durable before anything is made of it; from disk if it was."""
        stored = None if self.guard is None else self.guard.stored
        if stored is not None:
            mechanism.restore(stored.state)
            return stored.average
        total, contributed = self._sums.total(self._record, model, replies, mechanism)
        if contributed is not None and not self.hides_cohorts:
            self._require_enough(contributed)
        streams = self._streams(server_round)
        average = mechanism.release(total, streams)  # an empty cohort too releases noise
        if self.guard is not None:
            self.guard.release(exact_inputs(total, streams), average, mechanism.state())
        return average

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages to at most `client_evaluate_max` clients, in rounds that evaluate at clients."""
        every, last = self.settings.client_evaluate_every, self.settings.num_rounds
        if every == 0 or (server_round % every and server_round != last):
            return []
        names = sorted(self.nodes)
        if len(names) > self.settings.client_evaluate_max:
            rng = stream(self.seed, "evaluate", server_round)
            chosen = rng.choice(len(names), self.settings.client_evaluate_max, replace=False)
            names = [names[i] for i in sorted(chosen)]
        return self._mail.messages("evaluate", names, server_round, arrays, config)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """The clients' metrics, averaged over their validation records."""
        return self._sums.reader.evaluations(self._record, replies)

    def _replies(
        self, grid: Grid, messages: list[Message], timeout: float | None
    ) -> Iterable[Message]:
        """Replies to a round's messages, or their sum where workers of the engine add them up."""
        made = self._sums.at_workers(grid, messages, self.arrays, timeout)
        return made or self._mail.exchange(grid, messages, timeout, self._sums.reader.shown)

    def _require_enough(self, contributed: int) -> None:
        wanted = self.settings.min_clients
        if wanted is None and not self._record.failed:
            return  # nobody was drawn, or those who were have no records: the model stays
        if contributed < (wanted or 1):
            raise TooFewClients(
                f"round {self._record.server_round}: {contributed} of "
                f"{len(self._record.cohort)} clients contributed, fewer than "
                f"federation.min_clients={wanted or 1}; the model is the one of "
                f"round {self._record.server_round - 1}"
            )

    def _evaluate_at_clients(
        self,
        grid: Grid,
        server_round: int,
        config: ConfigRecord | None,
        timeout: float | None,
        result: Result,
    ) -> None:
        messages = list(
            self.configure_evaluate(server_round, self.arrays, config or ConfigRecord(), grid)
        )
        if messages:
            replies = self._mail.exchange(grid, messages, timeout, logger)
            metrics = self.aggregate_evaluate(server_round, replies)
            if metrics is not None:
                result.evaluate_metrics_clientapp[server_round] = metrics

    def _evaluate_here(self, server_round: int, evaluate_fn: Any, result: Result) -> None:
        every, last = self.settings.evaluate_every, self.settings.num_rounds
        if every == 0 or (server_round % every and server_round != last):
            return
        metrics = self.observer.evaluate(server_round, self.arrays)
        if evaluate_fn is not None:  # as Flower's own strategies have it
            metrics = {**(metrics or {}), **(evaluate_fn(server_round, self.arrays) or {})}
        if metrics:
            found = {key: float(value) for key, value in metrics.items()}
            result.evaluate_metrics_serverapp[server_round] = MetricRecord(dict(found))
            self._record.server_metrics = found
