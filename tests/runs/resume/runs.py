"""Interrupted runs, and what is done to them."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from dp_fedmed import crash_points
from dp_fedmed.config import Config, compose
from dp_fedmed.errors import CheckpointError, ConfigError, LedgerError, RunLocked
from dp_fedmed.federation.rounds import RoundRecord
from dp_fedmed.launch import run_federation
from dp_fedmed.privacy import History, PrivacyEvent
from dp_fedmed.privacy.ledger import Ledger
from dp_fedmed.privacy.streams.keys import MacKey
from dp_fedmed.reporting.display import LogDisplay
from dp_fedmed.run.results import RunResult
from dp_fedmed.run.spent import CHARGE
from dp_fedmed.run.verify import LedgerView

REFUSALS = (ConfigError, LedgerError, CheckpointError, RunLocked)


SETTINGS = [
    *("federation.num_clients=4", "federation.num_rounds=4", "engine.workers=1"),
    *("model._target_=dp_fedmed.models.MLP", "model.args.hidden=[4]", "training.local_steps=1"),
    *("training.local_epochs=1", "training.batch_size=32", "federation.sample_rate=1.0"),
    *("privacy.sample.grad_mode=hooks", "federation.evaluate_every=1"),
]


class Stopper(LogDisplay):
    """Presses Ctrl-C after a round."""

    def __init__(self, after: int) -> None:
        self.after = after

    def round(self, record: RoundRecord) -> None:
        if record.server_round == self.after:
            raise KeyboardInterrupt


def resume(path: Path, *words: str, display: LogDisplay | None = None) -> RunResult:
    chosen = [] if any(word.startswith("resume=") for word in words) else ["resume=last"]
    return run_federation(compose([f"run_dir={path}", *chosen, *words]), display)


def charges(path: Path) -> list[int]:
    return [r.body["round"] for r in LedgerView(path).ledger.records if r.kind == CHARGE]


def model_bytes(path: Path) -> bytes:
    return (path / "model.safetensors").read_bytes()


def damage(path: Path, how: str) -> None:
    ledger = path / "private" / "ledger.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True) if ledger.exists() else []
    secret = path / "private" / "secret"
    checkpoint = path / "round_0002" / "checkpoint.json"
    match how:
        case "ledger missing":
            ledger.unlink()
        case "ledger shorter":
            ledger.write_bytes(b"".join(lines[:4]))
        case "ledger edited":
            ledger.write_bytes(b"".join(lines).replace(b'"round":1', b'"round":9', 1))
        case "ledger reordered":
            ledger.write_bytes(b"".join([lines[0], lines[2], lines[1], *lines[3:]]))
        case "ledger of another run":
            shutil.rmtree(secret)
            secret.mkdir(mode=0o700)
            key = MacKey.create(secret / "ledger.key")
            ledger.unlink()
            Ledger(ledger, key).append("OPEN", {"schema": 1, "run": "x", "config": "seed: 0\n"})
        case "ledger newer":
            key = MacKey.load(secret / "ledger.key")
            ledger.unlink()
            Ledger(ledger, key).append("OPEN", {"schema": 2, "run": "x", "config": ""})
        case "checkpoint changed":
            model = checkpoint.parent / "model.safetensors"
            arrays = load_file(model)
            save_file({name: value * 2 for name, value in arrays.items()}, model)
        case "checkpoint half":
            model = checkpoint.parent / "model.safetensors"
            model.write_bytes(model.read_bytes()[:100])
        case "checkpoint missing":
            shutil.rmtree(checkpoint.parent)
        case "checkpoint newer":
            described = json.loads(checkpoint.read_text())
            checkpoint.write_text(json.dumps({**described, "schema": 2}))
        case "checkpoint edited":
            checkpoint.write_text(checkpoint.read_text().replace('"round": 2', '"round": 3'))
        case "checkpoint empty":
            checkpoint.write_text("")
        case "noise key missing":
            (secret / "noise_0.key").unlink()
        case "noise key readable":
            (secret / "noise_0.key").chmod(0o644)
        case "noise key other":
            file = secret / "noise_0.key"
            text = file.read_text()
            file.write_text(text[:-3] + ("0" if text[-3] != "0" else "1") + text[-2:])
        case "ledger key missing":
            (secret / "ledger.key").unlink()
        case "ledger key readable":
            (secret / "ledger.key").chmod(0o640)
        case "config edited":
            file = path / "config.yaml"
            file.write_text(file.read_text().replace("  lr: ", "  lr: 1"))
        case "config missing":
            (path / "config.yaml").unlink()
        case "client ledger edited":
            file = next((path / "private" / "clients").iterdir())
            file.write_bytes(file.read_bytes().replace(b'"steps":1', b'"steps":0', 1))


def compose_as_given(path: Path) -> Config:
    """The run's settings; without its file, as somebody would give them again."""
    if (path / "config.yaml").exists():
        return compose([f"run_dir={path}", "resume=last"])
    return compose(["privacy=hybrid", *SETTINGS, f"run_dir={path}", "resume=last"])


def in_child_that_dies_at(point: str, work: Callable[[], object]) -> None:
    pid = os.fork()
    if pid == 0:

        def die(reached: str) -> None:
            if reached == point:
                os.kill(os.getpid(), signal.SIGKILL)

        crash_points.at_crash_point = die
        try:
            work()
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def files_of(path: Path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


def totals_agree(path: Path) -> bool:
    """Whether one run's total, which is by RDP, is that of the histories in its report."""
    report = json.loads((path / "privacy_report.json").read_text())
    total = report["all_runs_on_this_data"]

    def by_rdp(rows: list[tuple[float, float, int]], delta: float) -> float:
        events = (
            PrivacyEvent.poisson(unit="record", noise_multiplier=s, sample_rate=q, count=t)
            for s, q, t in rows
        )
        return History(events).epsilon(delta=delta, method="rdp")

    return all(
        total[held["unit"]]["epsilon"]
        == pytest.approx(
            max(
                by_rdp(own["history"], held["delta"])
                for own in held.get("clients", {"": held}).values()
            )
        )
        and total[held["unit"]]["epsilon"] >= held["epsilon"]
        for held in report["guarantees"]
    )
