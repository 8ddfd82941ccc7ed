"""A real SuperLink with two SuperNodes, each with its own name, data and noise key."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dp_fedmed.federation.ledger_check import LedgerView

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def medmnist_file(path: Path, seed: int, n: int) -> Path:
    """Two classes that differ in brightness."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for part, count in (("train", n), ("val", 12), ("test", 12)):
        labels = np.arange(count) % 2
        images = rng.integers(0, 120, (count, 8, 8)) + 120 * labels[:, None, None]
        arrays[f"{part}_images"] = images.astype(np.uint8)
        arrays[f"{part}_labels"] = labels[:, None].astype(np.uint8)
    path.parent.mkdir(parents=True)
    np.savez(path, **arrays)
    return path


@contextlib.contextmanager
def deployment(tmp_path: Path, data: dict[str, Path]) -> Iterator[dict[str, str]]:
    """The environment of a running deployment: a coordinator, and a site for each data path."""
    home = tmp_path / "flower_home"
    home.mkdir()
    environment = {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PATH": f"{BIN}:{os.environ['PATH']}",
    }
    environment.pop("PYTHONPATH", None)
    address = f"127.0.0.1:{free_port()}"
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{address}"\ninsecure = true\n'
    )
    commands = [[str(BIN / "flower-superlink"), "--insecure", "--port", address.split(":")[1]]]
    for name, path in data.items():
        own = f"client-id='{name}' data-path='{path}' state-dir='{tmp_path / name / 'state'}'"
        node = [str(BIN / "flower-supernode"), "--insecure", "--superlink", address]
        commands.append([*node, "--port", str(free_port()), "--node-config", own])
    processes = []
    for command in commands:
        log = (tmp_path / f"{len(processes)}.log").open("w")
        processes.append(
            subprocess.Popen(
                command,
                env=environment,
                stdout=log,
                stderr=log,
                cwd=tmp_path,
                start_new_session=True,
            )
        )
        time.sleep(3)
    try:
        yield environment
    finally:
        for process in processes:
            os.killpg(process.pid, 9)
            process.wait()


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Two hospitals with a file each."""
    data = {
        name: medmnist_file(tmp_path / name / "own.npz", number, 40 + 10 * number)
        for number, name in enumerate(("north", "south"))
    }
    with deployment(tmp_path, data) as environment:
        yield environment


@pytest.mark.slow
def test_sites_train_on_their_own_data_with_their_own_keys(
    sites: dict[str, str], tmp_path: Path
) -> None:
    server = medmnist_file(tmp_path / "server" / "public.npz", 9, 20)
    folder = tmp_path / "run"
    overrides = (
        f"data.path={server} federation.num_clients=2 federation.num_rounds=1 "
        "privacy.sample.noise_multiplier=1.0 privacy.sample.target_epsilon=null "
        "privacy.sample.grad_mode=hooks model._target_=dp_fedmed.models.MLP"
    )
    settings = f"task='medmnist' privacy='sample' run-dir='{folder}'"
    run = [str(BIN / "flwr"), "run", str(ROOT), "--run-config"]

    def flower(run_config: str, rounds: int) -> dict[str, Any]:
        done = subprocess.run(
            [*run, run_config], capture_output=True, text=True, env=sites, cwd=tmp_path, timeout=60
        )
        deadline = time.monotonic() + 120
        report = folder / "privacy_report.json"
        while time.monotonic() < deadline and not (
            report.exists() and json.loads(report.read_text())["rounds"] == rounds
        ):
            time.sleep(0.5)
        logs = "".join(path.read_text() for path in tmp_path.glob("*.log"))
        assert report.exists(), done.stdout + done.stderr + logs[-3000:]
        guarantee = json.loads(report.read_text())["guarantees"][0]
        assert {client["rounds"] for client in guarantee["clients"].values()} == {rounds}
        return dict(guarantee)

    first = flower(f"{settings} overrides='{overrides}'", 1)
    assert {name: client["records"] for name, client in first["clients"].items()} == {
        "north": 40 + 12,
        "south": 50 + 12,
    }
    assert not (folder / "partition.png").exists(), "the server does not know who holds what"
    wait_until_closed(folder)
    more = overrides.replace("num_rounds=1", "num_rounds=2")
    second = flower(f"{settings} resume='last' overrides='{more}'", 2)
    assert second["epsilon"] > first["epsilon"]
    for name in ("north", "south"):
        state = tmp_path / name / "state"
        assert (state / "noise.key").stat().st_mode & 0o077 == 0
        lines = (state / f"{name}.jsonl").read_text().splitlines()
        assert [json.loads(line)["kind"] for line in lines] == ["CHARGE", "ANSWER"] * 2


def tile(path: Path, seed: int, *, mode: str = "L", defect: bool = False) -> None:
    """A noisy picture, with a white patch where it is defective."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(90, 130, (32, 32, 3) if mode == "RGB" else (32, 32), dtype=np.uint8)
    if defect:
        pixels[8:20, 8:20] = 255
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def tiles(folder: Path, n: int, seed: int, *, mode: str = "L", has_test: bool = True) -> Path:
    """A folder in MVTec's layout, with or without its test part."""
    for i in range(n):
        tile(folder / "train" / "good" / f"{i}.png", seed + i, mode=mode)
    for i in range(6 if has_test else 0):
        tile(folder / "test" / "good" / f"{i}.png", seed + 100 + i, mode=mode)
        tile(folder / "test" / "spot" / f"{i}.png", seed + 200 + i, mode=mode, defect=True)
        mask = np.zeros((32, 32), np.uint8)
        mask[8:20, 8:20] = 255
        (folder / "ground_truth" / "spot").mkdir(parents=True, exist_ok=True)
        Image.fromarray(mask).save(folder / "ground_truth" / "spot" / f"{i}_mask.png")
    return folder


