"""Files that are synced and swept, and one process for each run directory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dp_fedmed.errors import RunLocked
from dp_fedmed.run.durable import RunLock, sweep, sync_all, wait_for_sweeps


def test_files_and_folders_are_synced_and_swept(tmp_path: Path) -> None:
    folder, file = tmp_path / "folder", tmp_path / "file"
    folder.mkdir()
    (folder / "inner").touch()
    file.touch()
    sync_all([folder, file])
    sync_all([])
    sweep([folder, file, tmp_path / "never was"])
    wait_for_sweeps()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_one_runs_at_a_time(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    with pytest.raises(RunLocked, match="is in use by another process"):
        RunLock(tmp_path)
    lock.release()
    lock.release()
    RunLock(tmp_path).release()


def test_another_process_is_kept_out_until_the_first_ends(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from dp_fedmed.run.durable import RunLock\n"
        "RunLock(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(RunLocked):
            RunLock(tmp_path)
        other.kill()
    RunLock(tmp_path).release()
