"""A run's log: who hears what, and that nobody's folders are told."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from dp_fedmed.reporting.run_log import log_to, show_on_stdout


def test_lines_go_to_the_file_while_the_block_lasts(tmp_path: Path) -> None:
    ours = logging.getLogger("dp_fedmed.anything")
    level = logging.getLogger("dp_fedmed").level
    file = tmp_path / "run.log"
    with log_to(file, tmp_path / "run"):
        ours.info("written to %s and %s", tmp_path / "run" / "x", Path.home() / "y")
        logging.getLogger("flwr").info("Flower too")
        logging.getLogger("somebody").warning("not this")
    ours.warning("too late")
    said = file.read_text()
    assert "written to RUN_DIR/x and ~/y" in said
    assert "Flower too" in said
    assert "not this" not in said
    assert "too late" not in said
    assert logging.getLogger("dp_fedmed").level == level


def test_a_full_disk_silences_the_log_and_not_the_run() -> None:
    with log_to(Path("/dev/full"), Path("/nowhere")):
        logging.getLogger("dp_fedmed").info("x" * 100_000)


def test_a_line_is_printed_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("dp_fedmed", "flwr"):
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
    show_on_stdout()
    show_on_stdout()
    logging.getLogger("dp_fedmed.anything").info("once")
    assert capsys.readouterr().out == "once\n"
