"""From a round's replies to their sum or mean, wherever they are added up.

Answers come one by one, as sums of an engine's workers, or as one sum under masks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from dp_fedmed.federation import arrays as model_arrays
from dp_fedmed.federation.masked_rounds import MaskedRounds
from dp_fedmed.federation.partial_sums import RoundSum, sum_at_workers
from dp_fedmed.federation.privacy_guard import PrivacyGuard
from dp_fedmed.federation.replies import LARGEST_NORM, ReplyReader
from dp_fedmed.federation.rounds import RoundRecord
from dp_fedmed.federation.secure_aggregation.fixed_point import to_mean
from dp_fedmed.learning import ServerStep
from dp_fedmed.privacy.mechanisms.base import ServerMechanism, add

Arrays = Mapping[str, np.ndarray[Any, Any]]
State = model_arrays.State


class RoundSums:
    """Reads, checks and adds up the replies of a run's rounds.

    Args:
        names: of the nodes.
        guard: says what a reply must report.
        mechanism: bounds answers; None where the server noises nothing.
        step: says what an answer looks like, and collects those that nobody bounds.
        masked: unmasks the sum, where the server sees no single answer.
        weight_by_examples: whether an answer that nobody bounds counts by its records.
        whole_models: whether clients answer models, not changes.
    """

    def __init__(
        self,
        names: Mapping[int, str],
        *,
        guard: PrivacyGuard | None,
        mechanism: ServerMechanism | None,
        step: ServerStep,
        masked: MaskedRounds | None,
        weight_by_examples: bool,
        whole_models: bool,
    ) -> None:
        self.mechanism, self.step, self.masked = mechanism, step, masked
        self.weight_by_examples = weight_by_examples
        self.reader = ReplyReader(
            names,
            guard=guard,
            hides_cohorts=mechanism is not None and mechanism.hides_cohorts,
            # A mechanism clips, and of what is masked no norm is known.
            max_norm=None if mechanism or masked else LARGEST_NORM,
            whole_models=whole_models,
        )

    def answer_like(self, model: Arrays) -> Arrays:
        """The names, shapes and types of an answer to this model."""
        like = self.step.answer_like(model)
        return like if self.mechanism is None else self.mechanism.answer_like(like)

    def at_workers(
        self, grid: Grid, messages: list[Message], arrays: ArrayRecord, timeout: float | None
    ) -> RoundSum | None:
        """The sum of an engine whose workers add up; None where replies must come one by one."""
        if self.mechanism is None or not self.step.is_shared:
            return None
        like = self.answer_like(model_arrays.from_record(arrays))
        return sum_at_workers(grid, messages, self.mechanism, like, self.reader, timeout)

    def total(
        self,
        record: RoundRecord,
        model: State,
        replies: Iterable[Message],
        mechanism: ServerMechanism,
    ) -> tuple[State, int | None]:
        """The sum of bounded answers, and how many are in it; None where masks see to enough."""
        if isinstance(replies, RoundSum):
            return replies.close(record)
        total, contributed = mechanism.empty(self.answer_like(model)), 0
        if self.masked is not None:
            add(total, self._unmasked(record, model, replies, self.masked)[0])
            return total, None
        for name, update, _ in self._contributions(record, model, replies):
            add(total, mechanism.bound(update, client=name))
            contributed += 1
        return total, contributed

    def mean(
        self, record: RoundRecord, model: State, replies: Iterable[Message]
    ) -> tuple[Arrays | None, int | None]:
        """The answers as one, as they are, and how many; None when nobody contributed."""
        if self.masked is not None:
            total, facts = self._unmasked(record, model, replies, self.masked)
            weight = facts["examples" if self.weight_by_examples else "clients"]
            return (to_mean(total, weight=weight) if weight else None), None
        updates = self.step.collector(model)
        contributed = 0
        for name, update, examples in self._contributions(record, model, replies):
            contributed += 1
            weight = examples if self.weight_by_examples else 1.0
            updates.add(self.step.whole(update, name), weight)
        return updates.result(), contributed

    def _unmasked(
        self, record: RoundRecord, model: State, replies: Iterable[Message], masked: MaskedRounds
    ) -> tuple[State, dict[str, Any]]:
        """The sum of the masked answers, and how many clients and records it is of."""
        like = self.answer_like(model)
        seen = masked.answer_like(like)
        return masked.total(like, self.reader.contributions(record, replies, lambda name: seen))

    def _contributions(
        self, record: RoundRecord, model: State, replies: Iterable[Message]
    ) -> Iterable[tuple[str, State, int]]:
        """Names, checked updates and numbers of examples, in name order."""
        shared = self.answer_like(model) if self.step.is_shared else None

        def like(name: str) -> Arrays:
            if shared is not None:
                return shared
            return self.answer_like(self.step.part(model, name))

        return self.reader.contributions(record, replies, like)
