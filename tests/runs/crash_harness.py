"""Kills a run at every point of its rounds, resumes it, and compares it with the uninterrupted run.

A process of its own, started by test_crashes.py: it forks, so it must never have used torch's
threads. `python -m tests.runs.crash_harness FOLDER STEP CASE ...` prints what it found, one
line of JSON for each case: a style, or `textures-` and a style for an anomaly task. STEP=1 kills at
every point, STEP=4 at every fourth.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
import torch

from dp_fedmed import crash_points
from dp_fedmed.config import compose
from dp_fedmed.errors import RunFinished
from dp_fedmed.launch import run_federation
from dp_fedmed.reporting import figures, sheets
from dp_fedmed.reporting.run_pictures import RunPictures
from dp_fedmed.run.checkpoint import folder_name
from dp_fedmed.run.spent import CHARGE
from dp_fedmed.run.verify import LedgerView
from tests.composition import remembering

COMMON = [
    *("federation.num_rounds=3", "model._target_=dp_fedmed.models.MLP"),
    *("model.args.hidden=[4]", "federation.evaluate_every=1"),
]
TEXTURES = [
    *("task=textures", "data.num_records=40", "data.image_size=16", "anomaly.backbone=tiny"),
    *("anomaly.dimension=6", "federation.num_clients=4"),
]
STYLES = {
    "none": ["federation.num_clients=4", "federation.server_optimizer=fedadam"],
    "sample": ["federation.num_clients=4", "training.local_steps=2", "training.batch_size=16"],
    "user": [
        *("federation.num_clients=30", "federation.sample_rate=0.8"),
        *("federation.server_optimizer=fedavgm", "privacy.user.clipping=adaptive"),
        *("privacy.user.target_epsilon=null", "privacy.user.noise_multiplier=1.5"),
    ],
    "sample-server": [
        *("federation.num_clients=4", "training.local_steps=1", "training.batch_size=1000"),
        *("privacy.noise=server", "federation.server_optimizer=fedavgm"),
    ],
    "hybrid-server": [
        *("federation.num_clients=8", "federation.sample_rate=0.5", "training.local_steps=1"),
        *("training.batch_size=1000", "privacy.noise=server", "privacy.user.max_grad_norm=5"),
    ],
    "none-masked": [
        *("federation.num_clients=4", "federation.secure_aggregation=true", "checkpoint.every=2"),
    ],
    "user-client": ["federation.num_clients=4", "privacy.noise=client"],
    "user-shares": ["federation.num_clients=5", "privacy.noise=shares"],
    "sample-shares": [
        *("federation.num_clients=4", "training.local_steps=1", "training.batch_size=1000"),
        *("privacy.noise=shares", "federation.server_optimizer=fedavgm"),
    ],
    "hybrid-shares": [
        *("federation.num_clients=8", "federation.sample_rate=0.5", "training.local_steps=1"),
        *("training.batch_size=1000", "privacy.noise=shares", "privacy.user.max_grad_norm=5"),
        "federation.sampler=fixed",
    ],
    "hybrid": [
        *("federation.num_clients=8", "federation.sample_rate=0.5", "training.local_steps=2"),
        *("training.batch_size=16", "federation.max_participations=2"),
        "privacy.sample.grad_mode=hooks",  # `sample` leaves it to be measured
    ],
}


def settings_of(case: str) -> list[str]:
    style = case.removeprefix("textures-").partition("-")[0]
    own = TEXTURES if case.startswith("textures-") else [*COMMON, *STYLES[case]]
    bank = ["anomaly.coreset_size=20"] if case == "textures-none" else []
    bank += ["privacy.noise=server"] if case == "textures-sample-server" else []
    return [f"privacy={style}", *own, *bank]


def in_child(work: Callable[[], None]) -> int:
    """Run something in a forked process; its exit status, or minus the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Killer:
    """Ends the process at the n-th point that it comes to."""

    def __init__(self, number: int, log: Path | None = None) -> None:
        self.left, self.log = number, log

    def __call__(self, point: str) -> None:
        if self.log is not None:
            with open(self.log, "a") as file:
                file.write(f"{point}\n")
        self.left -= 1
        if self.left == 0:
            die()


