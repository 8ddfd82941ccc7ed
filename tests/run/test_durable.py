"""Files that are whole or not there, and one process for each run directory."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dp_fedmed.errors import RunLocked
from dp_fedmed.privacy.files import write_file
from dp_fedmed.run.durable import RunLock, sweep, sync_all, wait_for_sweeps


@pytest.mark.parametrize("is_durable", [True, False])
def test_a_file_is_replaced_whole_with_its_mode(is_durable: bool, tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"before")
    write_file(target, b"after", mode=0o600, durable=is_durable)
    assert target.read_bytes() == b"after"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [target]


def test_a_write_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"before")

    def refuse(*_: object) -> None:
        raise OSError("disk is gone")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="disk is gone"):
        write_file(target, b"after")
    assert target.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [target], "nothing is left lying about"


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
