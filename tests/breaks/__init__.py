"""The privacy code broken on purpose, one way at a time, and the test that must then fail.

    python -m tests.breaks               try all of them, on a copy of the checkout
    python -m tests.breaks ledger clip   those whose name has one of these words

Every module of this folder with a list `BREAKS` adds to the one here. `tests/test_breaks.py` sees
to it that the list fits the code.
"""

from __future__ import annotations

import importlib
import pkgutil

from tests.breaks.base import Break

BREAKS: list[Break] = [
    broken
    for module in pkgutil.iter_modules(__path__)
    if not module.name.startswith("__")
    for broken in getattr(importlib.import_module(f"{__name__}.{module.name}"), "BREAKS", [])
]
