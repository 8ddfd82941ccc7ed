"""The server's side of an attempt over messages: who drops out where, and what is kept before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from dp_fedmed.errors import NotUnmasked
from dp_fedmed.federation.secure_aggregation import (
    Delivery,
    Roster,
    SecureClient,
    ServerState,
    Terms,
    UnmaskRequest,
)
from dp_fedmed.federation.secure_aggregation.attempt import (
    KEYS,
    MASKING,
    SHARES,
    TERMS,
    UNMASK,
    Attempt,
)
from tests.federation.secure_aggregation.attempts import key_of, terms

NAMES = tuple(f"site-{n}" for n in range(5))


class Sites:
    """Clients in this process, and a store that remembers what was kept when."""

    def __init__(self, agreed: Terms, lost: Callable[[str, str], bool] = lambda *_: False) -> None:
        self.clients = {name: SecureClient(key_of(name), name, agreed) for name in NAMES}
        self.lost, self.kept, self.asked = lost, list[Any](), list[str]()
        self.values = {name: np.arange(agreed.length) * (n + 1) for n, name in enumerate(NAMES)}

    def ask(self, kind: str, asked: Mapping[str, RecordDict]) -> Iterator[tuple[str, RecordDict]]:
        self.asked.append(kind)
        for name, content in asked.items():
            assert Terms.from_record(content.config_records[TERMS]).length
            if self.lost(kind, name):
                continue
            said = self._said(kind, name, content.config_records.get(MASKING, ConfigRecord()))
            yield name, RecordDict({MASKING: ConfigRecord(dict(said.to_record()))})

    def _said(self, kind: str, name: str, stage: ConfigRecord) -> Any:
        client = self.clients[name]
        if kind == KEYS:
            return client.advertise()
        if kind == SHARES:
            return client.share(Roster.from_record(stage))
        return client.reveal(UnmaskRequest.from_record(stage))

    def answer(self, attempt: Attempt, beside: Mapping[str, RecordDict]) -> None:
        for name, records in beside.items():
            if not self.lost("train", name):
                delivery = Delivery.from_record(records.config_records[MASKING])
                masked = self.clients[name].mask(delivery, self.values[name])
                attempt.add(name, masked.values)

    def save(self, agreed: Terms, state: ServerState, masked: Any, facts: Any) -> None:
        assert UNMASK not in self.asked, "kept before anybody is asked"
        self.kept.append((agreed, state, masked.copy(), facts))

    def finish(self, total: Any) -> None:
        self.kept.append(total)

    def sum_of(self, *away: str) -> Any:
        return sum(value for name, value in self.values.items() if name not in away)


@pytest.mark.parametrize("stage", [KEYS, SHARES, "train", UNMASK])
def test_one_may_drop_out_at_each_stage(stage: str) -> None:
    agreed = terms(minimum=4, colluding=1)
    sites = Sites(agreed, lambda kind, name: (kind, name) == (stage, "site-2"))
    attempt = Attempt(agreed, sites.ask, sites)
    sites.answer(attempt, attempt.open(NAMES))
    away = () if stage == UNMASK else ("site-2",)
    assert np.array_equal(attempt.total(), sites.sum_of(*away))
    assert sites.asked == [KEYS, SHARES, UNMASK]


@pytest.mark.parametrize("stage", [KEYS, SHARES, "train", UNMASK])
def test_two_are_too_many_and_nothing_is_unmasked(stage: str) -> None:
    agreed = terms(minimum=4, colluding=1)
    sites = Sites(agreed, lambda kind, name: kind == stage and name in NAMES[:2])
    attempt = Attempt(agreed, sites.ask, sites)

    def whole() -> None:
        sites.answer(attempt, attempt.open(NAMES))
        attempt.total()

    with pytest.raises(NotUnmasked, match="needed"):
        whole()
    assert [kind for kind in sites.asked if kind == UNMASK] == ([UNMASK] if stage == UNMASK else [])


def test_an_attempt_is_unmasked_from_what_was_kept_and_to_the_same_sum() -> None:
    agreed = terms(minimum=4)
    sites = Sites(agreed, lambda kind, name: (kind, name) == ("train", "site-0"))
    attempt = Attempt(agreed, sites.ask, sites)
    attempt.facts = {"clients": 4}
    sites.answer(attempt, attempt.open(NAMES))
    total = attempt.total()
    (_, state, masked, facts), kept = sites.kept
    again = Attempt.restored(agreed, sites.ask, sites, kept=(state, masked), facts=facts)
    assert again.is_restored
    assert again.facts == {"clients": 4}
    assert np.array_equal(again.total(), total)
    over = Attempt.restored(agreed, sites.ask, sites, kept=kept, facts=facts)
    asked = len(sites.asked)
    assert np.array_equal(over.total(), total)
    assert len(sites.asked) == asked, "a sum that is known is not asked for"


def test_who_answers_for_another_or_with_nonsense_counts_as_gone() -> None:
    agreed = terms(minimum=3)
    sites = Sites(agreed)

    def forged(kind: str, asked: Mapping[str, RecordDict]) -> Iterator[tuple[str, RecordDict]]:
        for name, content in sites.ask(kind, asked):
            if kind == KEYS and name == "site-4":
                yield name, RecordDict({MASKING: ConfigRecord({"attempt": 3})})
            elif kind == SHARES and name == "site-3":
                yield "site-2", content
            else:
                yield name, content

    attempt = Attempt(agreed, forged, sites)
    beside = attempt.open(NAMES)
    assert list(beside) == ["site-0", "site-1", "site-2"]
    sites.answer(attempt, beside)
    assert np.array_equal(attempt.total(), sites.sum_of("site-3", "site-4"))
