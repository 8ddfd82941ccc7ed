"""The ClientApp: what it answers, for which settings, and by whose rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from dp_fedmed import client_app
from dp_fedmed.assemble import client_runtime
from dp_fedmed.client_app import build_client_app
from dp_fedmed.config import Config
from dp_fedmed.federation.flower_compat import make_context, set_identity, set_message_id
from dp_fedmed.federation.messages import QUERY

NODE: dict[str, Any] = {"partition-id": 2, "num-partitions": 4}


def said(app: ClientApp, context: Context, kind: str = QUERY) -> dict[str, Any]:
    set_identity(run_id=1)
    message = Message(RecordDict(), 1, kind)
    set_message_id(message, "m")
    return dict(app(message, context).content.config_records["client"])


def context_of(node: dict[str, Any], run_id: int = 1, **run_config: str) -> Context:
    return dataclasses.replace(make_context(run_id, 1, node), run_config=run_config)


def test_a_client_tells_its_name_and_its_size_where_that_is_asked_for(
    small: Callable[..., Config],
) -> None:
    found = said(build_client_app(small("privacy=none")), context_of(NODE))
    assert found["name"] == "client-00002"
    assert "num-records" not in found
    config = small("privacy=sample")
    found = said(build_client_app(config), context_of(NODE))
    records, _ = client_runtime(config).records(NODE)
    assert found["num-records"] == len(records)


@pytest.mark.parametrize("given", ["config", "runtime"])
def test_a_sites_rules_are_asked_first_wherever_the_settings_come_from(
    given: str, small: Callable[..., Config], caplog: pytest.LogCaptureFixture
) -> None:
    config = small("privacy=none")
    made = build_client_app(
        **{given: config if given == "config" else client_runtime(config)}  # type: ignore[arg-type]
    )
    site = {"client-id": "north", "data-path": "/nowhere", "max-epsilon": 3.0}
    told = str(said(made, context_of(site))["refusal"])
    assert told.startswith("its own rules refuse these settings")
    assert "adds no noise at this client" in caplog.text


def test_a_runtime_is_made_once_for_each_run_and_run_config(
    small: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Config] = []

    def counted(config: Config) -> Any:
        made.append(config)
        return client_runtime(config)

    monkeypatch.setattr(client_app, "client_runtime", counted)
    app = build_client_app()
    words = {"task": "breast_cancer", "privacy": "sample"}
    for run_id, more, count in (
        (1, {}, 1),
        (1, {}, 1),
        (2, {}, 2),
        (2, {"overrides": "seed=3"}, 3),
    ):
        assert said(app, context_of(NODE, run_id, **words | more))["name"] == "client-00002"
        assert len(made) == count
    assert [config.seed for config in made] == [0, 0, 3]
