"""A plan as a person reads it: tables, gauges, warnings and suggestions; and as a program does."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dp_fedmed.planning.forecast import MOST_ROWS, Forecast, Group, Spending
from dp_fedmed.planning.noise_places import PlacedNoise, noise_places
from dp_fedmed.planning.outlook import Allowance, Outlook, Signal, allowance, outlook
from dp_fedmed.planning.suggestions import Suggestion
from dp_fedmed.privacy.accounting.events import Level
from dp_fedmed.reporting.plan_words import suggestion_json, suggestion_text, unprotected, warnings
from dp_fedmed.reporting.shared_data import SharedSpending
from dp_fedmed.reporting.words import ONE_UNIT, describe_sites, odds, rounded_up, say

SCHEMA = 1
BARS = "▁▂▃▄▅▆▇█"
TABLE: dict[str, Any] = {
    "title_style": "bold",
    "title_justify": "left",
    "box": box.SIMPLE_HEAD,
    "pad_edge": False,
    "padding": (0, 1, 0, 0),
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that `dp-fedmed plan` has to say.

    Attributes:
        forecast: what would be spent.
        fast: whether only what is quick was computed.
        weights: numbers in a client's update; None if they were not counted.
        advice: of an anomaly task; or why a run would refuse the network.
        suggestions: what to change.
        shared: what all runs on the same data have spent, if they share a ledger.
    """

    forecast: Forecast
    fast: bool
    weights: int | None
    advice: str | None
    suggestions: tuple[Suggestion, ...]
    shared: SharedSpending | None

    @functools.cached_property
    def outlook(self) -> Outlook:
        """Signal beside noise, by level, and cautions."""
        return outlook(self.forecast, self.weights)

    @functools.cached_property
    def allowances(self) -> dict[str, Allowance]:
        """What each level's budget allows."""
        made = self.forecast
        return {level: allowance(spent, made.method) for level, spent in made.levels.items()}

    @functools.cached_property
    def places(self) -> list[PlacedNoise]:
        """Who may draw the noise of records, side by side."""
        return noise_places(self.forecast)

    @functools.cached_property
    def warnings(self) -> list[str]:
        """What is wrong, or may surprise."""
        said = warnings(self.outlook)
        return said if self.advice is None else [*said, self.advice]

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        made = self.forecast
        config = made.config
        levels = {level: self._level(level, spent) for level, spent in made.levels.items()}
        if Level.sample in levels:
            levels[Level.sample]["clients"] = [_client(made, group) for group in made.groups]
            levels[Level.sample]["binding"] = list(made.binding.names if made.binding else ())
        return {
            "schema": SCHEMA,
            "task": config.task.name,
            "style": str(config.privacy.style),
            "accountant": made.method,
            "num_clients": config.federation.num_clients,
            "records": sum(made.records.values()),
            "rounds_asked": config.federation.num_rounds,
            "rounds": made.rounds,
            "expected_cohort": made.cohort,
            "weights": self.weights,
            "fast": self.fast,
            "levels": levels,
            "noise_places": [asdict(place) for place in self.places],
            "warnings": self.warnings,
            "suggestions": [suggestion_json(each) for each in self.suggestions],
            "data_ledger": None if self.shared is None else asdict(self.shared),
            "notes": unprotected(config),
        }

    def _level(self, level: str, spent: Spending) -> dict[str, Any]:
        made, allows = self.forecast, self.allowances[level]
        found = self.outlook.signals.get(level)
        return {
            "unit": spent.event.unit,
            "adjacency": spent.event.adjacency,
            "sampling": spent.event.sampling,
            "delta": spent.delta,
            "target_epsilon": spent.target,
            **_spent(spent),
            "epsilon_of_one_round": spent.one_round,
            "epsilon_by_round": [list(point) for point in made.curves[level]],
            "epsilon_by_round_accountant": made.curves_by,
            "rounds_by_noise_multiplier": [list(pair) for pair in allows.rounds.items()],
            "noise_multiplier_by_target": [list(pair) for pair in allows.sigma.items()],
            "budget_accountant": allows.accountant,
            "signal_to_noise": None if found is None else asdict(found),
        }


def _spent(spent: Spending) -> dict[str, Any]:
    return {
        "noise_multiplier": spent.sigma,
        "noise_multiplier_is_upper_bound": spent.is_upper_bound,
        "sample_rate": spent.sample_rate,
        "steps_per_round": spent.event.count,
        "rounds": spent.rounds,
        "steps": spent.steps,
        "rounds_within_target": spent.rounds_within_target,
        "epsilon": dict(spent.epsilon),
    }


def _client(made: Forecast, group: Group) -> dict[str, Any]:
    return {
        "names": list(group.names),
        "records": group.plan.records,
        **_spent(group.spending),
        "binds": made.binding is not None and group.names == made.binding.names,
    }


