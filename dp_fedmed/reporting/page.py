"""Pages: one HTML file that holds everything it shows, and asks the network for nothing.

Every value is escaped; the policy in the page's head lets no script run but our own.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dp_fedmed.reporting.drawing import Drawn

TEMPLATES = Path(__file__).parent / "templates"


def render_page(name: str, values: Mapping[str, Any]) -> str:
    """A page from a template and its values."""
    from markupsafe import Markup

    from dp_fedmed.version import __version__

    script = (TEMPLATES / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = template(name, autoescape=True).render(
        **values,
        version=__version__,
        style=Markup((TEMPLATES / "style.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hash=f"sha256-{digest}",
    )
    return str(page)


def inlined(figures: Iterable[Drawn]) -> list[dict[str, Any]]:
    """Figures as a template shows them; the SVG is ours, with its texts escaped by matplotlib."""
    from markupsafe import Markup

    return [
        {
            "name": drawn.name,
            "title": drawn.title,
            "caption": drawn.caption,
            "svg": Markup(drawn.inline()),
        }
        for drawn in figures
    ]


def data_address(png: bytes) -> str:
    """A picture as a data URL."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def tile(value: str, label: str, share: float | None = None) -> dict[str, Any]:
    """A number that stands out; `share` draws a bar below it."""
    filled = None if share is None else round(100 * min(1.0, max(0.0, share)), 1)
    return {"value": value, "label": label, "share": filled}


def banner(tone: str, text: str, points: Iterable[str] = ()) -> dict[str, Any]:
    """A warning at the top of a page, with points below it."""
    return {"tone": tone, "text": text, "points": list(points)}


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
