"""``PrivacyAccountant``: what a federation has spent, for records and for clients.

It keeps the two guarantees apart (two units, two histories, two δ), reports the worst client and
answers before anything is spent whether it would still fit. Sums restart for nobody: a state that
cannot be read completely is refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from dp_fedmed.privacy import _validate
from dp_fedmed.privacy.accounting.charges import (
    EVERY_CLIENT,
    Plan,
    charges_of,
    client_name,
    poisson_or_none,
)
from dp_fedmed.privacy.accounting.events import UNITS, PrivacyEvent, Unit
from dp_fedmed.privacy.accounting.history import (
    ACCOUNTANTS,
    History,
    Method,
    Row,
    most_repeats,
    worst_epsilon,
)
from dp_fedmed.privacy.accounting.state import event_rows, parse_state


class PrivacyAccountant:
    """Cumulative ε of a run, at record and at client level.

    The record-level guarantee is the **maximum** over clients of each client's own composition:
    it assumes that a record sits at one site only. Client sampling does not amplify it.

    Args:
        target_delta: δ at which both guarantees are stated, unless ``user_target_delta`` is given.
        target_epsilon: Budget of each guarantee; ``None`` for no budget.
        user_target_delta: δ of the client-level guarantee.
        user_target_epsilon: Budget of the client-level guarantee.
        method: ``rdp``, ``pld``, ``exact`` or ``tight``: reports and enforces.

    Example:
        >>> accountant = PrivacyAccountant(1e-5, target_epsilon=8.0)
        >>> for round_num in range(1, 11):
        ...     for client, rate in {"berlin": 0.1, "lyon": 0.5}.items():
        ...         accountant.record_round(
        ...             round_num, client=client,
        ...             noise_multiplier_sample=2.0, sample_rate_sample=rate, steps_sample=5,
        ...             noise_multiplier_user=1.0, sample_rate_user=0.1, steps_user=1)
        >>> {c: round(spent["epsilon"], 2) for c, spent in accountant.per_client().items()}
        {'berlin': 1.84, 'lyon': 10.28}
        >>> round(accountant.get_cumulative_sample_epsilon(), 2)
        10.28
        >>> round(accountant.get_cumulative_user_epsilon(), 2)
        3.44
    """

    def __init__(
        self,
        target_delta: float,
        *,
        target_epsilon: float | None = None,
        user_target_delta: float | None = None,
        user_target_epsilon: float | None = None,
        method: Method = "rdp",
    ) -> None:
        delta = _validate.delta("target_delta", target_delta)
        user_delta = delta
        if user_target_delta is not None:
            user_delta = _validate.delta("user_target_delta", user_target_delta)
        self._delta: dict[str, float] = {"record": delta, "client": user_delta}
        budget = _validate.optional_positive("target_epsilon", target_epsilon)
        user_budget = _validate.optional_positive("user_target_epsilon", user_target_epsilon)
        self._budget: dict[str, float | None] = {
            "record": budget,
            "client": budget if user_budget is None else user_budget,
        }
        self._method = _validate.choice("method", method, tuple(ACCOUNTANTS))
        self._clear()

    def _clear(self) -> None:
        # Totals by (unit, client) and by event with count 1; the histories mirror them for ε.
        self._totals: dict[tuple[str, str], dict[PrivacyEvent, int]] = {}
        self._histories: dict[tuple[str, str], History] = {}
        self._adjacency: dict[str, str] = {}
        # round → user-level event → calls by client, so that a round's event counts once.
        self._user_calls: dict[int, dict[PrivacyEvent, dict[str, int]]] = {}

    @property
    def method(self) -> Method:
        """The accounting method that reports and enforces."""
        return self._method

    @property
    def is_private(self) -> bool:
        """False as soon as one recorded event drew its noise from a public seed."""
        return all(event.is_private for totals in self._totals.values() for event in totals)

    def record(self, event: PrivacyEvent, client: str | None = None) -> None:
        """Compose with one event.

        Args:
            event: What was spent.
            client: The site whose records it concerns; ``None`` charges every client. Must be
                ``None`` for client-level events, which belong to the federation.
        """
        self._charge(event, client_name(client))

    def _charge(self, event: PrivacyEvent, client: str) -> None:
        if not isinstance(event, PrivacyEvent):
            raise TypeError(f"expected a PrivacyEvent, got {event!r}")
        if event.unit == "client" and client != EVERY_CLIENT:
            raise ValueError(
                f"a client-level event belongs to the federation, not to client {client!r};"
                " record it with client=None"
            )
        adjacency = self._adjacency.setdefault(event.unit, event.adjacency)
        if event.adjacency != adjacency:
            raise ValueError(
                f"{event.unit}-level history is stated for adjacency={adjacency!r} and cannot be"
                f" composed with {event.adjacency!r}: one ε needs one neighbouring relation"
            )
        place = (event.unit, client)
        totals = self._totals.setdefault(place, {})
        single = event if event.count == 1 else dataclasses.replace(event, count=1)
        self._histories.setdefault(place, History()).add(event)
        totals[single] = totals.get(single, 0) + event.count

    def record_round(
        self,
        round_num: int,
        *,
        noise_multiplier_sample: float | None = None,
        sample_rate_sample: float | None = None,
        steps_sample: int | None = None,
        noise_multiplier_user: float | None = None,
        sample_rate_user: float | None = None,
        steps_user: int | None = None,
        client: str | None = None,
    ) -> None:
        """Record one Poisson-sampled round, as the accounting protocol writes it.

        Three arguments left ``None`` mean that there was no event of that level; some of the
        three is an error. Call it once per client: the user-level event of a round counts once,
        however many clients report it. A second call for the same round and client is a repeated
        round, and is charged in full.
        """
        round_num = _validate.count("round_num", round_num, minimum=0)
        name = client_name(client)
        sample = poisson_or_none(
            "record", "sample", noise_multiplier_sample, sample_rate_sample, steps_sample
        )
        user = poisson_or_none(
            "client", "user", noise_multiplier_user, sample_rate_user, steps_user
        )
        if sample is not None:
            self._charge(sample, name)
        if user is not None:
            calls = self._user_calls.setdefault(round_num, {}).setdefault(user, {})
            # Charged before it is marked: a charge that fails must not look like one that was made.
            if calls.get(name, 0) == max(calls.values(), default=0):
                self._charge(user, EVERY_CLIENT)
            calls[name] = calls.get(name, 0) + 1

    def get_epsilon(
        self,
        *,
        unit: Unit,
        delta: float | None = None,
        client: str | None = None,
        method: Method | None = None,
    ) -> float:
        """ε of one guarantee so far.

        Args:
            unit: ``record`` or ``client``.
            delta: δ; by default the unit's target.
            client: For records: this site's own ε instead of the maximum over sites.
            method: Another method than the accountant's own, for comparison.
        """
        _validate.choice("unit", unit, UNITS)
        delta = self._delta[unit] if delta is None else _validate.delta("delta", delta)
        chosen = self._method if method is None else method
        if unit == "client" and client is not None:
            raise ValueError("the client-level ε is one number; client= applies to unit='record'")
        if client is None:
            names: Iterable[str] = self._clients(unit)
        else:
            names = [client_name(client)]
        return worst_epsilon([self._history(unit, n) for n in names], delta=delta, method=chosen)

    def get_cumulative_sample_epsilon(self) -> float:
        """Record-level ε: the maximum over clients, at the target δ."""
        return self.get_epsilon(unit="record")

    def get_cumulative_user_epsilon(self) -> float:
        """Client-level ε at its target δ."""
        return self.get_epsilon(unit="client")

    def get_total_epsilon(self) -> float:
        """The protocol's conservative sum ε_sample + ε_user, valid at δ_sample + δ_user.

        It protects no unit better than the two guarantees do; reports show it under that name
        because the accounting protocol defines it.
        """
        return self.get_cumulative_sample_epsilon() + self.get_cumulative_user_epsilon()

    def per_client(self) -> dict[str, dict[str, Any]]:
        """Record-level ε, δ and (σ, q, T) rows of each client, by name.

        Events that concern every client are in each client's rows; ``"*"`` stands for a client
        of which nothing else is known.
        """
        common = [EVERY_CLIENT] if ("record", EVERY_CLIENT) in self._histories else []
        result = {}
        for name in common + self._named_clients():
            history = self._history("record", name)
            result[name] = {
                "epsilon": history.epsilon(delta=self._delta["record"], method=self._method),
                "delta": self._delta["record"],
                "history": history.rows(),
            }
        return result

    def get_history(self, unit: Unit, client: str | None = None) -> list[Row]:
        """Sorted (σ, q, T) rows of the federation (unit ``client``) or of one client's records."""
        _validate.choice("unit", unit, UNITS)
        return self._history(unit, client_name(client)).rows()

    def history(self, unit: Unit, client: str | None = None) -> History:
        """A copy of what the federation (unit ``client``) or one client's records went through."""
        _validate.choice("unit", unit, UNITS)
        return self._history(unit, client_name(client)).plus()

    def _named_clients(self) -> list[str]:
        return sorted(c for unit, c in self._histories if unit == "record" and c != EVERY_CLIENT)

    def _clients(self, unit: str) -> list[str]:
        return (self._named_clients() if unit == "record" else []) or [EVERY_CLIENT]

    def _history(self, unit: str, client: str) -> History:
        common = self._histories.get((unit, EVERY_CLIENT), History())
        own = self._histories.get((unit, client)) if client != EVERY_CLIENT else None
        if own is None:
            return common
        return own.plus(common) if common else own

    def would_exceed(self, plan: Plan, client: str | None = None, *, rounds: int = 1) -> bool:
        """Whether spending ``plan`` now would take any guarantee above its budget.

        Args:
            plan: An event, several, or a mapping from client names to theirs.
            client: The site that the record-level events concern; ``None`` for every site.
            rounds: How many times the plan would be spent.

        Returns:
            True if a budget would be exceeded; always False without a budget.

        Example:
            >>> accountant = PrivacyAccountant(1e-5, target_epsilon=1.0)
            >>> step = PrivacyEvent.poisson(unit="record", noise_multiplier=1.0, sample_rate=0.01)
            >>> accountant.would_exceed(step), accountant.would_exceed(step.times(1000))
            (False, True)
        """
        rounds = _validate.count("rounds", rounds)
        charges = list(charges_of(plan, client))
        if not charges:
            raise ValueError("the plan holds no event; an empty plan spends nothing")
        return any(
            self._budget[unit] is not None
            and self._epsilon_after(unit, charges, rounds) > self._budget[unit]  # type: ignore[operator]
            for unit in sorted({event.unit for _, event in charges})
        )

    def _epsilon_after(
        self, unit: str, charges: list[tuple[str, PrivacyEvent]], rounds: int
    ) -> float:
        extra: dict[str, History] = {}
        for name, event in charges:
            if event.unit == unit:
                if self._adjacency.get(unit, event.adjacency) != event.adjacency:
                    raise ValueError(
                        f"the plan's adjacency={event.adjacency!r} does not compose with the"
                        f" {unit}-level history, which is {self._adjacency[unit]!r}"
                    )
                extra.setdefault(name, History()).add(event, times=rounds)
        common = extra.pop(EVERY_CLIENT, None)
        # A charge to every client concerns those known so far and those of the plan.
        names = set(extra) | (set(self._clients(unit)) if common is not None else set())
        after = [
            self._history(unit, name).plus(*(h for h in (extra.get(name), common) if h is not None))
            for name in sorted(names)
        ]
        return worst_epsilon(after, delta=self._delta[unit], method=self._method)

    def remaining_rounds(self, plan: Plan, client: str | None = None) -> int:
        """How many more rounds of ``plan`` fit into the budget.

        Example:
            >>> accountant = PrivacyAccountant(1e-5, target_epsilon=8.0)
            >>> plan = PrivacyEvent.poisson(
            ...     unit="record", noise_multiplier=1.0, sample_rate=0.01, count=100)
            >>> accountant.remaining_rounds(plan)
            136
        """
        events = [event for _, event in charges_of(plan, client)]
        if all(self._budget[event.unit] is None for event in events):
            raise ValueError("remaining_rounds needs a budget: give the accountant target_epsilon=")
        limit = _validate.MAX_COUNT // (4 * max(event.count for event in events))
        return most_repeats(
            lambda n: not self.would_exceed(plan, client, rounds=n), limit=min(limit, 10**12)
        )

    def get_summary(self, *, compare: bool = False) -> dict[str, Any]:
        """The two guarantees and the conservative sum, ready for a JSON report.

        Args:
            compare: Also compute each ε by the other method (PLD may take a second).
        """
        other: Method = "rdp" if self._method != "rdp" else "pld"
        guarantees = {}
        for unit in UNITS:
            epsilon = self.get_epsilon(unit=unit)  # type: ignore[arg-type]
            budget = self._budget[unit]
            entry: dict[str, Any] = {
                "unit": unit,
                "adjacency": self._adjacency.get(unit),
                "epsilon": epsilon,
                "delta": self._delta[unit],
                "method": self._method,
                "target_epsilon": budget,
                "remaining_epsilon": None if budget is None else max(0.0, budget - epsilon),
                "budget_exceeded": budget is not None and epsilon > budget,
            }
            if compare:
                entry[f"epsilon_{other}"] = self.get_epsilon(unit=unit, method=other)  # type: ignore[arg-type]
            guarantees[unit] = entry
        clients = self.per_client()
        return {
            **guarantees,
            "worst_client": max(clients, key=lambda c: clients[c]["epsilon"]) if clients else None,
            "num_clients": len(self._named_clients()),
            "conservative_sum": {
                "epsilon": self.get_total_epsilon(),
                "delta": self._delta["record"] + self._delta["client"],
            },
            "is_private": self.is_private,
            "note": None if self.is_private else "not private: noise seed is public",
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything that ε depends on, as JSON; equal for equal histories in any order."""
        return {
            "version": 1,
            "method": self._method,
            "target_delta": self._delta["record"],
            "target_epsilon": self._budget["record"],
            "user_target_delta": self._delta["client"],
            "user_target_epsilon": self._budget["client"],
            "events": event_rows(self._totals),
            "user_rounds": [
                {"round": r, "event": event.to_json(), "calls": dict(sorted(calls.items()))}
                for r, by_event in sorted(self._user_calls.items())
                for event, calls in sorted(
                    by_event.items(), key=lambda item: (*item[0].key, item[0].count)
                )
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace this accountant's state by a saved one, or raise and leave it untouched.

        Raises:
            ValueError: If anything is missing, unknown, out of range or of another version.
        """
        parsed = parse_state(state)
        fresh = PrivacyAccountant(
            parsed.target_delta,
            target_epsilon=parsed.target_epsilon,
            user_target_delta=parsed.user_target_delta,
            user_target_epsilon=parsed.user_target_epsilon,
            method=parsed.method,
        )
        fresh._budget["client"] = parsed.user_target_epsilon
        try:
            for client, event in parsed.events:
                fresh._charge(event, client_name(client))
        except (TypeError, ValueError) as error:
            raise ValueError(f"not an accountant state: {error}") from error
        fresh._user_calls = parsed.user_calls
        self.__dict__.update(fresh.__dict__)
