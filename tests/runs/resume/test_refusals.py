"""Where a run must not go on: one clear sentence, and nothing lost."""

from __future__ import annotations

import errno
import os
import pickle
import resource
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dp_fedmed import crash_points
from dp_fedmed.config import compose
from dp_fedmed.errors import CheckpointError, ConfigError, RunLocked
from dp_fedmed.launch import run_federation
from dp_fedmed.run import server_run
from dp_fedmed.run.durable import RunLock
from dp_fedmed.run.resume import resume_run
from dp_fedmed.run.verify import LedgerView
from tests.runs.resume.runs import (
    REFUSALS,
    SETTINGS,
    Stopper,
    charges,
    compose_as_given,
    damage,
    files_of,
    model_bytes,
    resume,
)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("ledger missing", r"ledger\.jsonl is missing, so what was spent is unknown"),
        ("ledger shorter", r"ledger\.jsonl is shorter than .*round_000\d/checkpoint\.json says"),
        ("ledger edited", r"ledger\.jsonl: record \d was edited, reordered"),
        ("ledger reordered", r"ledger\.jsonl: record 1 was edited, reordered"),
        ("ledger of another run", r"config\.yaml was edited"),
        ("ledger newer", r"ledger\.jsonl has schema 2, this version reads up to 1: update"),
        ("checkpoint changed", r"round_0002/model\.safetensors was changed or damaged"),
        ("checkpoint half", r"round_0002/model\.safetensors was changed or damaged"),
        ("checkpoint missing", r"round_0002/checkpoint\.json is missing: restore it, or resume"),
        ("checkpoint newer", r"checkpoint\.json has schema 2, this version reads up to 1: update"),
        ("checkpoint edited", r"checkpoint\.json is not what the ledger says was written"),
        ("checkpoint empty", r"round_0002/checkpoint\.json is not a checkpoint"),
        ("noise key missing", r"noise_0\.key is missing, so no round can be repeated exactly"),
        ("noise key readable", r"noise_0\.key has mode 0644, so others may have read"),
        ("noise key other", r"noise_0\.key is not the noise key that the phase began with"),
        ("ledger key missing", r"ledger\.key is missing, so the ledger cannot be checked"),
        ("ledger key readable", r"ledger\.key has mode 0640"),
        ("config edited", r"config\.yaml was edited: restore it, and give changes on the command"),
        ("config missing", r"config\.yaml is missing"),
        ("client ledger edited", r"client-\d+\.jsonl: record \d was edited"),
    ],
)
def test_what_cannot_be_trusted_is_refused_in_one_sentence(
    how: str, said: str, copy: Callable[[str], Path]
) -> None:
    path = copy("hybrid")
    damage(path, how)
    with pytest.raises(REFUSALS, match=said) as refused:
        resume_run(compose_as_given(path))
    assert "\n" not in str(refused.value)


def test_a_refused_command_changes_nothing(copy: Callable[[str], Path]) -> None:
    path = copy("sample")
    resume(path)
    before = {name: (path / name).read_bytes() for name in files_of(path)}
    for words in (
        ["resume=round:2", "federation.num_rounds=5"],
        ["federation.num_rounds=9"],
        ["new_phase=true", "federation.num_rounds=9"],
        ["training.lr=0.5", "federation.num_rounds=9"],
    ):
        with pytest.raises(ConfigError, match="target_epsilon=3 is spent"):
            resume(path, *words)
        after = {name: (path / name).read_bytes() for name in files_of(path)}
        assert before == after, words


def test_a_damaged_last_checkpoint_can_be_left_behind(copy: Callable[[str], Path]) -> None:
    path = copy("hybrid")
    (path / "round_0002" / "checkpoint.json").write_text("{")
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        resume(path)
    assert resume(path, "resume=round:1").stopped == "completed"
    assert charges(path) == [1, 2, 3, 4]


def test_a_run_whose_plan_is_refused_leaves_no_directory(tmp_path: Path) -> None:
    words = ["privacy=sample", *SETTINGS, f"run_dir={tmp_path}/run"]
    with pytest.raises(ConfigError, match="target_epsilon"):
        run_federation(compose([*words, "privacy.sample.target_epsilon=0.001"]))
    assert not (tmp_path / "run").exists()
    assert run_federation(compose(words)).stopped == "completed"


def test_a_client_cannot_stall_the_server_with_charges() -> None:
    from dp_fedmed.federation.plan import ClientPlan, PrivacyPlan
    from dp_fedmed.federation.privacy_guard import PrivacyGuard
    from dp_fedmed.run.phases import limits_of

    own = ClientPlan(records=9, sample_rate=0.5, steps=1, participations=9, noise_multiplier=2.0)
    plan = PrivacyPlan(delta_sample=1e-5, delta_user=None, clients={"a": own}, user_event=None)
    guard = PrivacyGuard(limits_of(compose(["privacy=sample"])), plan)
    order = guard.order("a")
    assert order is not None
    for charges_told in (10**9, 0, "many", -1):
        with pytest.raises(ValueError, match=r"answered|not a count"):
            guard.check_reply("a", {**order.to_dict(), "charges": charges_told})


