"""Plain lines stay as they are."""

from __future__ import annotations

import io

from rich.console import Console

from dp_fedmed.reporting.words import say


def printed(text: str, *, width: int = 20, wrap: bool = False, style: str | None = None) -> str:
    held = io.StringIO()
    say(Console(file=held, width=width, force_terminal=True), text, style, wrap=wrap)
    return held.getvalue()


def test_what_looks_like_markup_or_a_number_is_printed_as_it_is() -> None:
    text = "[red]data.path=/x[/] ε 1.5 None"
    assert printed(text, width=80) == f"{text}\n"


def test_a_line_is_broken_only_on_request() -> None:
    text = "one two three four five six seven"
    assert printed(text) == f"{text}\n"
    broken = printed(text, wrap=True).splitlines()
    assert len(broken) > 1
    assert max(map(len, broken)) <= 20


def test_a_style_is_of_the_whole_line() -> None:
    assert "\x1b[" not in printed("a word")
    said = printed("a word 7", style="bold", width=80)
    assert said.count("\x1b[1m") == 1
    assert "a word 7" in said
