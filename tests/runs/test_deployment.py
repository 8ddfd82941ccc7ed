"""A real SuperLink over TLS with three authenticated SuperNodes: the commands of the docs page."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dp_fedmed.config import compose
from dp_fedmed.data import load_data
from dp_fedmed.data.clients import deployed_records
from dp_fedmed.run.verify import LedgerView

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
PAGE = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
HOST, SITES = "localhost", ("east", "north", "south")


def block(words: str, language: str = "bash") -> str:
    """The page's code block that has these words."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (found,) = [text for text in blocks if words in text]
    return str(found)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(done: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if done():
            return True
        time.sleep(0.3)
    return False


@dataclass
class Deployment:
    """A folder with a coordinator and three hospitals, all of them on this machine."""

    folder: Path
    port: int = field(default_factory=free_port)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        own = {"FLWR_HOME": str(self.folder / "flower_home"), "HOST": HOST, "PORT": str(self.port)}
        kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "RAY_ADDRESS")}
        return {**kept, **own, "PATH": f"{BIN}:{os.environ['PATH']}"}

    def do(self, script: str, **variables: str) -> str:
        done = subprocess.run(
            ["bash", "-euc", script],
            cwd=self.folder,
            env=self.environment | variables,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def begin(self, script: str, log: str, **variables: str) -> None:
        with (self.folder / f"{log}.log").open("wb") as out:
            self.processes.append(
                subprocess.Popen(
                    ["bash", "-euc", script],
                    cwd=self.folder,
                    env=self.environment | variables,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
            )

    def logs(self) -> str:
        return "".join(path.read_text()[-4000:] for path in self.folder.glob("*.log"))

    def site(self, name: str) -> Path:
        """What a hospital gives as its data-path."""
        return self.folder / name / "own.npz"

    def give(self, data: dict[str, Path]) -> None:
        """Put data where the hospitals' data-paths point."""
        for name, path in data.items():
            self.site(name).unlink(missing_ok=True)
            self.site(name).symlink_to(path)

    def run(self, settings: str, folder: Path, rounds: int) -> dict[str, Any]:
        """`flwr run` with a run-config, until its run directory is closed; its guarantee."""
        run = [
            str(BIN / "flwr"),
            "run",
            str(ROOT),
            "--run-config",
            f"run-dir='{folder}' {settings}",
        ]
        where = {"cwd": self.folder, "env": self.environment}
        done = subprocess.run(run, capture_output=True, text=True, timeout=60, **where)  # type: ignore[call-overload]
        report = folder / "privacy_report.json"
        assert wait_for(
            lambda: report.exists() and json.loads(report.read_text())["rounds"] == rounds, 240
        ), done.stdout + done.stderr + self.logs()
        assert wait_for(lambda: LedgerView(folder).history.closed is not None, 60)
        time.sleep(2.0)  # the app that wrote the last record still lets go of the directory
        return json.loads(report.read_text())  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """One SuperLink for all tests here, set up as the page says."""
    made = Deployment(tmp_path_factory.mktemp("deployment"))
    made.do(block("openssl"))
    (made.folder / "flower_home").mkdir()
    settings = block("[superlink]", "toml").replace("HOST:PORT", f"{HOST}:{made.port}")
    settings = settings.replace("/absolute/path/ca.pem", str(made.folder / "ca.pem"))
    (made.folder / "flower_home" / "config.toml").write_text(settings)
    try:
        made.begin(block("flower-superlink").replace("0.0.0.0", "127.0.0.1"), "superlink")
        assert wait_for(lambda: socket.socket().connect_ex(("127.0.0.1", made.port)) == 0, 60)
        for name in SITES:
            (made.folder / name).mkdir()
            made.do(block("ssh-keygen"), NAME=name)
            made.do(block("flwr supernode register"), NAME=name)
            where = {"DATA": str(made.site(name)), "STATE": str(made.folder / name / "state")}
            begin = block("flower-supernode")
            made.begin(begin, name, NAME=name, OWN_PORT=str(free_port()), **where)
        yield made
    finally:
        for process in made.processes:
            with contextlib.suppress(ProcessLookupError):  # a stranger, which has left
                os.killpg(process.pid, 9)
            process.wait()


def medmnist_file(path: Path, seed: int, n: int) -> Path:
    """Two classes that differ in brightness."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for part, count in (("train", n), ("val", 12), ("test", 12)):
        labels = np.arange(count) % 2
        images = rng.integers(0, 120, (count, 8, 8)) + 120 * labels[:, None, None]
        arrays[f"{part}_images"] = images.astype(np.uint8)
        arrays[f"{part}_labels"] = labels[:, None].astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path


def trained_on(task: str, path: Path, *words: str) -> int:
    """How many records a site with these data trains on."""
    config = compose([f"task={task}", *words])
    own = replace(config.data, path=str(path))
    return len(deployed_records(config, load_data(own, seed=0, at_site=True))[0])


def refused(deployment: Deployment, name: str) -> None:
    """A SuperNode with a key that nobody registered is not let in."""
    deployment.do(block("ssh-keygen"), NAME=name)
    where = {"DATA": "/none", "STATE": str(deployment.folder / name)}
    deployment.begin(block("flower-supernode"), name, NAME=name, OWN_PORT=str(free_port()), **where)
    log = deployment.folder / f"{name}.log"
    assert wait_for(lambda: deployment.processes[-1].poll() is not None, 60), log.read_text()


@pytest.mark.slow
def test_sites_train_on_their_own_data_with_their_own_keys(
    deployment: Deployment, tmp_path: Path
) -> None:
    sizes = dict(zip(SITES, (60, 40, 50), strict=True))
    deployment.give(
        {
            name: medmnist_file(tmp_path / f"{name}.npz", number, sizes[name])
            for number, name in enumerate(SITES)
        }
    )
    server = medmnist_file(tmp_path / "public.npz", 9, 20)
    folder = tmp_path / "run"
    overrides = (
        f"data.path={server} federation.num_clients=3 federation.num_rounds=1 "
        "privacy.sample.noise_multiplier=1.0 privacy.sample.target_epsilon=null "
        "privacy.sample.grad_mode=hooks model._target_=dp_fedmed.models.MLP"
    )
    settings = "task='medmnist' privacy='sample'"
    refused(deployment, "stranger")
    report = deployment.run(f"{settings} overrides='{overrides}'", folder, 1)
    first = report["guarantees"][0]
    found = {name: client["records"] for name, client in first["clients"].items()}
    assert found == {name: trained_on("medmnist", deployment.site(name)) for name in SITES}
    assert report["contributed_less"] == {}
    assert not (folder / "partition.png").exists(), "the server does not know who holds what"
    more = overrides.replace("num_rounds=1", "num_rounds=2")
    again = deployment.run(f"{settings} resume='last' overrides='{more}'", folder, 2)
    second = again["guarantees"][0]
    assert {client["rounds"] for client in second["clients"].values()} == {2}
    assert second["epsilon"] > first["epsilon"]
    for name in SITES:
        state = deployment.folder / name / "state"
        assert (state / "noise.key").stat().st_mode & 0o077 == 0
        lines = (state / f"{name}.jsonl").read_text().splitlines()
        assert [json.loads(line)["kind"] for line in lines] == ["CHARGE", "ANSWER"] * 2


@pytest.mark.slow
def test_sites_share_the_noise_and_the_server_sees_their_sum(
    deployment: Deployment, tmp_path: Path
) -> None:
    """Two rounds of secure aggregation over a real SuperLink, the second after a resume."""
    deployment.give(
        {
            name: medmnist_file(tmp_path / f"{name}.npz", number, 40 + number)
            for number, name in enumerate(SITES)
        }
    )
    server, folder = medmnist_file(tmp_path / "public.npz", 9, 20), tmp_path / "run"
    overrides = (
        f"data.path={server} federation.num_clients=3 federation.num_rounds=1 "
        "privacy.noise=shares privacy.sample.noise_multiplier=4.0 "
        "privacy.sample.target_epsilon=null privacy.sample.grad_mode=hooks "
        "training.local_steps=1 training.batch_size=1000 model._target_=dp_fedmed.models.MLP"
    )
    settings = "task='medmnist' privacy='sample'"
    report = deployment.run(f"{settings} overrides='{overrides}'", folder, 1)
    (held,) = report["guarantees"]
    assert held["noise_added_by"] == "all clients, a share each"
    assert report["observers"][0]["record"] == report["observers"][1]["record"]
    more = overrides.replace("num_rounds=1", "num_rounds=2")
    again = deployment.run(f"{settings} resume='last' overrides='{more}'", folder, 2)
    assert again["guarantees"][0]["epsilon"] > held["epsilon"]
    for name in SITES:
        state = deployment.folder / name / "state"
        assert (state / f"{name}.masking").stat().st_mode & 0o077 == 0
        lines = (state / f"{name}.unmasked.jsonl").read_text().splitlines()
        assert [json.loads(line)["body"]["round"] for line in lines] == [1, 2]


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
def test_sites_find_anomalies_with_folders_of_their_own(
    deployment: Deployment, tmp_path: Path
) -> None:
    """North has defects of its own and grey images; others have normal ones only, in colour."""
    data = {
        "north": tiles(tmp_path / "north", 20, 0),
        "south": tiles(tmp_path / "south", 40, 1000, mode="RGB", has_test=False),
        "east": tiles(tmp_path / "east", 20, 2000, mode="RGB", has_test=False),
    }
    deployment.give(data)
    server, folder = tiles(tmp_path / "public", 12, 5000), tmp_path / "run"
    overrides = (
        f"data.path={server} data.image_size=32 federation.num_clients=3 "
        "anomaly.backbone=tiny anomaly.grid=8 anomaly.dimension=4 privacy.noise=client "
        "federation.client_evaluate_every=2 privacy.sample.noise_multiplier=1.0 "
        "privacy.sample.target_epsilon=null"
    )
    settings = f"task='mvtec_folder' privacy='sample' overrides='{overrides}'"
    (guarantee,) = deployment.run(settings, folder, 2)["guarantees"]
    assert {name: client["records"] for name, client in guarantee["clients"].items()} == {
        name: trained_on("mvtec_folder", path, "data.image_size=32") for name, path in data.items()
    }, "normal images, less the seventh or so that each keeps for validation"
    private = (folder / "private" / "rounds.jsonl").read_text().splitlines()
    last = json.loads(private[-1])["clients"]
    assert last["north"]["image_auroc"] > 0.5, "its own defects are found"
    assert last["south"].keys() == {"normal_score"}, "it has none"
    public = (folder / "metrics.jsonl").read_text()
    assert "normal_score" not in public
    assert "fairness" not in public
    assert (folder / "pictures.png").exists()
    assert LedgerView(folder).history.closed == "completed"
