"""Who was asked in how many rounds and who contributed to how many, so that lost sites are seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

SCHEMA = 1
PARTICIPATION_FILE = "participation.json"
MOST_NAMED = 8


@dataclass(frozen=True)
class Participation:
    """Rounds in which each client was asked, and to which it contributed.

    Secret where cohorts are: then only `private/` has it, and no exit code or line depends on it.
    """

    asked: Mapping[str, int]
    contributed: Mapping[str, int]

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> Participation:
        """The sum over the rounds of `private/rounds.jsonl`.

        >>> seen = Participation.of([{"names": ["north", "south"], "failed": ["south"]}])
        >>> seen.less
        {'south': (0, 1)}
        """
        asked: Counter[str] = Counter()
        failed: Counter[str] = Counter()
        for row in rows:
            asked.update(row.get("names", []))
            failed.update(row.get("failed", []))
        return cls(asked, {name: count - failed[name] for name, count in asked.items()})

    @property
    def less(self) -> dict[str, tuple[int, int]]:
        """(contributed, asked) of clients that contributed to fewer rounds than they should."""
        pairs = {name: (self.contributed[name], self.asked[name]) for name in sorted(self.asked)}
        return {name: pair for name, pair in pairs.items() if pair[0] < pair[1]}

    @property
    def lost(self) -> list[str]:
        """Clients that were asked and contributed to no round."""
        return [name for name, (contributed, _) in self.less.items() if contributed == 0]

    def in_words(self) -> str | None:
        """One sentence on who is missing; None if nobody is.

        >>> Participation({"north": 3, "south": 3}, {"north": 3, "south": 1}).in_words()
        'contributed less than asked: south to 1 of 3 rounds'
        """
        if not self.less:
            return None
        shown = [f"{name} to {n} of {of} rounds" for name, (n, of) in self.less.items()]
        more = len(shown) - MOST_NAMED
        rest = [f"and {more} more"] if more > 0 else []
        return f"contributed less than asked: {', '.join([*shown[:MOST_NAMED], *rest])}"

    def to_json(self) -> dict[str, Any]:
        """Every client's numbers."""
        clients = {
            name: {"asked": self.asked[name], "contributed": self.contributed[name]}
            for name in sorted(self.asked)
        }
        return {"schema": SCHEMA, "clients": clients}
