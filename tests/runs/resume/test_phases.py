"""What may change when a run goes on, and what that costs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dp_fedmed.config import compose
from dp_fedmed.errors import ConfigError, RunFinished
from dp_fedmed.launch import run_federation
from dp_fedmed.run.verify import LedgerView
from tests.runs.resume.runs import (
    SETTINGS,
    charges,
    damage,
    resume,
)


@pytest.mark.parametrize("style", ["sample", "hybrid"])
def test_more_rounds_share_what_is_left_of_the_budget(
    style: str, copy: Callable[[str], Path]
) -> None:
    path = copy(style)
    result = resume(path, "federation.num_rounds=8")
    assert (result.stopped, result.rounds) == ("completed", 8)
    view = LedgerView(path)
    assert charges(path) == list(range(1, 9))
    assert view.history.phase == 1
    assert view.epsilons()["sample"] <= 3.0
    assert view.epsilons()["sample"] > 2.9
    report = json.loads((path / "privacy_report.json").read_text())["guarantees"][0]
    assert len(report["clients"]["client-00000"]["history"]) == 2, "two phases, two σ"
    assert report["epsilon"] <= 3.0


def test_a_finished_run_is_extended_as_a_new_phase_if_its_budget_grows(
    copy: Callable[[str], Path],
) -> None:
    path = copy("sample")
    resume(path)
    with pytest.raises(ConfigError, match=r"target_epsilon=3 is spent.*new_phase=true"):
        resume(path, "federation.num_rounds=6")
    assert not list(LedgerView(path).problems()), "a refused extension changes nothing"
    more = ["federation.num_rounds=6", "privacy.sample.target_epsilon=5"]
    with pytest.raises(ConfigError, match=r"rests on privacy.sample.target_epsilon=3.0 \(now 5.0"):
        resume(path, *more)
    assert resume(path, *more, "new_phase=true").rounds == 6
    view = LedgerView(path)
    assert 4.9 < view.epsilons()["sample"] <= 5.0
    assert view.history.phase == 1


@pytest.mark.parametrize(
    "change",
    [
        *("privacy.sample.target_delta=1e-6", "privacy.sample.max_grad_norm=2"),
        *("privacy.sample.noise_multiplier=9", "training.batch_size=16"),
        *("federation.max_participations=3", "privacy.accountant=pld"),
    ],
)
def test_what_the_guarantee_rests_on_changes_only_in_a_declared_phase(
    change: str, copy: Callable[[str], Path]
) -> None:
    path = copy("sample")
    with pytest.raises(ConfigError, match=rf"rests on .*{change.split('=')[0]}"):
        resume(path, change)


@pytest.mark.parametrize(
    "change",
    [
        *("seed=1", "data.partition.name=dirichlet", "model.args.hidden=[5]", "task=digits"),
        *("federation.num_clients=5", "data.val_fraction=0.3", "privacy=hybrid"),
    ],
)
@pytest.mark.parametrize("declared", [[], ["new_phase=true"]])
def test_other_data_clients_models_or_styles_are_another_run(
    change: str, declared: list[str], copy: Callable[[str], Path]
) -> None:
    """A record would be at another client, and composing by client would count too little."""
    with pytest.raises(ConfigError, match=r"is another run|cannot replace"):
        resume(copy("sample"), change, *declared)


def test_a_new_phase_adds_to_what_was_spent(copy: Callable[[str], Path]) -> None:
    path = copy("sample")
    before = LedgerView(path).epsilons()["sample"]
    change = ["privacy.sample.noise_multiplier=20", "privacy.sample.target_epsilon=null"]
    assert resume(path, *change, "new_phase=true").stopped == "completed"
    view = LedgerView(path)
    assert view.epsilons()["sample"] > before
    sigmas = [
        sigma for sigma, _, _ in view.account.accountant.get_history("record", "client-00000")
    ]  # type: ignore[union-attr]
    assert 20.0 in sigmas
    assert len(sigmas) == 2


def test_steering_may_change_and_is_said(
    copy: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    path = copy("sample")
    assert resume(path, "training.lr=0.01", "engine.workers=2").stopped == "completed"
    assert charges(path) == [1, 2, 3, 4]


def test_a_new_phase_clips_to_its_own_norm(copy: Callable[[str], Path]) -> None:
    path = copy("user")
    seen: list[float] = []
    from dp_fedmed.privacy.mechanisms.client_updates import ClientUpdates

    original = ClientUpdates.empty

    def noting(self, like):  # type: ignore[no-untyped-def]
        seen.append(self.max_norm)
        return original(self, like)

    patch = pytest.MonkeyPatch()
    patch.setattr(ClientUpdates, "empty", noting)
    resume(path, "new_phase=true", "privacy.user.max_grad_norm=0.125")
    patch.undo()
    assert seen == [0.125, 0.125]


def test_participations_count_over_phases(tmp_path: Path) -> None:
    path = tmp_path / "run"
    fixed = ["privacy.sample.noise_multiplier=5", "privacy.sample.target_epsilon=null"]
    words = ["privacy=sample", *SETTINGS, *fixed, "federation.max_participations=3"]
    result = run_federation(compose([*words, f"run_dir={path}"]))
    assert (result.rounds, result.stopped[:6]) == (3, "budget")
    with pytest.raises(RunFinished):
        resume(path)
    with pytest.raises(ConfigError, match="max_participations=3 is used up by every client"):
        resume(path, "federation.num_rounds=9")
    assert charges(path) == [1, 2, 3]
    more = ["federation.num_rounds=9", "federation.max_participations=5", "new_phase=true"]
    assert resume(path, *more).rounds == 5


def test_a_sampler_that_does_not_compose_is_refused_before_anything_is_written(
    copy: Callable[[str], Path],
) -> None:
    path = copy("user")
    with pytest.raises(ConfigError, match="the two do not compose"):
        resume(path, "federation.sampler=fixed", "new_phase=true")
    assert resume(path).stopped == "completed"


@pytest.mark.parametrize("how", ["noise key missing", "noise key readable"])
def test_a_lost_key_can_be_replaced_in_a_new_phase(how: str, copy: Callable[[str], Path]) -> None:
    path = copy("hybrid")
    damage(path, how)
    assert resume(path, "new_phase=true").stopped == "completed"
    assert LedgerView(path).history.phase == 1
    assert not list(LedgerView(path).problems())
