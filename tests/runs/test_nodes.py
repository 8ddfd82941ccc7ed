"""Sites say before round 1 whether they can take part; failures have the site's name."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dp_fedmed import cli
from dp_fedmed.assemble import client_runtime, serve
from dp_fedmed.config import Config, PrivacyStyle
from dp_fedmed.errors import ConfigError, NodeError
from dp_fedmed.federation.exchange import OFFLINE
from dp_fedmed.federation.messages import RoundOrder
from dp_fedmed.launch import run_federation
from dp_fedmed.learning import LocalRound
from dp_fedmed.learning.networks.learner import NetworkLearner, NetworkWork
from dp_fedmed.reporting.display import LogDisplay
from dp_fedmed.run.results import RunResult
from dp_fedmed.site.runtime import ClientRuntime
from tests.evidence.broken import Patches
from tests.runs.sites import WORDS, Sites, settings

LESS = "contributed less than asked:"
REASON = "data.path=/home/jane/x.npz has no train_labels: give a file that has"


def deploy(
    folder: Path, *words: str, offline: str = "", **rules: dict[str, Any]
) -> tuple[Config, Sites]:
    config = settings(folder, *words)
    own = {name: {"state-dir": str(folder / name)} for name in ("north", "south")}
    for name, given in rules.items():
        own[name] = {key: value for key, value in (own[name] | given).items() if value is not None}
    return config, Sites(config, own)


def run(folder: Path, *words: str, **rules: dict[str, Any]) -> RunResult:
    config, grid = deploy(folder, *words, **rules)
    return serve(grid, config, LogDisplay())


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ({"state-dir": None}, "it has no state-dir in its node-config"),
        ({"state-dir": "/dev/null/state"}, "its state-dir cannot be written"),
        ({"max-epsilon": 0.01}, "its own budget leaves no round"),
        ({"data-path": "other.class"}, "its records do not fit the shape and classes"),
        ({"allow-code": "nothing"}, "its own rules refuse these settings"),
        ({"max-epsilonn": 3.0}, "its own rules cannot be read"),
        ({"max-epsilon": "three"}, "its own rules cannot be read"),
    ],
)
def test_a_site_that_can_never_contribute_stops_the_run_before_round_1(
    rule: dict[str, Any], told: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(NodeError, match=f"^south cannot take part: {told}") as caught:
        run(tmp_path, "privacy=sample", south=rule)
    assert "north" not in str(caught.value)
    assert not (tmp_path / "run").exists(), "nothing has begun"
    assert not (tmp_path / "north" / "north.jsonl").exists(), "nobody has paid"
    assert "this client cannot take part" in caplog.text, "the details are in the site's own log"
    for value in rule.values():
        assert value is None or str(value) not in str(caught.value)


class Folding(Patches):
    """Rows that are not records, with the arguments that the settings here have."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, hidden: list[int]) -> None:
        super().__init__(input_shape, num_classes)


