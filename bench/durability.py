"""What surviving a crash costs: the ledger's part of a round, checking it, and starting again."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from bench.rows import Row
from dp_fedmed import crash_points
from dp_fedmed.config import compose
from dp_fedmed.federation.charges import Charge
from dp_fedmed.federation.rounds import RoundRecord
from dp_fedmed.launch import run_federation
from dp_fedmed.privacy import PrivacyEvent
from dp_fedmed.privacy.ledger import Ledger
from dp_fedmed.privacy.streams.keys import MacKey
from dp_fedmed.reporting.display import LogDisplay
from dp_fedmed.run.journal import Journal

ROUNDS, RECORDS = 40, 10_000


def _round_cost(folder: Path) -> tuple[float, float]:
    """Median ms of CHARGE + RELEASE + COMMIT lines, and of one wait for the disk."""
    key = MacKey.generate()
    journal = Journal(Ledger(folder / "ledger.jsonl", key), key, folder / "releases", phase=0)
    event = PrivacyEvent.poisson(unit="client", noise_multiplier=1.0, sample_rate=0.1)
    names = [f"client-{i:05d}" for i in range(50)]
    times = []
    for server_round in range(ROUNDS):
        begun = time.perf_counter()
        journal.charge(
            Charge(
                phase=0,
                server_round=server_round,
                digest="0" * 64,
                cohort=names,
                federation=event,
                clients=dict.fromkeys(names, event),
            )
        )
        charged = time.perf_counter() - begun
        # The model's own write, not counted.
        journal.release("0" * 64, {"w": np.zeros(10)}, {"clip_norm": 1.0})
        begun = time.perf_counter()
        journal.ledger.append(
            "RELEASE", {"charge": -1, "inputs": "", "result": "0" * 64}, durable=False
        )
        journal.commit(server_round, "0" * 64)
        times.append(charged + time.perf_counter() - begun)
    waits = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        journal.ledger.append("X", {})
        waits.append(time.perf_counter() - begun)
    return statistics.median(times) * 1e3, statistics.median(waits) * 1e3


def _check_cost(folder: Path) -> float:
    """Seconds to check a long ledger."""
    key = MacKey.generate()
    path = folder / "long.jsonl"
    ledger = Ledger(path, key, durable=False)
    event = PrivacyEvent.poisson(unit="client", noise_multiplier=1.0, sample_rate=0.1).to_json()
    for number in range(RECORDS):
        ledger.append("CHARGE", {"phase": 0, "round": number, "digest": "0" * 64, "event": event})
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        Ledger(path, key)
        times.append(time.perf_counter() - begun)
    return min(times)


class _StopAfter(LogDisplay):
    """Presses Ctrl-C after a round."""

    def __init__(self, server_round: int) -> None:
        self.server_round = server_round

    def round(self, record: RoundRecord) -> None:
        if record.server_round == self.server_round:
            raise KeyboardInterrupt


def _start_cost(folder: Path) -> float:
    """Seconds until a run that was stopped after round 48 of 50 sends out the next one."""
    settings = ["task=digits", "privacy=hybrid", "federation.num_rounds=50", "engine.workers=2"]
    run_federation(compose([*settings, f"run_dir={folder}/run"]), _StopAfter(48))
    reached: list[float] = []

    def note(point: str) -> None:
        if point == "training:before":
            reached.append(time.perf_counter())

    crash_points.at_crash_point, before = note, crash_points.at_crash_point
    begun = time.perf_counter()
    run_federation(compose([f"run_dir={folder}/run", "resume=last"]), _StopAfter(49))
    crash_points.at_crash_point = before
    return reached[0] - begun


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cost, wait = _round_cost(folder)
        checked = _check_cost(folder)
        started = _start_cost(folder)
    return [
        Row("CHARGE + RELEASE + COMMIT, a round", cost, 5.0, "ms"),
        Row("one wait for this disk", wait, None, "ms"),
        Row("checking 10,000 records", checked, 0.2, "s"),
        Row("resume of a 50-round hybrid run, to its next round", started, 1.0, "s"),
    ]
