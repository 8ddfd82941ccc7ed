"""A wheel in an environment and a folder of its own: conf/ is inside it, and its ranges hold."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
UV = str(Path(sys.executable).parent / "uv")

pytestmark = pytest.mark.slow


def done(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    # Ray runs in this process leave the checkout in PYTHONPATH.
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=clean, timeout=200)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    built = done(sys.executable, "-m", "pip", "--quiet", "wheel", *options, str(ROOT), cwd=folder)
    assert built.returncode == 0, built.stderr
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def python(wheel: Path) -> Path:
    """Of an environment that has the packages of this one, and the wheel instead of the checkout.

    The wheel is installed by its ranges alone: no lock, no index, so that every package of this
    environment must be within them, and none may be missing.
    """
    environment = wheel.parent / "env"
    venv.create(environment, with_pip=False)
    (site,) = (environment / "lib").glob("python*/site-packages")
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if "dp_fedmed" not in entry.name:
            (site / entry.name).symlink_to(entry)
    own = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(own)]
    installed = done(*pip, "install", "--no-index", str(wheel), cwd=wheel.parent)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    assert "Successfully installed dp-fedmed-" in installed.stdout, "and nothing else"
    return own


def test_an_installed_wheel_runs_from_another_folder(wheel: Path, python: Path) -> None:
    folder = wheel.parent
    show = "from dp_fedmed.config import conf_dir; print(conf_dir())"
    where = done(python, "-c", show, cwd=folder)
    assert where.stdout.strip().endswith("site-packages/dp_fedmed/conf"), where.stderr
    assert where.stdout.startswith(str(folder))
    entry = "from dp_fedmed.cli import entry; entry()"
    ran = done(python, "-c", entry, "run", "federation.num_rounds=2", cwd=folder)
    assert ran.returncode == 0, ran.stderr
    (model,) = (folder / "checkpoints").glob("*_breast_cancer_sample/model.*")
    reported = done(python, "-c", entry, "report", str(model.parent), cwd=folder)
    assert reported.returncode == 0, reported.stderr
    assert "<svg" in (model.parent / "report.html").read_text()


@pytest.mark.parametrize("resolution", ["highest", "lowest-direct"])
def test_the_ranges_alone_can_be_met_by_what_is_published(resolution: str, wheel: Path) -> None:
    """What `pip install` would choose on a new machine, today's versions or the oldest allowed."""
    words = ["--resolution", resolution, "--prerelease", "disallow", "--quiet"]
    (wheel.parent / "only.in").write_text(f"{wheel}\n")
    found = done(UV, "pip", "compile", "only.in", *words, cwd=wheel.parent)
    if "Failed to fetch" in found.stderr or "error sending request" in found.stderr:
        pytest.skip("no package index can be reached")
    assert found.returncode == 0, found.stderr
    versions = dict(line.split("==") for line in found.stdout.split() if "==" in line)
    assert {"torch", "torchvision", "flwr", "opacus"} <= versions.keys()