@pytest.mark.slow
def test_sites_find_anomalies_with_folders_of_their_own(tmp_path: Path) -> None:
    """North has defects of its own and grey images; south has normal ones only, in colour."""
    data = {
        "north": tiles(tmp_path / "north" / "own", 20, 0),
        "south": tiles(tmp_path / "south" / "own", 40, 1000, mode="RGB", has_test=False),
    }
    server, folder = tiles(tmp_path / "server" / "public", 12, 5000), tmp_path / "run"
    overrides = (
        f"data.path={server} data.image_size=32 federation.num_clients=2 "
        "anomaly.backbone=tiny anomaly.grid=8 anomaly.dimension=4 anomaly.server_trusted=false "
        "federation.client_evaluate_every=2 privacy.sample.noise_multiplier=1.0 "
        "privacy.sample.target_epsilon=null"
    )
    settings = f"task='mvtec_folder' privacy='sample' run-dir='{folder}' overrides='{overrides}'"
    with deployment(tmp_path, data) as environment:
        done = subprocess.run(
            [str(BIN / "flwr"), "run", str(ROOT), "--run-config", settings],
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
            timeout=60,
        )
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline and not (folder / "pictures.png").exists():
            time.sleep(0.5)
        logs = "".join(path.read_text() for path in tmp_path.glob("*.log"))
        assert (folder / "pictures.png").exists(), done.stdout + done.stderr + logs[-4000:]
        wait_until_closed(folder)
    report = json.loads((folder / "privacy_report.json").read_text())
    (guarantee,) = report["guarantees"]
    assert {name: client["records"] for name, client in guarantee["clients"].items()} == {
        "north": 17,
        "south": 34,
    }, "normal images, less the seventh that each keeps for validation"
    private = [
        json.loads(line) for line in (folder / "private" / "rounds.jsonl").read_text().splitlines()
    ]
    last = private[-1]["clients"]
    assert last["north"]["image_auroc"] > 0.5, "its own defects are found"
    assert last["south"].keys() == {"normal_score"}, "it has none"
    public = (folder / "metrics.jsonl").read_text()
    assert "normal_score" not in public
    assert "fairness" not in public
    assert LedgerView(folder).history.closed == "completed"


def wait_until_closed(folder: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and LedgerView(folder).history.closed is None:
        time.sleep(0.5)
    time.sleep(2.0)  # the app that wrote the last record still lets go of the directory
