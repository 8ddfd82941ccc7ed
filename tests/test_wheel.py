"""A wheel in an environment and a folder of its own: conf/ travels inside it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_an_installed_wheel_runs_from_another_folder(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)],
        check=True,
        capture_output=True,
    )
    environment = tmp_path / "env"
    venv.create(environment, with_pip=False)
    site = next((environment / "lib").glob("python*/site-packages"))
    wheel = next(tmp_path.glob("*.whl"))
    subprocess.run(
        [*pip, "install", "--no-deps", "--target", str(site), str(wheel)],
        check=True,
        capture_output=True,
    )
    # The dependencies of this environment, but not the checkout that is installed in it.
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    python = environment / "bin" / "python"
    # Ray runs in this process leave the checkout in PYTHONPATH.
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    where = subprocess.run(
        [python, "-c", "from dp_fedmed.config import conf_dir; print(conf_dir())"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=clean,
    )
    assert where.stdout.strip() == str(site / "dp_fedmed" / "conf"), where.stderr
    entry = "from dp_fedmed.cli import entry; entry()"
    done = subprocess.run(
        [python, "-c", entry, "run", "privacy=sample", "federation.num_rounds=2"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=clean,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    (model,) = (tmp_path / "checkpoints").glob("*_breast_cancer_sample/model.*")
    reported = subprocess.run(
        [python, "-c", entry, "report", str(model.parent)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=clean,
    )
    assert reported.returncode == 0, reported.stderr
    assert "<svg" in (model.parent / "report.html").read_text()
