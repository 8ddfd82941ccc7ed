"""Plain lines on a terminal."""

from __future__ import annotations

from rich.console import Console


def say(console: Console, text: str, style: str | None = None, *, wrap: bool = False) -> None:
    """Print a line as it is: neither coloured by what it holds nor read as markup."""
    console.print(text, style=style, soft_wrap=not wrap, highlight=False, markup=False)
