"""Flower's Grid on this machine: calls the ClientApp in this process, or on a pool of workers."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator

from flwr.app import ArrayRecord, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.run import Run

from dp_fedmed.engines.worker_pool import Job, Outcome, WorkerPool
from dp_fedmed.federation import flower_compat
from dp_fedmed.federation.exchange import InProcessGrid
from dp_fedmed.federation.failures import describe_failure
from dp_fedmed.federation.messages import CLIENT_FAILED, ENGINE_ERROR
from dp_fedmed.federation.partial_sums import RoundSum

logger = logging.getLogger(__name__)

FIRST_NODE_ID = 100


class LocalGrid(InProcessGrid):
    """N simulated nodes for one ClientApp.

    Replies come lazily and in the order of the messages, so that a strategy that adds them up
    holds only a few at a time, and adds them in the same order on any number of workers.

    Args:
        app: what a client does.
        num_clients: how many nodes there are.
        workers: processes that compute; 1 computes in this process,
        own_process: unless this asks for a process all the same, as a time-out needs it.
        run_id: Flower's number of the run.
    """

    def __init__(
        self,
        app: ClientApp,
        *,
        num_clients: int,
        workers: int,
        own_process: bool = False,
        run_id: int = 1,
    ) -> None:
        self.app, self.num_clients = app, num_clients
        self._run = Run.create_empty(run_id)
        self._pool: WorkerPool | None = None
        if workers > 1 or own_process:
            self._pool = WorkerPool(app, workers=workers, run_id=run_id)
        self._states: dict[int, RecordDict] = {}
        self._replies: dict[str, Message] = {}
        self._ids = itertools.count(1)
        flower_compat.set_identity(run_id)

    @property
    def has_workers(self) -> bool:
        """Whether clients compute in processes that this one forks."""
        return self._pool is not None

    @property
    def adds_up(self) -> bool:
        """Whether workers add up: not where a subclass wants to see each reply."""
        watched = type(self).send_and_receive is not LocalGrid.send_and_receive
        return self._pool is not None and not watched

    def close(self) -> None:
        """Stop the workers."""
        if self._pool is not None:
            self._pool.close()

    def set_run(self, run: Run) -> None:
        """Set the run that messages belong to."""
        self._run = run

    @property
    def run(self) -> Run:
        """Information on the run."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """A message to a node, for callers of Flower's older way."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """One id per client."""
        return range(FIRST_NODE_ID, FIRST_NODE_ID + self.num_clients)

    def partition_ids(self) -> dict[int, int]:
        """Each node's partition, known here without asking ten thousand nodes for it."""
        return {node_id: node_id - FIRST_NODE_ID for node_id in self.get_node_ids()}

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Run messages at once and keep the replies for `pull_messages`."""
        batch = list(messages)
        for reply in self.send_and_receive(batch):
            self._replies[reply.metadata.reply_to_message_id] = reply
        return [message.metadata.message_id for message in batch]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies to these messages, each handed out once."""
        return [self._replies.pop(i) for i in list(message_ids) if i in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Replies in the order of the messages; a failed client's reply carries an error."""
        batch = list(messages)
        jobs = [self._job(message) for message in batch]
        if self._pool is None:
            outcomes: Iterator[Outcome] = (self._run_here(job) for job in jobs)
        else:
            outcomes = self._pool.run(jobs, shared=_shared_arrays(batch), timeout=timeout)
        return self._replies_to(batch, jobs, outcomes)

    def send_and_sum(
        self, messages: Iterable[Message], total: RoundSum, *, timeout: float | None = None
    ) -> None:
        """Send messages whose replies workers add up; what they hold is in `total` afterwards."""
        if self._pool is None:
            raise ValueError("a grid without worker processes has nobody who adds up")
        batch = list(messages)
        jobs = [self._job(message) for message in batch]
        outcomes = self._pool.add_up(jobs, total, shared=_shared_arrays(batch), timeout=timeout)
        for job, outcome in zip(jobs, outcomes, strict=True):
            self._keep_state(job, outcome)
            total.note(job.node_id, outcome.facts or outcome.error or "")

    def _job(self, message: Message) -> Job:
        flower_compat.set_message_id(message, str(next(self._ids)))
        node_id = message.metadata.dst_node_id
        partition = node_id - FIRST_NODE_ID
        if not 0 <= partition < self.num_clients:
            raise ValueError(f"no node {node_id} in a federation of {self.num_clients} clients")
        node_config = {"partition-id": partition, "num-partitions": self.num_clients}
        state = self._states.get(node_id)
        return Job(node_id, node_config, message, RecordDict() if state is None else state)

    def _run_here(self, job: Job) -> Outcome:
        context = flower_compat.make_context(self._run.run_id, job.node_id, job.node_config)
        context.state = job.state
        try:
            reply = self.app(job.message, context)
            if reply.has_error():
                return Outcome(error=reply.error.reason)
            return Outcome(content=reply.content, state=context.state)
        except Exception as error:  # whatever a client does wrong costs its own contribution only
            return Outcome(error=describe_failure(error))

    def _keep_state(self, job: Job, outcome: Outcome) -> None:
        if outcome.state is not None and len(outcome.state):
            self._states[job.node_id] = outcome.state

    def _replies_to(
        self, batch: list[Message], jobs: list[Job], outcomes: Iterator[Outcome]
    ) -> Iterator[Message]:
        for message, job, outcome in zip(batch, jobs, outcomes, strict=True):
            self._keep_state(job, outcome)
            if outcome.content is None:
                code = ENGINE_ERROR if outcome.lost else CLIENT_FAILED
                yield Message(Error(code, outcome.error), reply_to=message)
            else:
                yield Message(outcome.content, reply_to=message)


def _shared_arrays(batch: list[Message]) -> ArrayRecord | None:
    """The ArrayRecord that the messages have in common: the model of the round."""
    if not batch:
        return None
    records = batch[0].content.array_records.values()
    return next(iter(records), None)