def test_settings_that_a_crash_kept_from_their_file_come_from_the_ledger(
    copy: Callable[[str], Path],
) -> None:
    path = copy("sample")
    before = (path / "config.yaml").read_text()
    change = ["new_phase=true", "privacy.sample.target_epsilon=7", "training.lr=0.01"]
    resume(path, *change, display=Stopper(3))
    after = (path / "config.yaml").read_text()
    assert after != before
    (path / "config.yaml").write_text(before)  # as if killed before it was written
    assert resume(path).stopped == "completed"
    assert (path / "config.yaml").read_text() == after
    assert LedgerView(path).epsilons()["sample"] > 6.5


def test_a_torn_last_line_is_dropped_with_a_notice(
    copy: Callable[[str], Path],
    references: Callable[[str], tuple[bytes, dict[str, float]]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = copy("hybrid")
    with open(path / "private" / "ledger.jsonl", "ab") as file:
        file.write(b'{"n":9,"kind":"CHARGE","body":{"rou')
    assert resume(path).stopped == "completed"
    assert "35 bytes was never written to its end and is dropped" in caplog.text
    assert (model_bytes(path), LedgerView(path).epsilons()) == references("hybrid")


def test_a_model_with_nan_is_refused(copy: Callable[[str], Path]) -> None:
    from dp_fedmed.run.checkpoint import from_bytes, to_bytes

    content = to_bytes({"w": np.array([1.0, np.nan], dtype=np.float32)})
    with pytest.raises(CheckpointError, match=r"model.safetensors: tensor 'w' holds NaN"):
        from_bytes(Path("model.safetensors"), content)


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, target: str) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return (open, (self.target, "w"))


def test_a_pickle_in_the_run_directory_is_never_opened(
    copy: Callable[[str], Path], tmp_path: Path
) -> None:
    path, target = copy("none"), tmp_path / "exploded"
    bomb = pickle.dumps(Bomb(str(target)))
    for place in (path, path / "round_0002", path / "private", path / "private" / "releases"):
        place.mkdir(exist_ok=True)
        for name in ("model.pt", "checkpoint.pt", "optimizer.pkl", "charge_000001.pt"):
            (place / name).write_bytes(bomb)
    assert resume(path).stopped == "completed"
    assert not target.exists()
    (path / "round_0004" / "model.safetensors").write_bytes(bomb)
    assert list(LedgerView(path).problems())
    assert not target.exists()


def test_two_processes_cannot_work_on_one_run(copy: Callable[[str], Path]) -> None:
    path = copy("sample")
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        RunLock(path)
        os.write(writer, b"x")
        signal.pause()
    os.read(reader, 1)
    try:
        with pytest.raises(RunLocked, match=r"in use by another process \(\.lock is locked\)"):
            resume(path)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    lock = RunLock(path)
    with pytest.raises(RunLocked):
        resume(path)
    lock.release()
    assert resume(path).stopped == "completed"


def test_changed_data_are_noticed(
    copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dp_fedmed.data import load_data

    def changed(config, seed):  # type: ignore[no-untyped-def]
        data = load_data(config, seed=seed)
        other = data.train.x.copy()
        other[0] += 1.0
        return replace(data, train=replace(data.train, x=other))

    path = copy("sample")
    monkeypatch.setattr(server_run, "load_data", changed)
    with pytest.raises(ConfigError, match=r"records of data\.name=breast_cancer have changed"):
        resume(path)


def test_a_full_disk_stops_the_run_and_leaves_what_was_committed(
    copy: Callable[[str], Path],
    references: Callable[[str], tuple[bytes, dict[str, float]]],
) -> None:
    """A limit on file sizes is the kernel's own refusal to write, met in the middle of a round."""
    path = copy("hybrid")
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

        def fill(point: str) -> None:
            if point == "release:before":
                resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))

        crash_points.at_crash_point = fill
        try:
            stopped = resume(path).stopped
            os._exit(0 if "cannot be written (File too large)" in stopped else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert LedgerView(path).history.round == 2
    assert resume(path).stopped == "completed"
    assert charges(path) == [1, 2, 3, 4]
    assert (model_bytes(path), LedgerView(path).epsilons()) == references("hybrid")


def test_no_space_at_a_checkpoint_is_said_with_the_way_out(
    copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copy("none")

    def full(point: str) -> None:
        if point == "checkpoint:checkpoint.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(crash_points, "at_crash_point", full)
    result = resume(path)
    assert "No space left on device" in result.stopped
    assert f"dp-fedmed resume {path}" in result.stopped
    assert not list(path.glob(".tmp-*"))
    monkeypatch.undo()
    assert LedgerView(path).history.round == 2
