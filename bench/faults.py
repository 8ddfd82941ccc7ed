"""Clients that fail, lag and take their worker down with them: the run ends, right and clean."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import torch

from bench.rows import Row
from dp_fedmed.config import DataConfig, compose
from dp_fedmed.data import DataSet, Records
from dp_fedmed.federation.rounds import RoundRecord
from dp_fedmed.launch import run_federation
from dp_fedmed.models import MLP
from dp_fedmed.privacy import get_privacy_spent
from dp_fedmed.reporting.display import LogDisplay
from dp_fedmed.reporting.run_log import quiet_console
from dp_fedmed.run.verify import LedgerView

SIGMA = 2.0
RAISES, LAGS, DIES = 0.15, 0.03, 0.02  # of all clients of all rounds
LAG_SECONDS = 0.02
KILL_SECONDS = 0.3  # between kills from outside
_SERVER = os.getpid()


class Troubled(MLP):
    """A network that fails one in five clients, in worker processes only."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Whatever the operating system's randomness has in store."""
        if self.training and os.getpid() != _SERVER:
            draw = random.SystemRandom().random()
            if draw < RAISES:
                raise RuntimeError("a client fails")
            if draw < RAISES + LAGS:
                time.sleep(LAG_SECONDS)
            elif draw < RAISES + LAGS + DIES:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)


def load(config: DataConfig, seed: int) -> DataSet:
    """Three random records for each client; `data.num_records` says how many in all."""
    rng = np.random.default_rng(seed)

    def records(n: int) -> Records:
        return Records(rng.normal(size=(n, 8)).astype(np.float32), np.arange(n) % 2)

    return DataSet(records(config.num_records), records(20), records(20), 2, ("no", "yes"))


class Watch(LogDisplay):
    """Memory of this process after every round, and who contributed nothing."""

    def __init__(self) -> None:
        self.bytes: list[int] = []
        self.begun = threading.Event()

    def begin(self, done: int, planned: Mapping[str, float]) -> None:
        """From here on workers may be killed: before, a client is asked three times only."""
        super().begin(done, planned)
        self.begun.set()

    def round(self, record: RoundRecord) -> None:
        """Take a reading of what is held, not of what waits for the collector."""
        gc.collect()
        self.bytes.append(psutil.Process().memory_info().rss)


@dataclass(frozen=True)
class Held:
    """What a process holds that it could forget to give back."""

    children: int
    descriptors: int
    shared: int  # anonymous shared mappings, which workers' arenas are

    @classmethod
    def now(cls) -> Held:
        """As it is."""
        maps = Path("/proc/self/maps").read_text()
        links = [_target(path) for path in Path("/proc/self/fd").iterdir()]
        files = [link for link in links if not link.endswith(".ttf")]  # matplotlib keeps its fonts
        return cls(len(psutil.Process().children()), len(files), maps.count("/dev/zero (deleted)"))


def _target(descriptor: Path) -> str:
    try:
        return os.readlink(descriptor)
    except FileNotFoundError:  # the listing's own, closed by now
        return ""


@dataclass(frozen=True)
class Faults:
    """How a run went in which much went wrong."""

    stopped: str
    rounds: int
    asked: int
    failed: int
    kills: int
    epsilon: float
    expected: float
    problems: int
    leaked: Held
    growth: float  # bytes a round, over the second half
    seconds: float