def print_plan(made: Plan, console: Console) -> None:
    """The whole plan."""
    said = made.forecast
    config = said.config
    cohort = "" if said.cohort == len(said.records) else f", about {said.cohort:g} per round"
    planned = config.federation.num_rounds
    rounds = f"{planned} round{'' if planned == 1 else 's'}"
    if said.rounds < planned:
        rounds = f"[red]{said.rounds} of {rounds}[/red]"
    title = f"{config.task.name}, privacy {config.privacy.style}"
    console.print(
        f"[bold]{title}[/bold]: {describe_sites(config)}{cohort}, {rounds}, "
        f"{sum(said.records.values())} training records",
        highlight=False,
    )
    for line in unprotected(config):
        say(console, line, wrap=True)
    if said.groups:
        console.print(_client_table(said))
    if said.client_level is not None:
        console.print(_federation_table(said, said.client_level))
    for level, spent in said.levels.items():
        _print_level(console, made, level, spent)
    if made.places:
        console.print(_places_table(made.places))
        for place in made.places:
            if place.refused is not None:
                say(console, place.refused, wrap=True)
    _print_shared(console, made)
    _print_list(console, "Warnings", made.warnings, "yellow")
    by = "" if said.method == "rdp" else " (compared by RDP)"
    several = len(said.levels) > 1
    lines = [
        (f"for {ONE_UNIT[each.level]}, " if several else "") + suggestion_text(each)
        for each in made.suggestions
    ]
    _print_list(console, f"What would lower the noise, at the same ε{by}", lines, "green")


def _places_table(places: Sequence[PlacedNoise]) -> Table:
    """Who may draw the noise, what that leaves in the sum, and who is promised what."""
    table = Table(title="Who draws the noise", **TABLE)
    for head in ("privacy.noise", "σ", "noise in the sum", "trusted", "ε: server", "ε: others"):
        table.add_column(head)
    now = next((place.noise for place in places if place.is_chosen), math.nan)
    for place in places:
        mark = " (this plan)" if place.is_chosen else ""
        if place.refused is not None:
            table.add_row(f"{place.place}{mark}", "refused", "", "", "", "")
            continue
        more = "" if place.is_chosen else f" (×{place.noise / now:.2g})"
        table.add_row(
            f"{place.place}{mark}",
            ", ".join(f"{sigma:.3g}" for sigma in place.sigma.values()),
            f"{place.noise:.3g}·C{more}",
            _trusted(place),
            _promised(place.server, place.others),
            _promised(place.others, place.others),
        )
    return table


def _trusted(place: PlacedNoise) -> str:
    if place.honest is not None:
        return f"{place.honest} clients"
    return "nobody" if place.server.keys() == place.others.keys() else "the server"


def _promised(held: Mapping[str, float], asked: Mapping[str, float]) -> str:
    """ε of each level, in the words of a reader."""
    said = [f"{rounded_up(held[level])}" if level in held else "none" for level in asked]
    if len(said) == 1:
        return said[0].replace("none", "no promise")
    return ", ".join(f"{unit} {one}" for unit, one in zip(("record", "client"), said, strict=True))


def _client_table(made: Forecast) -> Table:
    """A row for each size of client; of many sizes, some."""
    first = made.groups[0].spending
    shown = _chosen(made)
    more = "" if len(shown) == len(made.groups) else f", {len(shown)} of {len(made.groups)} sizes"
    table = Table(
        title=f"One record, at δ={first.delta:.3g}{_against(first)}{more}",
        **TABLE,
    )
    table.add_column("client", no_wrap=True)
    for name in ("records", "q", "T/round", "T", "σ", "ε RDP", _tighter(made)):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for group in shown:
        spent = group.spending
        binds = made.binding is not None and group.names == made.binding.names
        table.add_row(
            _label(group),
            str(group.plan.records),
            f"{group.plan.sample_rate:.3g}",
            str(group.plan.steps),
            str(spent.steps),
            ("≤ " if spent.is_upper_bound else "") + f"{spent.sigma:.4g}",
            *_epsilons(spent),
            "binds" if binds else "",
            style="bold" if binds else "",
        )
    return table


def _chosen(made: Forecast) -> Sequence[Group]:
    """All groups, or the smallest, the largest, the one that binds and some between."""
    groups = made.groups
    if len(groups) <= MOST_ROWS:
        return groups
    places = {round(k * (len(groups) - 1) / 4) for k in range(5)}
    return [
        group
        for place, group in enumerate(groups)
        if place in places or (made.binding is not None and group.names == made.binding.names)
    ]


def _label(group: Group) -> str:
    if len(group.names) == 1:
        return group.names[0]
    return f"{group.names[0]} +{len(group.names) - 1}"


