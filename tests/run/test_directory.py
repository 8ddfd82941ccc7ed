"""A run's folder is nobody else's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dp_fedmed.config import compose
from dp_fedmed.errors import ConfigError
from dp_fedmed.run.directory import RunDirectory
from dp_fedmed.sweeps.directory import SweepDirectory


def test_a_folder_with_other_files_is_nobodys_run(tmp_path: Path) -> None:
    for name in ("thesis.docx", ".lock"):
        (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=r"is not empty and is no run's: it holds thesis\.docx;"):
        RunDirectory.create(compose([f"run_dir={tmp_path}"]))
    with pytest.raises(ConfigError, match="is not empty and is no run's"):
        SweepDirectory(tmp_path, ["dp-fedmed"], [])
    assert sorted(os.listdir(tmp_path)) == [".lock", "thesis.docx"]
    (tmp_path / "thesis.docx").unlink()
    assert RunDirectory.create(compose([f"run_dir={tmp_path}"])).path == tmp_path
