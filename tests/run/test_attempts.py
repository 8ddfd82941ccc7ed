"""Masked sums that outlast the server's process: found again as they were, or refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dp_fedmed.config import Config
from dp_fedmed.errors import LedgerError
from dp_fedmed.federation.secure_aggregation import ServerState, Terms
from dp_fedmed.privacy.streams import MacKey
from dp_fedmed.run.attempts import RunAttempts, forget_attempts
from dp_fedmed.run.durable import wait_for_sweeps

TERMS = Terms(run="r:0", server_round=4, attempt=7, length=3, minimum=3, colluding=1)
MODEL = {"w": np.ones(3, np.float32)}
MASKED = np.array([1, 2**63, 2**64 - 1], np.uint64)


@pytest.fixture
def attempts(tmp_path: Path, small: Callable[..., Config]) -> Callable[..., RunAttempts]:
    key = MacKey.generate()

    def make(*words: str, phase: int = 0, keeps_sums: bool = False) -> RunAttempts:
        config = small("federation.secure_aggregation=true", *words)
        return RunAttempts(tmp_path / "kept", key, config, phase=phase, keeps_sums=keeps_sums)

    return make


def state() -> ServerState:
    names = {f"site-{n}": bytes([n]) * 96 for n in range(4)}
    return ServerState(attempt=TERMS.digest(), keys=names, shared=tuple(names), added=("site-1",))


def test_what_was_about_to_be_unmasked_is_found_again(
    attempts: Callable[..., RunAttempts],
) -> None:
    first = attempts()
    assert first.begin(4, MODEL) is None
    first.save(TERMS, state(), MASKED, {"clients": 3, "examples": 100})
    first.finish(np.arange(3))
    found = attempts().begin(4, MODEL)
    assert found is not None
    assert (found.terms, found.facts) == (TERMS, {"clients": 3, "examples": 100})
    assert isinstance(found.kept, tuple)
    assert found.kept[0] == state()
    assert np.array_equal(found.kept[1], MASKED)


def test_a_sum_that_nothing_else_keeps_is_kept(attempts: Callable[..., RunAttempts]) -> None:
    first = attempts(keeps_sums=True)
    first.begin(4, MODEL)
    first.save(TERMS, state(), MASKED, {})
    first.finish(np.array([-1, 0, 5]))
    found = attempts(keeps_sums=True).begin(4, MODEL)
    assert found is not None
    assert np.array_equal(found.kept, [-1, 0, 5])  # type: ignore[arg-type]


def test_another_model_setting_round_or_phase_is_another_attempt(
    attempts: Callable[..., RunAttempts],
) -> None:
    first = attempts()
    first.begin(4, MODEL)
    first.save(TERMS, state(), MASKED, {})
    assert attempts().begin(4, {"w": np.zeros(3, np.float32)}) is None
    assert attempts("training.lr=0.7").begin(4, MODEL) is None
    assert attempts().begin(5, MODEL) is None
    assert attempts(phase=1).begin(4, MODEL) is None


def test_a_changed_file_is_refused(attempts: Callable[..., RunAttempts], tmp_path: Path) -> None:
    first = attempts()
    first.begin(4, MODEL)
    first.save(TERMS, state(), MASKED, {})
    (file,) = (tmp_path / "kept").iterdir()
    content = file.read_bytes()
    for damaged in (content[:-1] + b"\0", content[:-4], b"", content.replace(b"site-1", b"site-2")):
        file.write_bytes(damaged)
        with pytest.raises(LedgerError, match="was changed or damaged"):
            attempts().begin(4, MODEL)


def test_what_no_checkpoint_can_come_to_again_is_deleted(
    attempts: Callable[..., RunAttempts], tmp_path: Path
) -> None:
    for number in (3, 4, 5):
        kept = attempts()
        kept.begin(number, MODEL)
        kept.save(TERMS, state(), MASKED, {})
    forget_attempts(tmp_path / "kept", 4)
    wait_for_sweeps()
    assert [file.stem for file in (tmp_path / "kept").iterdir()] == ["masked_0000_000005"]
