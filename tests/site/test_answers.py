"""What a client says to questions and after failures: to a server no more than it may know."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict

from dp_fedmed.errors import ConfigError, SiteRefused
from dp_fedmed.federation.flower_compat import make_context, set_identity, set_message_id
from dp_fedmed.federation.messages import CLIENT_FAILED, QUERY, READY, VERSION
from dp_fedmed.site.answers import answer, check_ready, introduce

SIMULATED: dict[str, Any] = {"partition-id": 1, "num-partitions": 3}
DEPLOYED: dict[str, Any] = {"client-id": "north", "data-path": "/mnt/scans"}


def asked(node: dict[str, Any], kind: str = QUERY) -> tuple[Message, Context]:
    set_identity(run_id=1)
    message = Message(RecordDict(), 1, kind)
    set_message_id(message, "m")
    return message, make_context(1, 1, node)


def runtime(sizes: bool = False, run_dir: Path | str = "", **more: object) -> Any:
    config = SimpleNamespace(asks_for_sizes=sizes, run_dir=str(run_dir))
    return SimpleNamespace(config=config, records=lambda node: (range(42), range(5)), **more)


def said(message: Message) -> ConfigRecord:
    return message.content.config_records["client"]


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*_: object) -> Any:
        raise error

    return fail


def test_a_partition_introduces_itself_and_is_no_site() -> None:
    found = said(introduce(*asked(SIMULATED), lambda context: runtime()))
    assert dict(found) == {"version": VERSION, "name": "client-00001", "num-partitions": 3}


@pytest.mark.parametrize(("node", "own"), [(SIMULATED, False), (DEPLOYED, True)])
def test_sizes_are_told_where_they_are_asked_for(node: dict[str, Any], own: bool) -> None:
    found = said(introduce(*asked(node), lambda context: runtime(sizes=True)))
    assert found["num-records"] == 42
    assert found.get("own-data", False) is own


@pytest.mark.parametrize("question", [introduce, check_ready])
def test_the_owner_of_a_simulation_reads_the_reason_and_another_party_does_not(
    question: Callable[..., Message], caplog: pytest.LogCaptureFixture
) -> None:
    broken = failing(ConfigError("data.path=/home/jane is empty"))
    told = said(question(*asked(SIMULATED, READY), broken))
    assert told["refusal"] == "data.path=/home/jane is empty"
    assert not caplog.records, "who is told in full needs no log"
    with caplog.at_level(logging.ERROR):
        told = said(question(*asked(DEPLOYED, READY), broken))
    assert (told["name"], told["own-data"]) == ("north", True)
    assert "jane" not in str(dict(told))
    assert "jane" in caplog.text, "the site's own log has it"


def test_a_site_tells_what_it_decided_to_tell() -> None:
    broken = failing(SiteRefused("/mnt/keys has mode 0777", "its state-dir is open"))
    told = str(said(check_ready(*asked(DEPLOYED, READY), broken))["refusal"])
    assert told.startswith("its state-dir is open")
    assert "/mnt" not in told


def test_a_node_without_a_name_is_refused_and_has_none() -> None:
    found = said(introduce(*asked({}), lambda context: runtime()))
    assert "name" not in found
    assert found["own-data"] is True
    assert "NodeError" in str(found["refusal"])


def test_a_client_that_can_take_part_says_so_after_it_looked() -> None:
    looked: list[object] = []
    site = runtime(check=lambda message, context: looked.append(message))
    message, context = asked(SIMULATED, READY)
    assert dict(said(check_ready(message, context, lambda _: site))) == {"version": VERSION}
    assert looked == [message]


def test_work_is_answered_with_what_it_gave() -> None:
    content = RecordDict({"metrics": MetricRecord({"loss": 1.0})})
    message, context = asked(SIMULATED, "train")
    site = runtime()
    reply = answer("train", lambda *given: content, message, context, lambda _: site)
    assert not reply.has_error()
    assert reply.content.metric_records["metrics"]["loss"] == 1.0


def test_a_simulated_failure_is_answered_without_a_word_and_kept_in_private(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "private").mkdir()
    site, (message, context) = runtime(run_dir=tmp_path), asked(SIMULATED, "train")
    broken = failing(ValueError("record 99 of /home/jane"))
    reply = answer("train", broken, message, context, lambda _: site)
    assert reply.error.code == CLIENT_FAILED
    assert "99" not in reply.error.reason
    assert "ValueError in the client" in reply.error.reason
    kept = (tmp_path / "private" / "clients.log").read_text()
    assert "client-00001 could not train" in kept
    assert "record 99 of /home/jane" in kept
    assert not caplog.records
    assert "99" not in "".join(capfd.readouterr())


def test_a_sites_failure_is_in_its_own_log_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "private").mkdir()
    site, (message, context) = runtime(run_dir=tmp_path), asked(DEPLOYED, "evaluate")
    broken = failing(ValueError("record 99"))
    with caplog.at_level(logging.ERROR):
        reply = answer("evaluate", broken, message, context, lambda _: site)
    assert "99" not in reply.error.reason
    assert "could not evaluate" in caplog.text
    assert "record 99" in caplog.text
    assert not list((tmp_path / "private").iterdir())


def test_a_runtime_that_cannot_be_made_is_a_failure_too() -> None:
    message, context = asked(SIMULATED, "train")
    broken = failing(SiteRefused("of its own", "its own rules cannot be read"))
    reply = answer("train", lambda *_: RecordDict(), message, context, broken)
    assert reply.error.reason.startswith("its own rules cannot be read")
    assert "of its own" not in reply.error.reason
