"""The settings that a run was started with are those that it goes on with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dp_fedmed import __version__
from dp_fedmed.config import (
    compose,
)
from dp_fedmed.config.resume import stored_settings
from dp_fedmed.errors import ConfigError


def test_a_run_that_is_named_by_its_file_resumes_with_its_task_named_again(tmp_path: Path) -> None:
    words = ["privacy=none", "task=medmnist", "data.path=/data/chest.npz", f"run_dir={tmp_path}"]
    config = compose(words)
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    again = compose([f"run_dir={tmp_path}", "resume=last", "task=medmnist", "privacy=none"])
    assert again.task == config.task
    assert again.data == config.data


@pytest.mark.parametrize(
    ("writer", "said"),
    [
        ("9.1.0", r"written by dp-fedmed 9\.1\.0.*pip install dp-fedmed==9\.1\.0"),
        (None, "written by another version"),
        (__version__, "take out what was put in by hand"),
    ],
)
def test_settings_of_another_version_name_it(writer: str | None, said: str, tmp_path: Path) -> None:
    text = (
        compose([f"run_dir={tmp_path}"])
        .to_yaml()
        .replace("training:\n", "training:\n  warmup: 3\n")
    )
    (tmp_path / "config.yaml").write_text(text)
    if writer is not None:
        stretch = {"after_round": -1, "versions": {"dp_fedmed": writer}}
        (tmp_path / "environment.json").write_text(json.dumps({"stretches": [stretch]}))
    with pytest.raises(ConfigError, match=rf"the setting 'training\.warmup', which.*{said}"):
        stored_settings(tmp_path)
