"""Pages that are made from the code when the site is built."""

from __future__ import annotations

import dataclasses
import enum
import types
from typing import Any, get_args, get_type_hints

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from dp_fedmed.config.schema import Config
from dp_fedmed.config.tree import settings
from tests.breaks import BREAKS

INTRODUCTION = """\
# Settings

Every key of the typed tree, with its type and default before a task, a recipe or an override
changes it. `dp-fedmed run --cfg job` prints the values that a run would have. A wrong key is
answered with the nearest right one, a wrong value with its range. All of it is declared in
`dp_fedmed/config/schema.py`.
"""

BROKEN = """\
# Broken on purpose

The privacy code is broken in each of these ways, one at a time, on a copy of the checkout, and the
named test must go red.

```bash
python -m tests.breaks                # all of them, about a quarter of an hour
python -m tests.breaks ledger clip    # those whose name has one of these words
```
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page of settings, and the list of deliberate breaks."""
    files.append(File.generated(config, "schemas/config.md", content=settings_page()))
    files.append(File.generated(config, "breaks.md", content=breaks_page()))
    return files


def breaks_page() -> str:
    """What was broken on purpose, and which test went red."""
    rows = [f"| {b.name} | `{b.file}` | `{b.caught_by.removeprefix('tests/')}` |" for b in BREAKS]
    head = ["| broken | in `dp_fedmed/` | caught by, in `tests/` |", "|---|---|---|"]
    return "\n".join([BROKEN, *head, *rows])


def settings_page() -> str:
    """The tree as one table per section, from its dataclasses and their metadata."""
    return "\n".join([INTRODUCTION, *_sections(Config, "")])


def _sections(node: type, prefix: str) -> list[str]:
    hints = get_type_hints(node)
    title = f"`{prefix.rstrip('.')}`" if prefix else "The run"
    rows, inner = [], []
    for item in dataclasses.fields(node):
        kind = hints[item.name]
        if dataclasses.is_dataclass(kind):
            inner += _sections(kind, f"{prefix}{item.name}.")
            continue
        value = item.default if item.default is not dataclasses.MISSING else item.default_factory()
        known = settings()[f"{prefix}{item.name}"]
        span = "–" if known.within is None else "{:g} to {:g}".format(*known.within)
        columns = (_kind(kind), _value(value), span, known.meaning, known.resume.value)
        rows.append(f"| `{prefix}{item.name}` | {' | '.join(columns)} |")
    head = [
        f"## {title}",
        "",
        _first_line(node),
        "",
        "| key | type | default | range | meaning | when resumed |",
        "|---|---|---|---|---|---|",
    ]
    return [*head, *rows, "", *inner] if rows else inner


def _first_line(node: type) -> str:
    return (node.__doc__ or "").splitlines()[0]


def _kind(kind: Any) -> str:
    if isinstance(kind, types.UnionType):
        return " or ".join("null" if part is type(None) else _kind(part) for part in get_args(kind))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return ", ".join(f"`{choice.value}`" for choice in kind)
    return f"{getattr(kind, '__name__', kind)}" if not get_args(kind) else f"{kind}"


def _value(value: Any) -> str:
    if value is None:
        return "null"
    return f"`{value}`" if value not in ("", {}) else "–"