class Case:
    """One style's runs, all copies of one freshly initialised directory."""

    def __init__(self, folder: Path, style: str, workers: int) -> None:
        self.folder, self.style, self.workers = folder, style, workers
        self.base = folder / "base"
        folder.mkdir()
        settings = [*settings_of(style), f"run_dir={self.base}"]
        self.rounds = compose(settings).federation.num_rounds

        def begin() -> None:
            crash_points.at_crash_point = lambda point: die() if point == "commit:after" else None
            run_federation(compose([*settings, "engine.workers=1"]))

        assert in_child(begin) == -signal.SIGKILL
        compose(
            [f"run_dir={self.base}", "resume=last", f"engine.workers={workers}"]
        )  # children know
        self.points = self.points_of(self.copy("points"))
        self.reference = self.copy("reference")
        assert self.resume(self.reference) == 0

    def copy(self, name: str) -> Path:
        shutil.copytree(self.base, self.folder / name, symlinks=True)
        return self.folder / name

    def resume(
        self, path: Path, killer: Killer | None = None, more: list[str] | None = None
    ) -> int:
        def go_on() -> None:
            if killer is not None:
                crash_points.at_crash_point = killer
            words = [f"run_dir={path}", "resume=last", f"engine.workers={self.workers}"]
            with contextlib.suppress(RunFinished):
                result = run_federation(compose([*words, *(more or [])]))
                assert result.stopped == "completed", result.stopped

        return in_child(go_on)

    def points_of(self, path: Path) -> list[str]:
        log = self.folder / "points.log"
        assert self.resume(path, Killer(0, log)) == 0
        return log.read_text().splitlines()

    def kill_at_every_point(self, step: int) -> list[str]:
        """At the second time that a run comes to each point, or the first if there is but one.

        Of the points only every `step`-th.
        """
        wrong = []
        chosen: dict[str, list[int]] = {}
        for number, point in enumerate(self.points, start=1):
            chosen.setdefault(point, []).append(number)
        for number in sorted(numbers[:2][-1] for numbers in chosen.values())[::step]:
            path = self.copy(f"at{number}")
            if self.resume(path, Killer(number)) != -signal.SIGKILL:
                wrong.append(f"{self.points[number - 1]}: was not killed")
            wrong += self.check(path, f"{self.points[number - 1]} ({number})")
        return wrong

    def kill_twice(self) -> list[str]:
        """Killed, and killed again while the round is done again."""
        path = self.copy("twice")
        middle = len(self.points) // 2
        self.resume(path, Killer(middle))
        for number in (1, 2, 4):
            self.resume(path, Killer(number))
        return self.check(path, "killed four times")

    def kill_at_random_times(self, times: int) -> list[str]:
        wrong = []
        rng = random.Random(7)
        for number in range(times):
            path = self.copy(f"random{number}")
            pid = os.fork()
            if pid == 0:
                try:
                    words = [f"run_dir={path}", "resume=last", "engine.workers=2"]
                    run_federation(compose(words))
                finally:
                    os._exit(0)
            time.sleep(rng.uniform(0.05, 0.5))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            wrong += self.check(path, f"at a random time ({number})")
        return wrong

    def check(self, path: Path, what: str) -> list[str]:
        """Resume to the end, and compare with the run that nobody interrupted."""
        if self.resume(path) != 0:
            return [f"{what}: does not resume"]
        found, wanted = (outcome(each, self.rounds) for each in (path, self.reference))
        return [f"{what}: {key} differs" for key in wanted if found[key] != wanted[key]]


def outcome(path: Path, rounds: int) -> dict[str, Any]:
    """What must be the same, whatever happened on the way."""
    view = LedgerView(path)
    charges = Counter(
        json.dumps({k: v for k, v in record.body.items() if k != "number"}, sort_keys=True)
        for record in view.ledger.records
        if record.kind == CHARGE
    )
    report = json.loads((path / "privacy_report.json").read_text())
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        row.pop("seconds", None)
    described = [path / name for name in ("evaluation.json", "environment.json")]
    return {
        "described": [file.read_bytes() for file in described if file.exists()],
        "model": (path / "model.safetensors").read_bytes(),
        "last model": (path / folder_name(rounds) / "model.safetensors").read_bytes(),
        "epsilon": view.epsilons(),
        "charges": charges,
        "report": report,
        "metrics": rows,
        "problems": list(view.problems()),
        "keys": sorted(file.name for file in (path / "private" / "secret").iterdir()),
        "left over": sorted(file.name for file in path.rglob(".tmp-*")),
    }


def warm_up(path: Path, style: str) -> None:
    """Have everything imported before the first fork."""
    settings = [*settings_of(style), f"run_dir={path}"]
    run_federation(compose([*settings, "engine.workers=1"]))


def main() -> None:
    folder, step = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    hydra.compose = remembering(hydra.compose)  # type: ignore[assignment]
    figures.plot_metrics = lambda *_: None  # type: ignore[assignment]
    RunPictures.describe_clients = lambda *_: None  # type: ignore[assignment, method-assign]
    sheets.draw_sheet = lambda *_: None  # type: ignore[assignment]
    for style in sys.argv[3:]:
        warm_up(folder / f"{style}-warm", style)
        case = Case(folder / style, style, workers=1)
        wrong = case.kill_at_every_point(step) + case.kill_twice()
        wrong += case.kill_at_random_times(4 // step)
        assert not outcome(case.reference, case.rounds)["problems"]
        print(json.dumps({"case": style, "points": case.points, "wrong": wrong}), flush=True)


if __name__ == "__main__":
    main()