def _tighter(made: Forecast) -> str:
    return "ε PLD" if made.method in ("rdp", "pld") else f"ε {made.method}"


def _epsilons(spent: Spending) -> list[str]:
    shown = [f"{epsilon:.4g}" for epsilon in spent.epsilon.values()]
    return [*shown, *["·"] * (2 - len(shown))]


def _against(spent: Spending) -> str:
    return "" if spent.target is None else f", target ε={spent.target:g}"


def _federation_table(made: Forecast, spent: Spending) -> Table:
    table = Table(
        title=f"One client, at δ={spent.delta:.3g}{_against(spent)}",
        **TABLE,
    )
    for name in ("clients", "per round", "q", "T", "σ", "ε RDP", _tighter(made)):
        table.add_column(name, justify="right")
    table.add_row(
        str(made.config.federation.num_clients),
        f"{made.cohort:g}",
        f"{spent.sample_rate:.3g}",
        str(spent.steps),
        f"{spent.sigma:.4g}",
        *_epsilons(spent),
    )
    return table


def _print_level(console: Console, made: Plan, level: str, spent: Spending) -> None:
    said = made.forecast
    console.print(f"\n[bold]{ONE_UNIT[level]}[/bold]", highlight=False)
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim")
    rows.add_column()
    rows.add_row("ε by round", _curve(said.curves[level], spent.target, said.curves_by))
    rows.add_row("ε of one", f"{spent.one_round:.3g} for a single round alone")
    allows = made.allowances[level]
    by = "" if allows.accountant == said.method else f"  (RDP, so {said.method} allows more)"
    if allows.rounds:
        pairs = (f"{sigma:.3g}: {_rounds(rounds)}" for sigma, rounds in allows.rounds.items())
        rows.add_row("rounds at σ", "   ".join(pairs) + by)
    pairs = (
        f"{target:g}: {'–' if sigma is None else f'{sigma:.3g}'}"
        for target, sigma in allows.sigma.items()
    )
    rows.add_row("σ at ε", "   ".join(pairs) + by)
    found = made.outlook.signals.get(level)
    if found is not None:
        rows.add_row("signal : noise", _signal(found, made.weights))
    epsilon = spent.enforced(said.method)
    rows.add_row(
        "in words",
        f"an even guess about {ONE_UNIT[level]} can become {odds(epsilon, spent.delta)} sure",
    )
    console.print(Padding(rows, (0, 0, 0, 2)), highlight=False)


def _rounds(rounds: int) -> str:
    return f"{rounds:,}" if rounds < 10**6 else "over a million"


def _curve(points: Sequence[tuple[int, float]], target: float | None, method: str) -> Text:
    """A sparkline against the target, and a few of its numbers."""
    if not points:
        return Text("no round fits the target")
    top = max([epsilon for _, epsilon in points] + ([target] if target is not None else []))
    line = "".join(
        BARS[min(len(BARS) - 1, int(epsilon / top * len(BARS)))] if top > 0 else BARS[0]
        for _, epsilon in points
    )
    text = Text(line + "  ", style="cyan")
    marks = sorted({0, len(points) // 4, len(points) // 2, len(points) - 1})
    named = ", ".join(f"{points[i][0]}: {points[i][1]:.3g}" for i in marks)
    by = method if method == "tight" else method.upper()
    return text.append(f"round {named} ({by})", style="default")


def _signal(found: Signal, weights: int | None) -> str:
    parts = [f"in one weight at most {found.coordinate:.3g} per step"]
    if found.norm is not None and found.run is not None:
        parts.append(
            f"in norm over {weights:,} weights {found.norm:.2g} per step, {found.run:.2g} over the "
            "run"
        )
    return "; ".join(parts)


def _print_shared(console: Console, made: Plan) -> None:
    """What all runs on the same data have spent."""
    shared = made.shared
    if shared is None:
        return
    console.print(f"\n[bold]All runs on data.id={shared.data_id}[/bold]", highlight=False)
    if not shared.runs or shared.before is None or shared.after is None:
        say(console, "  nothing is spent yet")
        return
    for unit, after in shared.after.items():
        before = shared.before[unit]
        if after is not None:
            spent = "0" if before is None else f"{before['epsilon']:.3g}"
            text = (
                f"  one {unit}: ε {spent} is spent by {shared.runs} runs, {after['epsilon']:.3g}"
                f" with this one (δ={after['delta']:.3g})"
            )
            say(console, text, wrap=True)


def _print_list(console: Console, title: str, lines: Iterable[str], colour: str) -> None:
    shown = list(lines)
    if not shown:
        return
    console.print(f"\n[bold {colour}]{title}[/]", highlight=False)
    for line in shown:
        row = Table.grid(padding=(0, 1))
        row.add_row(" •", Text(line))
        console.print(row)
