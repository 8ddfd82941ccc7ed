"""Loading a saved accountant: completely, or with a clean error and nothing changed."""

import copy
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_fedmed.privacy import PrivacyAccountant, PrivacyEvent


def saved():
    accountant = PrivacyAccountant(1e-5, target_epsilon=8.0, user_target_delta=1e-4)
    for round_num in (1, 2):
        for client in ("a", "b"):
            accountant.record_round(
                round_num,
                client=client,
                noise_multiplier_sample=1.0,
                sample_rate_sample=0.1,
                steps_sample=5,
                noise_multiplier_user=2.0,
                sample_rate_user=0.2,
                steps_user=1,
            )
    return accountant


STATE = json.loads(json.dumps(saved().state_dict()))
EPSILONS = (saved().get_cumulative_sample_epsilon(), saved().get_cumulative_user_epsilon())


def test_everything_survives():
    fresh = PrivacyAccountant(0.5, method="pld")
    fresh.load_state_dict(STATE)
    assert fresh.state_dict() == saved().state_dict()
    assert fresh.method == "rdp"
    assert fresh.get_summary() == saved().get_summary()


def at(path, value):
    state = copy.deepcopy(STATE)
    target = state
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return state


EVENT = ("events", 0, "event")
BROKEN = [
    None,
    [],
    {},
    at(("version",), 2),
    at(("version",), True),
    at(("version",), "1"),
    at(("method",), "gdp"),
    at(("target_delta",), 0.0),
    at(("target_epsilon",), -1.0),
    at(("extra",), 1),
    at(("events",), None),
    at(("events",), {}),
    at(("events",), []),
    at(("events", 0, "client"), 3),
    at(("events", 0, "client"), "*"),
    at((*EVENT, "noise_multiplier"), 0.0),
    at((*EVENT, "noise_multiplier"), math.nan),
    at((*EVENT, "noise_multiplier"), math.inf),
    at((*EVENT, "noise_multiplier"), "1.0"),
    at((*EVENT, "sample_rate"), 0.0),
    at((*EVENT, "sample_rate"), 1.5),
    at((*EVENT, "count"), 0),
    at((*EVENT, "count"), 1.0),
    at((*EVENT, "count"), -5),
    at((*EVENT, "count"), 10**30),
    at((*EVENT, "adjacency"), "zero_out"),
    at((*EVENT, "surprise"), 1),
    at(("user_rounds", 0, "round"), -1),
    at(("user_rounds", 0, "calls"), {}),
    at(("user_rounds", 0, "calls"), {"a": 0}),
    at(("user_rounds", 0, "calls"), {"a": 99}),
    at(("user_rounds", 1, "round"), 1),
]


@pytest.mark.parametrize("state", BROKEN)
def test_a_broken_state_raises_and_changes_nothing(state):
    accountant = saved()
    with pytest.raises(ValueError, match="not an accountant state"):
        accountant.load_state_dict(state)
    assert accountant.state_dict() == STATE


@pytest.mark.parametrize("key", sorted(STATE))
def test_a_missing_section_is_not_an_empty_one(key):
    state = {k: v for k, v in STATE.items() if k != key}
    with pytest.raises(ValueError, match=f"missing keys.*{key}"):
        PrivacyAccountant(1e-5).load_state_dict(state)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


def places(value, path=()):
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for index in range(len(value)):
            yield from places(value[index], (*path, index))


PLACES = [path for path in places(STATE) if path]


@given(path=st.sampled_from(PLACES), value=JSON)
@settings(max_examples=300)
def test_fuzzed_states_load_whole_or_raise_a_clean_error(path, value):
    accountant = PrivacyAccountant(1e-5)
    message = None
    try:
        accountant.load_state_dict(at(path, value))
    except ValueError as error:
        message = str(error)
    if message is not None:
        assert message.startswith("not an accountant state")
        assert accountant.state_dict() == PrivacyAccountant(1e-5).state_dict()
        return
    again = PrivacyAccountant(1e-5)
    again.load_state_dict(json.loads(json.dumps(accountant.state_dict())))
    assert again.state_dict() == accountant.state_dict()


@given(state=JSON)
def test_arbitrary_json_raises_a_clean_error(state):
    with pytest.raises(ValueError, match="not an accountant state"):
        PrivacyAccountant(1e-5).load_state_dict(state)


def test_deep_nesting_is_a_clean_error():
    deep: dict[str, object] = {}
    for _ in range(10_000):
        deep = {"event": deep}
    with pytest.raises(ValueError, match="not an accountant state"):
        PrivacyAccountant(1e-5).load_state_dict(deep)


def test_fixed_size_events_survive_too():
    accountant = PrivacyAccountant(1e-5)
    accountant.record(
        PrivacyEvent.fixed_size(
            unit="client",
            noise_multiplier=3.0,
            cohort_size=5,
            population=50,
            adjacency="replace_one",
        )
    )
    fresh = PrivacyAccountant(1e-5)
    fresh.load_state_dict(accountant.state_dict())
    assert fresh.get_cumulative_user_epsilon() == accountant.get_cumulative_user_epsilon()
