"""Who is promised what, in words that a page and a privacy card share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dp_fedmed.reporting.run_facts import RunFacts, is_bound, number
from dp_fedmed.reporting.words import (
    OBSERVERS,
    epsilon_of,
    figure,
    metric_name,
    odds_of,
    plain,
    rounded_up,
    small,
)

UNITS = {"record": "one record", "client": "one whole client"}
NO_PROMISE = "no promise"
NEIGHBOURS = {
    "add_remove": "one is there or not",
    "zero_out": "one contributes nothing",
    "replace_one": "one is another one",
}


@dataclass(frozen=True)
class Promise:
    """What one observer is promised about one unit; `bound` and `odds` are empty where nothing."""

    bound: str = ""
    odds: str = ""
    reason: str = NO_PROMISE

    @property
    def sentence(self) -> str:
        """One cell of a table."""
        if not self.bound:
            return self.reason
        return f"{self.bound}: from 50:50 odds, right at most {self.odds} of the time"


def observer_rows(facts: RunFacts) -> list[dict[str, Any]]:
    """One row per observer: its name, and a `Promise` for each unit that has a guarantee."""
    rows = []
    held = facts.report.get("observers")
    for row in held if isinstance(held, list) else []:
        if not isinstance(row, dict):
            continue
        name = str(row.get("observer"))
        promises = {unit: _promise(facts, name, row.get(unit)) for unit in facts.guarantees}
        rows.append({"observer": OBSERVERS.get(name, name), "promises": promises})
    return rows


def _promise(facts: RunFacts, observer: str, bound: Any) -> Promise:
    if not facts.is_private:
        return Promise(reason="no promise: the noise seed is public")
    if is_bound(bound):
        return Promise(epsilon_of(bound), odds_of(bound))
    if observer == "server":
        return Promise(reason="no promise: the server sees it before noise is added")
    return Promise()


def result_sentence(facts: RunFacts) -> str:
    """The run in one sentence: what was learnt, and what is promised to whoever gets the model."""
    clients = facts.setting("federation.num_clients", len(facts.clients) or "?")
    done, planned = facts.rounds_done, facts.setting("federation.num_rounds", "?")
    rounds = f"{done} rounds" if done == planned else f"{done} of {planned} rounds"
    who = "1 client" if clients == 1 else f"{clients} clients"
    value = facts.test.get(facts.metric)
    learnt = (
        f"{metric_name(facts.metric)} {figure(value)} on the server's test set"
        if value is not None
        else "no test result yet"
    )
    return f"{who}, {rounds}: {learnt}; {promise_sentence(facts)}."


def promise_sentence(facts: RunFacts) -> str:
    """What is guaranteed against whoever receives the model."""
    if facts.style == "none":
        return "no differential privacy"
    if not facts.guarantees:
        return "what is guaranteed cannot be read"
    if not facts.is_private:
        return "not private, since the noise seed is public"
    parts = [f"{epsilon_of(g)} for {UNITS[unit]}" for unit, g in facts.guarantees.items()]
    return "whoever receives the model is held to " + " and to ".join(parts)


def mechanism_sentence(facts: RunFacts, unit: str) -> str:
    """What is clipped, what is added, and by whom."""
    held = facts.guarantees[unit]
    norm = plain(held.get("max_grad_norm"))
    if unit == "client":
        how = "adaptively" if held.get("clipping") == "adaptive" else f"to norm {norm}"
        if facts.guarantees.get("record", {}).get("noise_added_by") == "the server":
            return (
                f"Each client's sum over its records is clipped {how}, and the noise that the "
                "server adds to the sum of all protects records and clients."
            )
        return (
            f"Each client's whole update is clipped {how}, and the server adds Gaussian noise to "
            "the sum before it uses it."
        )
    by = str(held.get("noise_added_by", "each client"))
    if facts.setting("task.kind") == "anomaly":
        return f"What each image contributes is bounded, and Gaussian noise is added by {by}."
    return (
        f"DP-SGD: each record's gradient is clipped to norm {norm}, and Gaussian noise is added by "
        f"{by} to the sum of every batch."
    )


def parameter_rows(facts: RunFacts, unit: str) -> list[tuple[str, str]]:
    """Every number that a guarantee rests on."""
    held = facts.guarantees[unit]
    clients = held.get("clients")
    own = [c for c in clients.values() if isinstance(c, dict)] if isinstance(clients, dict) else []
    rows = [
        ("unit", str(held.get("unit_in_words", UNITS[unit]))),
        ("ε", rounded_up(held["epsilon"])),
        *_one_round(held),
        ("δ", small(held["delta"])),
        ("target ε", plain(held.get("target_epsilon"))),
        ("accountant", _accountant(held, own)),
    ]
    other = held.get("epsilon_by_other_accountant")
    if isinstance(other, dict):
        rows += [
            (f"ε by {name}", rounded_up(value))
            for name, value in sorted(other.items())
            if number(value) is not None
        ]
    rows += [
        *_spending(held, own),
        ("clipping norm", plain(held.get("max_grad_norm"))),
        ("neighbouring data", NEIGHBOURS.get(str(held.get("adjacency")), "?")),
    ]
    if own:
        shown = str(held.get("rounds_shown", "realised"))
        left = sum(bool(c.get("left")) for c in own)
        who = f"{len(own)}" + (f", of which {left} took part earlier and left" if left else "")
        rows.append(("clients", f"{who}; the guarantee is the worst one's (rounds: {shown})"))
    if held.get("assumption"):
        rows.append(("assumption", str(held["assumption"])))
    return rows


def _spending(held: dict[str, Any], clients: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Noise, sampling and steps; after several phases those of each, as they were accounted."""
    sampling = str(held.get("sampling", "?"))
    if max((len(_history(c)) for c in clients or [held]), default=0) <= 1:
        return [
            ("noise multiplier σ", _span(held, clients, "noise_multiplier")),
            ("sampling", f"{sampling}, q = {_span(held, clients, 'sample_rate')}"),
            ("steps", _span(held, clients, "steps")),
        ]
    worst = held["clients"].get(held.get("worst_client")) if clients else held
    whose = f", of {held.get('worst_client')}, whose ε is the largest" if clients else ""
    spent = [
        f"{steps} step{'' if steps == 1 else 's'} with σ = {sigma:.4g} and q = {q:.4g}"
        for sigma, q, steps in _history(worst or {})
    ]
    return [("sampling", sampling), (f"spent{whose}", "; ".join(spent) or "?")]


