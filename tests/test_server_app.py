"""The ServerApp as Flower runs it."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dp_fedmed import server_app


def test_under_flwr_run_the_folder_is_told_and_sigterm_asks_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[Any] = []

    def serve(grid: Any, config: Any, display: Any, *, stop: Any, **more: Any) -> None:
        with stop.during_rounds(lambda: None):
            os.kill(os.getpid(), signal.SIGTERM)
            asked.append(stop.after_round)

    monkeypatch.setattr(server_app, "serve", serve)
    monkeypatch.setattr(server_app, "show_on_stdout", lambda: None)
    monkeypatch.setenv("HOME", str(tmp_path))
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    app = server_app.build_server_app()
    context = SimpleNamespace(run_config={"task": "digits", "privacy": "none"}, run_id=7)
    with caplog.at_level(logging.INFO, "dp_fedmed"):
        app._main(None, context)  # type: ignore[misc, arg-type]
    signal.signal(signal.SIGTERM, before)
    assert asked == [True]
    assert f"{tmp_path}/dp_fedmed/checkpoints/flower_7_digits_none" in caplog.text