def faulty_run(style: str, *, clients: int, rounds: int, rate: float = 1.0) -> Faults:
    """Run a federation in which a fifth of all work fails, and workers are killed at random.

    Args:
        style: `user` or `sample`.
        clients: of the federation.
        rounds: of the run.
        rate: of Poisson-sampled clients in style `user`.
    """
    with tempfile.TemporaryDirectory() as folder:
        config = compose(
            [
                *(f"privacy={style}", f"privacy.{style}.noise_multiplier={SIGMA}"),
                f"privacy.{style}.target_epsilon=null",
                *(("privacy.sample.grad_mode=hooks",) if style == "sample" else ()),
                *("allow_code=[bench]", "data.name=bench.faults.load"),
                *("model._target_=bench.faults.Troubled", "model.args.hidden=[4]", "recipe=none"),
                *(f"data.num_records={3 * clients}", "data.client_val_fraction=0"),
                *("data.partition.min_records=1", "training.local_steps=1"),
                *("training.batch_size=1000", "federation.client_evaluate_every=0"),
                *("federation.evaluate_every=10", "checkpoint.every=10", "engine.workers=2"),
                *(f"federation.num_clients={clients}", f"federation.num_rounds={rounds}"),
                *(*_sampling(style, rate), f"run_dir={folder}/run"),
            ]
        )
        before, watch = Held.now(), Watch()
        killer = _Killer(watch.begun)
        started = time.perf_counter()
        with killer:
            result = run_federation(config, watch)
        seconds = time.perf_counter() - started
        after = Held.now()
        done = Path(folder) / "run"
        report = json.loads((done / "privacy_report.json").read_text())["guarantees"][0]
        lines = (done / "private" / "rounds.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        problems = len(list(LedgerView(done).problems()))
    return Faults(
        stopped=result.stopped,
        rounds=result.rounds,
        asked=sum(row["cohort"] for row in rows),
        failed=sum(len(row["failed"]) for row in rows),
        kills=killer.kills,
        epsilon=report["epsilon"],
        expected=get_privacy_spent(
            noise_multiplier=SIGMA,
            sample_rate=rate if style == "user" else 1.0,
            steps=rounds,
            delta=report["delta"],
            accountant=report["accountant"],
        ),
        problems=problems,
        leaked=Held(
            *(b - a for a, b in zip(*map(dataclasses.astuple, (before, after)), strict=True))
        ),
        growth=_slope(watch.bytes),
        seconds=seconds,
    )


def _sampling(style: str, rate: float) -> list[str]:
    sampler = "poisson" if style == "user" else "all"
    return [f"federation.sampler={sampler}", f"federation.sample_rate={rate}"]


def _slope(readings: list[int]) -> float:
    half = readings[len(readings) // 2 :]
    return float(np.polyfit(np.arange(len(half)), half, 1)[0])


class _Killer:
    """Kills a worker every now and then, whatever it is doing, once the rounds have begun."""

    def __init__(self, begun: threading.Event) -> None:
        self.kills, self._begun = 0, begun
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> _Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._stop.wait(KILL_SECONDS):
            children = psutil.Process().children()
            with contextlib.suppress(psutil.NoSuchProcess):  # it died by itself
                if children and self._begun.is_set():
                    random.SystemRandom().choice(children).kill()
                    self.kills += 1


def rows() -> list[Row]:
    """1000 clients, 50 rounds at client level; 300 clients, 10 rounds at record level.

    The ledger is held in memory, with a name for each client of each cohort: that grows.
    """
    quiet_console()  # of ten thousand failures
    found = []
    for style, clients, rounds, rate in (("user", 1000, 50, 0.5), ("sample", 300, 10, 1.0)):
        run = faulty_run(style, clients=clients, rounds=rounds, rate=rate)
        if run.stopped != "completed":
            raise RuntimeError(run.stopped)
        name = f"{style}, {clients} clients, {rounds} rounds"
        found += [
            Row(f"{name}: answers asked for", run.asked),
            Row(f"{name}: of them lost", 100 * run.failed / run.asked, None, "%"),
            Row(f"{name}: workers killed from outside", run.kills),
            Row(f"{name}: ε", run.epsilon),
            Row(f"{name}: |ε − by hand|", abs(run.epsilon - run.expected), 0.0),
            Row(f"{name}: problems in the ledger", run.problems, 0),
            Row(f"{name}: processes left", run.leaked.children, 0),
            Row(f"{name}: open files left", run.leaked.descriptors, 0),
            Row(f"{name}: shared memory left", run.leaked.shared, 0),
            Row(f"{name}: memory growth", run.growth / 2**10, 256, "kB a round"),
            Row(f"{name}: time", run.seconds, None, "s"),
        ]
    return found
