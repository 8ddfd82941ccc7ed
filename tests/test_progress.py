"""A bar for work that takes long: on the terminal of the process that shows a run, nowhere else."""

from __future__ import annotations

import io
import multiprocessing

import numpy as np
from rich.console import Console

from dp_fedmed.config import compose
from dp_fedmed.learning.anomaly.bank import greedy_k_center
from dp_fedmed.progress import listened_by, telling
from dp_fedmed.reporting.display import ConsoleDisplay
from dp_fedmed.reporting.live import LivePanel

ROWS = np.arange(400, dtype=np.float32).reshape(200, 2)


def shown(*, is_terminal: bool, patience: float) -> str:
    text = io.StringIO()
    console = Console(file=text, force_terminal=is_terminal, width=100)
    with ConsoleDisplay(compose(["task=textures", "privacy=none"]), console) as display:
        greedy_k_center(ROWS, 100, progress=telling("choosing patches", patience=patience))
        telling("merging banks", patience=patience)(1, 2)
        if display._live is not None:
            display._live.refresh()
    return text.getvalue()


def test_long_work_has_a_bar_of_its_own_that_goes_away() -> None:
    text = shown(is_terminal=True, patience=0.0)
    assert "merging banks" in text
    assert "1 of 2" in text
    panel = LivePanel(compose(["task=textures", "privacy=none"]))
    panel.within("choosing patches", 1, 2)
    assert panel.work == {"choosing patches": (1, 2)}
    panel.within("choosing patches", 2, 2)
    assert not panel.work


def test_short_work_and_files_see_nothing() -> None:
    assert "merging" not in shown(is_terminal=True, patience=60.0)
    assert "merging" not in shown(is_terminal=False, patience=0.0)


def test_a_worker_process_is_quiet() -> None:
    heard = multiprocessing.get_context("fork").SimpleQueue()
    with listened_by(lambda *news: heard.put(news)):
        tell = telling("choosing patches", patience=0.0)
        worker = multiprocessing.get_context("fork").Process(target=tell, args=(1, 2))
        worker.start()
        worker.join()
        assert worker.exitcode == 0
        assert heard.empty()
        tell(2, 2)
        assert heard.get() == ("choosing patches", 2, 2)
    telling("nobody listens", patience=0.0)(1, 2)
    assert heard.empty()
