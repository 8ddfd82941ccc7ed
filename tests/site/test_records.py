"""Records that a network of the server's cannot be trained on are refused before round 1."""

from __future__ import annotations

import numpy as np
import pytest

from dp_fedmed.config import TaskKind
from dp_fedmed.data import Records
from dp_fedmed.errors import ConfigError
from dp_fedmed.site.records import refuse_unfit


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (np.zeros((3, 5), np.float32), [0, 1, 1], r"shape \[4\] .* \[5\]"),
        (np.zeros((3, 4), np.float32), [0, 1, 2], "class ids go from 0 to 2"),
        (np.zeros((3, 4), np.float32), [0, 1, -1], "class ids go from -1 to 1"),
        (np.full((3, 4), np.nan, np.float32), [0, 1, 1], "not finite"),
    ],
)
def test_all_records_are_looked_at(x: np.ndarray, y: list[int], said: str) -> None:
    records = Records(x, np.array(y))
    with pytest.raises(ConfigError, match=said):
        refuse_unfit(records, (4,), 2, TaskKind.classification)
