"""Messages of secure aggregation at a client: its answers, and what it does not go along with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from dp_fedmed.config import Config
from dp_fedmed.errors import ConfigError, MaskingRefused, SiteRefused
from dp_fedmed.federation import RoundOrder
from dp_fedmed.federation.flower_compat import make_context, set_identity, set_message_id
from dp_fedmed.federation.secure_aggregation import Advertisement, Terms
from dp_fedmed.federation.secure_aggregation.attempt import MASKING, TERMS
from dp_fedmed.privacy.streams.keys import LEDGER_KEY_FILE, SECRET_FOLDER, MacKey
from dp_fedmed.site.masked_answers import MaskedAnswers, terms_of

NODE: dict[str, Any] = {"partition-id": 1, "num-partitions": 4}


@pytest.fixture
def config(small: Callable[..., Config]) -> Config:
    made = small("federation.secure_aggregation=true", "federation.max_colluding=1")
    secrets = Path(made.run_dir) / SECRET_FOLDER
    secrets.mkdir(parents=True)
    MacKey.create(secrets / LEDGER_KEY_FILE)
    return made


def terms(**changed: Any) -> Terms:
    agreed = {"run": "r:0", "server_round": 1, "attempt": 1, "length": 2, "minimum": 4}
    return Terms(**{"colluding": 1, **agreed, **changed})


def sent(agreed: Terms | None, stage: dict[str, Any] | None = None) -> Message:
    set_identity(run_id=1)
    content = RecordDict({MASKING: ConfigRecord(stage or {})})
    if agreed is not None:
        content[TERMS] = ConfigRecord(dict(agreed.to_record()))
    message = Message(content, 1, "query.keys")
    set_message_id(message, "m")
    return message


def test_a_client_tells_its_keys_and_the_same_again(config: Config) -> None:
    context = make_context(1, 1, NODE)
    first = MaskedAnswers(config).advertise(sent(terms()), context)
    said = Advertisement.from_record(first.config_records[MASKING])
    assert said.sender == "client-00001"
    again = MaskedAnswers(config).advertise(sent(terms()), context)
    assert again.config_records[MASKING] == first.config_records[MASKING]


@pytest.mark.parametrize(("changed", "words"), [({"colluding": 0}, ()), ({}, ("open",))])
def test_a_server_with_other_settings_gets_no_keys(
    changed: dict[str, int], words: tuple[str, ...], config: Config, small: Callable[..., Config]
) -> None:
    used = small() if words else config
    with pytest.raises(ConfigError, match="another secure aggregation"):
        MaskedAnswers(used).advertise(sent(terms(**changed)), make_context(1, 1, NODE))


def test_messages_without_terms_or_stage_are_refused(config: Config) -> None:
    answers, context = MaskedAnswers(config), make_context(1, 1, NODE)
    for work in (answers.advertise, answers.share, answers.unmask):
        with pytest.raises(MaskingRefused, match="has no"):
            work(sent(None), context)
    with pytest.raises(MaskingRefused, match="has no"):
        answers.share(sent(terms()), context)


def test_terms_of_another_round_or_run_than_the_order_are_refused(config: Config) -> None:
    answers = MaskedAnswers(config)
    order = RoundOrder(
        input_shape=(2,), num_classes=2, run="r", streams="s", phase=0, style="none", server_round=2
    )
    answer = {"w": np.zeros(2, np.int64)}
    for other in (terms(), terms(run="q:0", server_round=2)):
        with pytest.raises(ConfigError, match="do not agree"):
            answers.masked(answer, "about", order, sent(other), NODE)
    assert terms_of(sent(terms())) == terms()


def test_a_site_of_its_own_needs_a_folder(config: Config) -> None:
    with pytest.raises(SiteRefused, match="state-dir"):
        MaskedAnswers(config).of({"client-id": "north"})
