"""`privacy_card.md`: the record of a run that a data-protection officer keeps, from facts only."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dp_fedmed.privacy.ledger import Head

if TYPE_CHECKING:
    from dp_fedmed.reporting.run_facts import RunFacts

CARD_FILE = "privacy_card.md"
TEMPLATES = Path(__file__).parent / "templates"


def write_card(run_dir: Path, head: Head | None) -> None:
    """Write the card of a run that has ended, or stopped.

    Args:
        run_dir: its directory.
        head: of its ledger.
    """
    from dp_fedmed.reporting.run_facts import LedgerFacts, read_run
    from dp_fedmed.run.durable import write_file

    facts = read_run(run_dir, ledger=False)
    facts.ledger = LedgerFacts(head)
    write_file(run_dir / CARD_FILE, card_of(facts).encode(), durable=False)


def card_of(facts: RunFacts) -> str:
    """The card of a run's facts."""
    from dp_fedmed.reporting import promises
    from dp_fedmed.reporting.words import metric_name

    card = markdown_template("card.md").render(
        facts=facts,
        promises=promises,
        metric=metric_name(facts.metric),
        observers=promises.observer_rows(facts),
        stretches=facts.stretches,
        head=facts.ledger.head,
    )
    return str(card)


def markdown_template(name: str) -> Any:
    """A template whose values cannot break out of a Markdown cell."""
    # Markdown is not HTML: every value goes through `markdown_safe` instead.
    settings = {"keep_trailing_newline": True, "finalize": markdown_safe}
    return template(name, autoescape=False, **settings)


def template(name: str, **settings: Any) -> Any:
    """A template by its file name; a value that is missing is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        **settings,
    )
    return environment.get_template(name)


def markdown_safe(value: Any) -> Any:
    r"""A value as Markdown shows it: one line, no markup of its own.

    >>> print(markdown_safe("a | <b>\n`c`"))
    a \| &lt;b&gt; \`c\`
    """
    if not isinstance(value, str):
        return value
    line = " ".join(value.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`|*\[\]])", r"\\\1", line)
