"""Every file of a run directory damaged in many places."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from dp_fedmed.run.verify import LedgerView
from tests.runs.resume.runs import (
    REFUSALS,
    files_of,
    model_bytes,
    resume,
)


@pytest.mark.parametrize(
    ("style", "spots"),
    [
        pytest.param("sample", 3, marks=pytest.mark.slow),
        pytest.param("hybrid", 3, marks=pytest.mark.slow),
    ],
)
def test_damage_anywhere_is_refused_or_changes_nothing(
    style: str,
    spots: int,
    copy: Callable[[str], Path],
    references: Callable[[str], tuple[bytes, dict[str, float]]],
) -> None:
    """Delete, cut and flip every file of a run directory, at sampled places."""
    rng = random.Random(11)
    model, epsilons = references(style)
    names = files_of(copy(style))
    refused = 0
    for name in names:
        size = (copy(style) / name).stat().st_size
        places = {rng.randrange(size) for _ in range(spots)} if size else set()
        for how, place in [
            ("delete", 0),
            *(("cut", p) for p in places),
            *(("flip", p) for p in places),
        ]:
            path = copy(style)
            file = path / name
            if how == "delete":
                file.unlink()
            elif how == "cut":
                os.truncate(file, place)
            else:
                content = bytearray(file.read_bytes())
                content[place] ^= 1 << rng.randrange(8)
                file.write_bytes(content)
            try:
                result = resume(path)
            except REFUSALS:
                refused += 1
                continue
            what = f"{how} {name} at {place}"
            assert result.stopped == "completed", what
            assert model_bytes(path) == model, what
            assert LedgerView(path).epsilons() == epsilons, what
    assert refused > len(names)
