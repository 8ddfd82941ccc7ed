"""Every command and every example in the README and the docs runs.

Runs are cut to one round, sweeps to one seed, audits to few canaries, and places that only a reader
has (`/data/mine`, `checkpoints/my_run`) are replaced by ones that are made here; nothing else of a
command is changed.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dp_fedmed.cli import main
from dp_fedmed.config import compose
from dp_fedmed.launch import run_federation

ROOT = Path(__file__).resolve().parents[3]
NETWORK = """
from torch import nn


class MyNet(nn.Sequential):
    def __init__(self, input_shape, num_classes, width):
        size = input_shape[0] * input_shape[1] * input_shape[2]
        layers = nn.Linear(size, width), nn.ReLU(), nn.Linear(width, num_classes)
        super().__init__(nn.Flatten(), *layers)
"""
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    """The fenced code of a page."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```", page.read_text(), re.S | re.M)
    return [textwrap.dedent(code) for _, code in found]


def commands(page: Path) -> list[str]:
    """Every `dp-fedmed …` of a page, continued lines joined and shell variables filled in."""
    text = "\n".join(blocks(page, "bash")).replace("\\\n", " ")
    for name, value in re.findall(r'^(\w+)="(.*)"$', text, re.M):
        text = text.replace(f"${name}", value)
    return [line for line in text.splitlines() if line.startswith("dp-fedmed ")]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What a reader has, by the name that the docs give it."""
    home = tmp_path_factory.mktemp("reader")
    rng = np.random.default_rng(0)

    def picture(path: Path, values: np.ndarray) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(values.astype(np.uint8)).save(path)

    for number in range(30):
        case = f"case_{number:03d}"
        picture(home / "mine" / "imagesTr" / f"{case}_0000.png", rng.integers(0, 255, (32, 32)))
        mask = np.zeros((32, 32))
        mask[4:20, 8:24] = 255
        picture(home / "mine" / "labelsTr" / f"{case}.png", mask)
        picture(home / "mvtec" / "train" / "good" / f"{case}.png", rng.integers(0, 255, (64, 64)))
        if number < 8:
            for kind in ("good", "scratch"):
                picture(
                    home / "mvtec" / "test" / kind / f"{case}.png", rng.integers(0, 255, (64, 64))
                )
            mask = np.zeros((64, 64))
            mask[10:20, 30:50] = 255
            picture(home / "mvtec" / "ground_truth" / "scratch" / f"{case}_mask.png", mask)
    images = rng.integers(0, 255, (120, 28, 28), dtype=np.uint8)
    labels = (np.arange(120) % 2)[:, None]
    parts = {"train": slice(0, 80), "val": slice(80, 100), "test": slice(100, 120)}
    arrays = {f"{part}_images": images[cut] for part, cut in parts.items()}
    arrays |= {f"{part}_labels": labels[cut] for part, cut in parts.items()}
    np.savez(home / "pneumoniamnist.npz", **arrays)
    for part, n in (("train", 120), ("t10k", 40)):
        images, labels = rng.integers(0, 255, (n, 28, 28)), np.arange(n) % 10
        for what, values in (("images", images), ("labels", labels)):
            size = b"".join(int(side).to_bytes(4, "big") for side in values.shape)
            file = home / "fashion-mnist" / f"{part}-{what}-idx{values.ndim}-ubyte"
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(bytes((0, 0, 8, values.ndim)) + size + values.astype("u1").tobytes())
    from torchvision.models import mobilenet_v2

    torch.manual_seed(0)
    torch.save(mobilenet_v2().state_dict(), home / "mobilenet_v2-b0353104.pth")
    run_federation(
        compose(
            [
                *("privacy=sample", "privacy.sample.noise_multiplier=8", "federation.num_rounds=2"),
                *("privacy.sample.target_epsilon=8", "engine.workers=1", f"run_dir={home}/my_run"),
            ]
        )
    )
    words = ["privacy=none,sample", "federation.num_rounds=1", f"run_dir={home}/my_sweep"]
    assert main(["run", "--multirun", *words]) == 0
    return {
        "checkpoints/my_run": home / "my_run",
        "checkpoints/my_sweep": home / "my_sweep",
        "RUN_DIR": home / "my_run",
        "/data/mine.npz": home / "pneumoniamnist.npz",
        "/data/pneumoniamnist.npz": home / "pneumoniamnist.npz",
        "/data/mine": home / "mine",
        "/data/mvtec": home / "mvtec",
        "/data/fashion-mnist": home / "fashion-mnist",
        "/weights": home,
        "/var/lib/dp_fedmed": home,
    }


def as_here(command: str, places: dict[str, Path], folder: Path, number: int) -> list[str]:
    """A command's words with this machine's places, cut to one round."""
    words = shlex.split(command, comments=True)[1:]
    for place, here in places.items():
        own = here
        if here.name == "my_run":
            own = folder / f"my_run{number}"
        words = [re.sub(rf"(^|=|'){re.escape(place)}(?=$|/|')", rf"\g<1>{own}", w) for w in words]
        if any(str(own) in word for word in words) and not own.exists():
            shutil.copytree(here, own, symlinks=True)
    words = [word.replace("$PWD", str(folder)) for word in words]
    if words[0] == "audit" and "--canaries-count" not in words:
        words += ["--canaries-count", "100"]
    if words[0] == "run" and not {"--help", "--cfg", "--resolve"} & set(words):
        words += [f"run_dir={folder}/run{number}"]
        if any(word == "--multirun" or word.startswith("sweep=") for word in words):
            words = [word for word in words if not word.startswith("seed=")] + ["seed=0"]
        if not {"task=textures", "task=mvtec_folder"} & set(words):  # their statistic has its own
            words += ["federation.num_rounds=1"]
    return words


TRIED: set[str] = set()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", [p for p in PAGES if commands(p)], ids=name_of)
def test_every_command_of_a_page_runs(
    page: Path,
    places: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("dp_fedmed.evidence.reconstruction.STEPS", 10)
    _write_package(tmp_path)
    for number, command in enumerate(commands(page)):
        meant = re.sub(r"#.*| run_dir=\S+", "", command).strip()
        if meant in TRIED:
            continue
        TRIED.add(meant)
        try:
            code = main(as_here(command, places, tmp_path, number))
        except SystemExit as exit_:  # Hydra's --help
            code = int(exit_.code or 0)
        said = capfd.readouterr()
        assert code == 0, f"{command}\n{said.out}\n{said.err}"


def _write_package(folder: Path) -> None:
    """`my_package`, from the page that shows it."""
    package = folder / "my_package"
    package.mkdir()
    (package / "__init__.py").touch()
    rng = np.random.default_rng(1)
    for name, values in {
        "features": rng.normal(size=(200, 6)),
        "labels": rng.integers(0, 2, 200),
        "days": rng.gamma(2.0, 4.0, 200),
        "sites": np.arange(200) % 4,
        "patients": np.arange(200) // 8 * 4 + np.arange(200) % 4,
    }.items():
        np.save(folder / f"{name}.npy", values)
    for code in blocks(ROOT / "docs/bring_your_own.md", "python"):
        name = re.match(r"# my_package/(\w+\.py)\n", code)  # as its first line says
        if name is not None:
            (package / name[1]).write_text(code.replace("/data/", f"{folder}/"))
    (package / "nets.py").write_text(NETWORK)


TRAINS = re.compile(r"dp_fedmed\.(run|resume)\(|run_federation\(|\.start\(|run_simulation\(")


def _marks(code: str) -> list[pytest.MarkDecorator]:
    """A whole run in an interpreter of its own takes seconds."""
    return [pytest.mark.slow] if TRAINS.search(code) else []


EXAMPLES = [
    pytest.param(code, id=f"{name_of(page)}-{number}", marks=_marks(code))
    for page in PAGES
    for number, code in enumerate(blocks(page, "python"))
    if ">>>" not in code and "def load" not in code  # doctests run elsewhere, `load` above
]


@pytest.mark.parametrize("code", EXAMPLES)
def test_every_example_runs(code: str, tmp_path: Path) -> None:
    file = tmp_path / "example.py"
    file.write_text(code)
    done = subprocess.run(
        [sys.executable, file.name], cwd=tmp_path, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr


def test_the_site_builds_strictly(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    settings = (tmp_path / "site" / "schemas" / "config" / "index.html").read_text()
    assert "privacy.sample.target_epsilon" in settings
