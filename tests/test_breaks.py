"""The list of deliberate breaks fits the code: `python -m tests.breaks` tries them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.breaks import BREAKS
from tests.breaks.base import Break

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("broken", BREAKS, ids=lambda b: b.name)
def test_what_is_broken_exists_and_so_does_the_test_that_catches_it(broken: Break) -> None:
    code = (ROOT / "dp_fedmed" / broken.file).read_text(encoding="utf-8")
    assert code.count(broken.old) == 1, broken.file
    file, _, test = broken.caught_by.partition("::")
    assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8") or not test