def test_a_site_tries_the_network_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that did not look does not decide for the sites."""
    monkeypatch.setattr(NetworkLearner, "settle", lambda self, grad_mode: grad_mode)
    network = f"model._target_={__name__}.Folding"
    with pytest.raises(NodeError, match="north cannot take part: its check of the network failed"):
        run(tmp_path, "privacy=sample", network)
    assert "gradient rows for a batch of" in caplog.text
    assert not (tmp_path / "north" / "north.jsonl").exists(), "nobody has paid"


@pytest.mark.parametrize("style", PrivacyStyle)
def test_a_label_outside_the_classes_is_found_before_round_1(
    style: PrivacyStyle, tmp_path: Path
) -> None:
    with pytest.raises(NodeError, match="south cannot take part: its records do not fit"):
        run(tmp_path, f"privacy={style}", south={"data-path": "other.class"})


def test_a_server_that_changes_its_mind_is_refused_whichever_records_are_drawn(
    tmp_path: Path,
) -> None:
    """The classes of a round are checked too, against every record, so never by a draw."""
    config, grid = deploy(tmp_path, "privacy=sample")
    runtime = client_runtime(config)
    node = next(iter(grid.nodes.values()))
    order = RoundOrder(
        input_shape=(4,), num_classes=2, run="run", streams="run", phase=0, style="sample"
    )
    assert len(runtime._enter(order, node)[0]) > 0
    with pytest.raises(ConfigError, match="class ids go from 0 to 1"):
        runtime._enter(replace(order, num_classes=1), node)


@pytest.mark.parametrize("style", ["none", "sample", "user"])
def test_a_simulated_clients_refusal_reaches_the_user_as_it_is(
    style: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(*_: object) -> None:
        raise ConfigError(REASON)

    monkeypatch.setattr(ClientRuntime, "records", refuse)
    words = [f"privacy={style}", "engine.workers=1", f"run_dir={tmp_path}/run"]
    assert cli.main(["run", *words]) == 2
    assert capsys.readouterr().err.strip() == f"dp-fedmed: {REASON}"
    assert not (tmp_path / "run").exists()


def test_an_offline_site_is_named_with_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config, grid = deploy(tmp_path, "privacy=sample")

    class Leaving(LogDisplay):
        def begin(self, done: int, planned: object) -> None:
            grid.offline.add("south")

    with caplog.at_level(logging.WARNING, logger="dp_fedmed"):
        result = serve(grid, config, Leaving())
    assert result.rounds == 2
    said = [line for line in caplog.messages if "south" in line]
    assert said == [
        f"round 1: south contributed nothing: {OFFLINE}",
        f"{LESS} south to 0 of 2 rounds",
    ]
    assert "nobody asked" not in caplog.text


def test_a_site_that_is_offline_when_asked_is_named(tmp_path: Path) -> None:
    config, grid = deploy(tmp_path, "privacy=sample")
    answers: Callable[..., Any] = grid.apps[10**6 + 1]

    def leave(message: Any, context: Any) -> Any:
        grid.offline.add("south")
        return answers(message, context)

    grid.apps[10**6 + 1] = leave  # type: ignore[assignment]
    with pytest.raises(NodeError, match="south did not say whether it can take part: it is offl"):
        serve(grid, config, LogDisplay())


def test_a_simulated_client_that_cannot_see_the_runs_folder_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: Callable[..., Config]
) -> None:
    from dp_fedmed.site import keys as secrets

    monkeypatch.setattr(secrets, "LEDGER_KEY_FILE", "elsewhere.key")
    with pytest.raises(ConfigError, match=r"run_dir=.* a folder that every Ray node shares"):
        run_federation(small("privacy=sample"))


def fails(self: NetworkWork, work: LocalRound) -> None:
    raise ValueError("whatever")


@pytest.mark.parametrize(("style", "code"), [("none", 4), ("sample", 4), ("user", 0)])
def test_a_client_that_contributed_to_no_round_marks_the_run_where_cohorts_are_no_secret(
    style: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    train = NetworkWork.train

    def lose_one(self: NetworkWork, work: LocalRound) -> Any:
        return fails(self, work) if work.name == "client-00002" else train(self, work)

    monkeypatch.setattr(NetworkWork, "train", lose_one)
    everyone = ("federation.sampler=all", "federation.sample_rate=1")
    words = [f"privacy={style}", "engine.workers=1", f"run_dir={tmp_path}/run", *everyone]
    words += ["federation.num_clients=3", "federation.num_rounds=2", *WORDS[:-5]]
    assert cli.main(["run", *words, "federation.client_evaluate_every=0"]) == code
    shown = capsys.readouterr()
    less = f"{LESS} client-00002 to 0 of 2 rounds"
    report = json.loads((tmp_path / "run" / "privacy_report.json").read_text())
    if code:
        assert shown.out.count(less) == 1
        assert report["contributed_less"] == {"client-00002": [0, 2]}
    else:
        assert "client-0000" not in shown.out + shown.err
        assert "contributed_less" not in report
    private = tmp_path / "run" / "private" / "participation.json"
    assert private.stat().st_mode & 0o077 == 0
    assert json.loads(private.read_text())["clients"] == {
        "client-00000": {"asked": 2, "contributed": 2},
        "client-00001": {"asked": 2, "contributed": 2},
        "client-00002": {"asked": 2, "contributed": 0},
    }
