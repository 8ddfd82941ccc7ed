"""Who took part is told to the private file alone, whoever set up logging."""

from __future__ import annotations

import logging
import logging.config
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dp_fedmed.federation.private_log import cohort_logger, keep_failure
from dp_fedmed.reporting.run_log import log_to

ROOT = Path(__file__).resolve().parents[2]
FEDERATION = """
import logging, logging.config, sys
logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
logging.captureWarnings(True)
import opacus
from flwr.app import Context, Message, RecordDict
from dp_fedmed.assemble import client_runtime
from dp_fedmed.client_app import build_client_app
from dp_fedmed.config import from_run_config
from dp_fedmed.engines.local_grid import LocalGrid
from dp_fedmed.server_app import app
logging.config.dictConfig({"version": 1, "disable_existing_loggers": False, "loggers": {
    "dp_fedmed": {"level": "DEBUG", "propagate": True},
    "dp_fedmed.private": {"level": "DEBUG", "propagate": True}}})
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout, force=True)

def fail(*_):
    raise ValueError("a record of a member of the cohort")

class Twice(LocalGrid):
    def send_and_receive(self, messages, *, timeout=None):
        for reply in super().send_and_receive(messages, timeout=timeout):
            yield reply
            if not reply.has_error() and reply.metadata.message_type == "train":
                yield reply

for style in ("user", "hybrid"):
    overrides = ("federation.num_clients=6 federation.num_rounds=2 federation.sample_rate=0.7 "
        "federation.client_evaluate_every=0 "
        "model._target_=dp_fedmed.models.MLP model.args.hidden=[4] training.local_steps=1")
    given = {"task": "breast_cancer", "privacy": style, "run-dir": f"{sys.argv[1]}/{style}",
             "overrides": overrides}
    runtime = client_runtime(from_run_config(given, run_id=1))
    train = runtime.work.train
    runtime.work.train = lambda work: fail() if work.name[-1] in "024" else train(work)
    grid = Twice(build_client_app(runtime=runtime), num_clients=6, workers=1)
    app(grid, Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=given))
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What a user sees of two runs whose clients fail or answer twice, and their folder."""
    folder = tmp_path_factory.mktemp("runs")
    done = subprocess.run(
        [sys.executable, "-c", FEDERATION, str(folder)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr, folder


@pytest.mark.parametrize("style", ["user", "hybrid"])
def test_the_real_server_app_names_nobody_outside_the_private_file(
    style: str, ran: tuple[str, Path]
) -> None:
    seen, folder = ran
    private = folder / style / "private" / "run.log"
    told = private.read_text()
    assert "contributed nothing" in told
    twice = [line.split("WARNING")[-1] for line in told.splitlines() if "nobody asked for" in line]
    assert twice
    assert len(twice) == len(set(twice)), "once for each node and run"
    assert "client-0000" not in seen
    assert "a member of the cohort" not in seen
    assert not (folder / style / "run.log").exists()
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    failures = folder / style / "private" / "clients.log"
    assert "a member of the cohort" in failures.read_text()
    assert stat.S_IMODE(failures.stat().st_mode) == 0o600


def test_every_line_is_printed_once(ran: tuple[str, Path]) -> None:
    seen, _ = ran
    for line in ("round 1 ·", "round 2 ·"):
        assert seen.count(line) == 2, "once for each of the two runs"


def test_no_handler_hears_the_private_logger_but_the_runs_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    heard: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    listener = Listener()
    places = [logging.getLogger(name) for name in (None, "dp_fedmed", "dp_fedmed.private")]
    for logger in places:
        logger.addHandler(listener)
    try:
        with log_to(tmp_path / "run.log", tmp_path):
            cohort_logger.warning("north took part")
        cohort_logger.error("south took part")  # and nobody listens at all
    finally:
        for logger in places:
            logger.removeHandler(listener)
    assert not heard
    assert "took part" not in "".join(capfd.readouterr())
    assert "north took part" in (tmp_path / "run.log").read_text()


def test_a_failure_that_no_folder_takes_is_not_shown_elsewhere(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    try:
        raise ValueError("record 99")
    except ValueError:
        keep_failure(tmp_path / "not here", "north", "train")
    assert "record 99" not in "".join(capfd.readouterr())