def _history(held: dict[str, Any]) -> list[tuple[float, float, int]]:
    """The (σ, q, steps) rows of a history that can be read."""
    listed = held.get("history")
    found = []
    for row in listed if isinstance(listed, list) else []:
        values = [number(value) for value in row] if isinstance(row, list) else []
        if len(values) == 3 and None not in values:
            sigma, q, steps = (value or 0.0 for value in values)
            found.append((sigma, q, int(steps)))
    return found


def _one_round(held: dict[str, Any]) -> list[tuple[str, str]]:
    value = number(held.get("epsilon_of_one_round"))
    return [] if value is None else [("ε of one round alone", rounded_up(value))]


def _accountant(held: dict[str, Any], clients: list[dict[str, Any]]) -> str:
    """The accountant by name, and what `tight` came to."""
    name = str(held.get("accountant", "?"))
    if name != "tight":
        return name
    rates = [number(c.get("sample_rate")) for c in clients or [held]]
    full = all(rate == 1.0 for rate in rates) or held.get("sampling") == "without_replacement"
    return "tight (closed form of the Gaussian)" if full else "tight (privacy loss distribution)"


def group_promise(facts: RunFacts) -> tuple[str, str] | None:
    """What the record-level guarantee is worth for one patient, if patients are known."""
    group = facts.guarantees.get("record", {}).get("group")
    if not isinstance(group, dict) or not facts.is_private:
        return None
    unit = str(group.get("unit_in_words", "one patient"))
    if not is_bound(group):
        return unit, NO_PROMISE
    return unit, Promise(epsilon_of(group), odds_of(group)).sentence


def not_covered(facts: RunFacts) -> list[str]:
    """What the guarantee does not say anything about."""
    if not facts.guarantees:
        return ["everything that the run has released: there is no guarantee"]
    held = facts.report.get("outside_the_guarantee")
    listed = [str(item) for item in held] if isinstance(held, list) else []
    if facts.attack is not None or facts.audit is not None:
        listed.append("attack and audit results, which look at training records themselves")
    return listed


def _span(held: dict[str, Any], clients: list[dict[str, Any]], key: str) -> str:
    """A number, or the smallest and largest of the clients'."""
    values = [v for c in clients if (v := number(c.get(key))) is not None]
    if not values:
        return plain(held.get(key))
    low, high = min(values), max(values)
    shown = [f"{v:.0f}" if key == "steps" else f"{v:.4g}" for v in (low, high)]
    return shown[0] if shown[0] == shown[1] else f"{shown[0]} to {shown[1]}"
