"""A round's sum, added up where the answers arise: by each worker of an engine, then here.

The guarantees kept here: workers check and bound a reply by the very code that the server's own
path uses, and add up in integers, so that the sum has the same bytes whoever added which part; a
reply that is refused adds nothing; and what is written to a ledger is written by the server.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from dp_fedmed.federation.exchange import InProcessGrid
from dp_fedmed.federation.privacy_guard import Expected
from dp_fedmed.federation.replies import ReplyReader, read_reply, refusal, weighted_mean
from dp_fedmed.federation.rounds import RoundRecord
from dp_fedmed.privacy.mechanisms.base import Arrays, ServerMechanism, State

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Asked:
    """Who is asked, and what its reply must say."""

    name: str
    expected: Expected


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a server is told of a reply besides the sum that it is in.

    Attributes:
        examples: how many records the client has.
        loss: of its training.
        charges: how often it has paid for the round, where its records are protected.
        refused: why it is not in the sum; None if it is.
    """

    examples: int = 0
    loss: float | None = None
    charges: int | None = None
    refused: str | None = None


class Adder:
    """Checks and bounds replies in a worker, with what is in force in one round.

    Args:
        mechanism: bounds an answer; its state is the round's.
        like: the names, shapes and types of an answer.
        total: the empty sum.
    """

    def __init__(self, mechanism: ServerMechanism, like: Arrays, total: Arrays) -> None:
        self.mechanism, self.names = mechanism, list(total)
        self.size = sum(value.size for value in total.values())
        self._specs = {name: (value.shape, value.dtype.str) for name, value in like.items()}

    @functools.cached_property
    def like(self) -> dict[str, np.ndarray[Any, Any]]:
        """Arrays that have a shape and a type, and no memory."""
        return {
            name: np.broadcast_to(np.zeros((), dtype), shape)
            for name, (shape, dtype) in self._specs.items()
        }

    def term(self, asked: Asked, content: RecordDict) -> tuple[Facts, list[Ints] | None]:
        """What is known of a reply, and what it adds to the sum, if it is fit."""
        checks = _Checks(asked.expected)
        try:
            answer, examples, loss = read_reply(asked.name, content, self.like, checks=checks)
        except (ValueError, KeyError) as error:
            return Facts(charges=checks.charges, refused=refusal(error)), None
        bounded = self.mechanism.bound(answer, client=asked.name)
        facts = Facts(examples=examples, loss=loss, charges=checks.charges)
        return facts, [bounded[name] for name in self.names]


class _Checks:
    """As a guard checks a client's reply; what it has paid is noted, for the guard to write."""

    def __init__(self, expected: Expected) -> None:
        self.expected = expected
        self.charges: int | None = None

    def check_examples(self, name: str, examples: int) -> None:
        self.expected.check_examples(examples)

    def check_reply(self, name: str, realised: Mapping[str, object] | None) -> None:
        self.charges = self.expected.charges(realised)


class RoundSum(Iterable[Message]):
    """The sum of one round, in the server's process, and what is known of its clients.

    It stands for replies of which none is left to read.

    Args:
        mechanism: the round's.
        like: the names, shapes and types of an answer.
        reader: knows the clients, and what their replies must say.
    """

    def __init__(self, mechanism: ServerMechanism, like: Arrays, reader: ReplyReader) -> None:
        self.total: State = mechanism.empty(like)
        self.size = sum(value.size for value in self.total.values())
        self.packed = bytes(ForkingPickler.dumps(Adder(mechanism, like, self.total)))
        self._reader = reader
        self._facts: dict[str, Facts] = {}

    def __iter__(self) -> Iterator[Message]:
        return iter(())

    def asked(self, node_id: int) -> Asked:
        """What a worker must know of a client."""
        name, guard = self._reader.names[node_id], self._reader.guard
        return Asked(name, Expected() if guard is None else guard.expected(name))

    def add(self, part: Ints) -> None:
        """Add one worker's sum, laid end to end."""
        start = 0
        for value in self.total.values():
            value += part[start : start + value.size].reshape(value.shape)
            start += value.size

    def note(self, node_id: int, facts: Facts | str) -> None:
        """What is known of a client, or why there is no reply of it."""
        if isinstance(facts, str):
            facts = Facts(refused=refusal(ValueError(facts or "it failed")))
        self._facts[self._reader.names[node_id]] = facts

    def close(self, record: RoundRecord) -> tuple[State, int]:
        """The sum and how many are in it; pays, warns and notes the mean loss in name order."""
        losses: list[tuple[float, int]] = []
        contributed = 0
        for name in record.cohort:
            facts = self._facts.get(name) or Facts(refused="no reply in time")
            if facts.charges is not None and self._reader.guard is not None:
                self._reader.guard.pay_client(name, facts.charges)
            if facts.refused is not None:
                self._reader.refuse(record, name, facts.refused)
                continue
            contributed += 1
            if facts.loss is not None:
                losses.append((facts.loss, facts.examples))
        if losses:
            record.train_loss = weighted_mean(losses)
        return self.total, contributed


def sum_at_workers(
    grid: Grid,
    messages: list[Message],
    mechanism: ServerMechanism,
    like: Arrays,
    reader: ReplyReader,
    timeout: float | None,
) -> RoundSum | None:
    """A round's sum from an engine whose workers add up; None where every reply must come here.

    That is: on other engines; where the noise is not drawn here, or the sum is not one of integers;
    where an answer is a whole model, of which the change is taken; and for a mechanism that cannot
    be sent to another process.
    """
    if not isinstance(grid, InProcessGrid) or not grid.adds_up or not messages:
        return None
    if mechanism.noised_by != "server" or reader.whole_models:
        return None
    try:
        made = RoundSum(mechanism, like, reader)
    except Exception:  # whatever a mechanism of somebody else's has that no pipe can carry
        return None
    if any(value.dtype != np.int64 for value in made.total.values()):
        return None
    grid.send_and_sum(messages, made, timeout=timeout)
    return made
