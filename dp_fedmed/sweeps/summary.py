"""What a sweep's rows say together: means over seeds, the best, the costs, and what was spent."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
SEED, TOPOLOGY_KEYS, STYLE_KEYS = "seed", ("federation.topology", "federation"), ("privacy",)


@dataclass(frozen=True)
class Spread:
    """A mean over seeds, and the standard deviation of one seed's value (None for a single one)."""

    mean: float
    sd: float | None
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value.

        >>> str(Spread.of([0.8, 0.9]))
        '0.8500 ± 0.0707'
        """
        sd = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), sd, len(values))

    def __str__(self) -> str:
        """Mean ± sd."""
        return f"{self.mean:.4f}" + ("" if self.sd is None else f" ± {self.sd:.4f}")


@dataclass(frozen=True)
class Setting:
    """Runs that differ in their seeds only.

    Attributes:
        overrides: the other swept keys with their values.
        metric: its name.
        test: of the metric on the test records.
        epsilon: the largest of the runs, by level.
    """

    overrides: dict[str, Any]
    metric: str
    test: Spread
    epsilon: dict[str, float]


def test_value(row: Row) -> float | None:
    """A run's metric on the test records; None for one that has none."""
    value = row["test"].get(row["metric"])
    return None if value is None else float(value)


def by_setting(rows: Iterable[Row]) -> list[Setting]:
    """Means and standard deviations over seeds, in the order of the jobs."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if test_value(row) is not None:
            groups.setdefault(json.dumps([_without_seed(row), row["metric"]]), []).append(row)
    return [
        Setting(
            _without_seed(alike[0]),
            alike[0]["metric"],
            Spread.of([value for row in alike if (value := test_value(row)) is not None]),
            {
                level: max(row["epsilon"][level] for row in alike if level in row["epsilon"])
                for level in dict.fromkeys(level for row in alike for level in row["epsilon"])
            },
        )
        for alike in groups.values()
    ]


def _without_seed(row: Row) -> dict[str, Any]:
    return {key: value for key, value in row["overrides"].items() if key != SEED}


def best(rows: Iterable[Row]) -> Row | None:
    """The run with the best metric on its validation records, test records where there is none."""
    judged = [(value, row) for row in rows if (value := _judged(row)) is not None]
    return max(judged, key=lambda pair: pair[0])[1] if judged else None


def _judged(row: Row) -> float | None:
    value = row["val"].get(row["metric"])
    if value is None:
        return None
    return -float(value) if row["metric"] == "loss" else float(value)


@dataclass(frozen=True)
class Cost:
    """What one way to train loses against another, by seed, in the metric.

    Attributes:
        of: the one, and what it is compared with.
        at: the style or the topology of both.
        lost: the difference; negative where it gains.
    """

    of: str
    at: str
    lost: Spread


def costs(rows: Sequence[Row]) -> list[Cost]:
    """What federation and privacy each cost, where a sweep has both sides of a comparison.

    Empty if other keys than the topology, the style and the seed were swept: a difference would
    be theirs too.
    """
    swept = {key for row in rows for key in row["overrides"]}
    if not swept <= {SEED, *TOPOLOGY_KEYS, *STYLE_KEYS} or len({r["metric"] for r in rows}) != 1:
        return []
    held = {
        (row["topology"], row["style"], row["seed"]): value
        for row in rows
        if (value := test_value(row)) is not None
    }
    styles = list(dict.fromkeys(style for _, style, _ in held))
    topologies = list(dict.fromkeys(topology for topology, _, _ in held))
    sides = [
        *(
            (f"{name} vs {other}", f"privacy {style}", (better, style), (worse, style))
            for name, other, better, worse in (
                ("federation", "pooled records", "centralized", "federated"),
                ("each client alone", "federation", "federated", "local_only"),
            )
            for style in styles
        ),
        *(
            (f"privacy {style} vs none", topology, (topology, "none"), (topology, style))
            for style in styles
            if style != "none"
            for topology in topologies
        ),
    ]
    sign = -1.0 if rows[0]["metric"] == "loss" else 1.0
    found = []
    for of, at, better, worse in sides:
        seeds = [seed for *side, seed in held if tuple(side) == better and (*worse, seed) in held]
        lost = [sign * (held[*better, seed] - held[*worse, seed]) for seed in seeds]
        if lost:
            found.append(Cost(of, at, Spread.of(lost)))
    return found


def spent_together(rows: Iterable[Row]) -> dict[str, tuple[float, float, int]]:
    """(Σε, Σδ, runs) by level: what publishing all of these runs spends, if the data are the same.

    >>> row = {"epsilon": {"sample": 1.0}, "delta": {"sample": 1e-5}}
    >>> spent_together([row, row])["sample"][0]
    2.0
    """
    private = [row for row in rows if row["epsilon"]]
    return {
        level: (
            math.fsum(row["epsilon"][level] for row in private if level in row["epsilon"]),
            math.fsum(row["delta"][level] for row in private if level in row["delta"]),
            sum(level in row["epsilon"] for row in private),
        )
        for level in dict.fromkeys(level for row in private for level in row["epsilon"])
    }
