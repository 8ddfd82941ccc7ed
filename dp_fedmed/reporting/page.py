"""Pages: one HTML file that holds everything it shows, and asks the network for nothing.

Every value is escaped; the policy in the page's head lets no script run but our own.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from dp_fedmed.reporting.drawing import Drawn
from dp_fedmed.reporting.privacy_card import TEMPLATES, template


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
