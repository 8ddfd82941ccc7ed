"""A client answers an attempt in one way only, and refuses what could unmask somebody."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

from dp_fedmed.errors import MaskingRefused, NotUnmasked
from dp_fedmed.federation.secure_aggregation import ClientState, Roster, SecureClient, UnmaskRequest
from tests.federation.secure_aggregation.attempts import Attempt, key_of, terms

ME = "site-000"


def restarted(attempt: Attempt, name: str = ME) -> SecureClient:
    """The client in a new process, which read its state from a file."""
    state = ClientState.from_record(attempt.client[name].state.to_record())
    return SecureClient(key_of(name), name, attempt.agreed, state)


def test_a_client_that_was_killed_gives_the_same_bytes_at_each_stage() -> None:
    attempt = Attempt(5, terms())
    advertised = attempt.client[ME].advertise()
    assert restarted(attempt).advertise() == advertised
    attempt.keys()
    roster = attempt.server.roster()
    shares = attempt.client[ME].share(roster)
    assert restarted(attempt).share(roster) == shares == attempt.client[ME].share(roster)
    deliveries = attempt.shares()
    masked = attempt.client[ME].mask(deliveries[ME], attempt.values[ME])
    again = restarted(attempt).mask(deliveries[ME], attempt.values[ME])
    assert again.values.tobytes() == masked.values.tobytes()
    attempt.masked(deliveries, without=["site-004"])
    request = attempt.server.request()
    revealed = restarted(attempt).reveal(request)
    assert revealed == attempt.client[ME].reveal(request) == restarted(attempt).reveal(request)
    assert restarted(attempt).share(roster) == shares


def test_a_state_of_another_attempt_or_client_is_refused() -> None:
    attempt = Attempt(4, terms())
    for name, agreed in [("site-001", attempt.agreed), (ME, terms(attempt=1))]:
        with pytest.raises(MaskingRefused, match="another attempt"):
            SecureClient(key_of(name), name, agreed, attempt.client[ME].state)


@pytest.mark.parametrize("changed", [{"run": "x"}, {"server_round": 2}, {"attempt": 1}])
def test_every_secret_differs_between_attempts(changed: dict[str, Any]) -> None:
    one, two = Attempt(3, terms()), Attempt(3, terms(**changed))
    for make in (lambda c: c.public.to_bytes(), lambda c: c.self_seed, lambda c: c.masking_seed):
        assert make(one.client[ME]._secrets) != make(two.client[ME]._secrets)
    assert not np.array_equal(one.one().values, two.one().values)


@pytest.mark.parametrize("changed", [{"run": "x"}, {"server_round": 2}, {"attempt": 1}])
def test_replays_are_refused(changed: dict[str, Any]) -> None:
    old, new = Attempt(4, terms(**changed)), Attempt(4, terms())
    old_request, new_request = old.requested(), new.requested()
    assert new_request.survivors == old_request.survivors
    client = new.client[ME]
    for replay in (
        lambda: client.share(old.server.roster()),
        lambda: client.mask(old.server.deliveries()[ME], new.values[ME]),
        lambda: client.reveal(old_request),
    ):
        with pytest.raises(MaskingRefused, match="another attempt"):
            replay()


def test_sealed_shares_of_another_attempt_do_not_open() -> None:
    old, new = Attempt(4, terms(attempt=1)), Attempt(4, terms())
    stale, fresh = old.delivered()[ME], new.delivered()[ME]
    with pytest.raises(MaskingRefused, match="forged"):
        new.client[ME].mask(replace(fresh, sealed=stale.sealed), new.values[ME])


def changed_rosters() -> dict[str, Callable[[dict[str, bytes]], dict[str, bytes]]]:
    return {
        "without its own": lambda keys: {n: k for n, k in keys.items() if n != ME},
        "without its own ": lambda keys: keys | {ME: bytes(96)},
        "the same public key": lambda keys: keys | {"site-001": keys["site-002"]},
        "the same public key ": lambda keys: (
            keys | {"site-001": keys["site-001"][:32] + keys[ME][32:64] + keys["site-001"][64:]}
        ),
        "three different": lambda keys: keys | {"site-001": b"short"},
        "not one of X25519": lambda keys: keys | {"site-001": bytes(32) + keys["site-001"][32:]},
    }


@pytest.mark.parametrize("why", changed_rosters())
def test_a_list_of_public_keys_that_is_not_sound_is_refused(why: str) -> None:
    attempt = Attempt(4, terms())
    attempt.keys()
    keys = changed_rosters()[why](dict(attempt.server.roster().keys))
    with pytest.raises(MaskingRefused, match=why.strip()):
        attempt.client[ME].share(Roster(attempt.agreed.digest(), keys))
    assert not attempt.client[ME].state.roster, "nothing of it is remembered"
    attempt.client[ME].share(attempt.server.roster())


def test_too_few_clients_or_neighbours_are_refused() -> None:
    attempt = Attempt(5, terms(minimum=4))
    attempt.keys()
    keys = dict(attempt.server.roster().keys)
    few = {name: keys[name] for name in attempt.names[:3]}
    with pytest.raises(NotUnmasked, match="3 clients"):
        attempt.client[ME].share(Roster(attempt.agreed.digest(), few))
    delivery = attempt.shares()[ME]
    one = {"site-001": delivery.sealed["site-001"]}
    with pytest.raises(NotUnmasked, match="1 neighbours"):
        attempt.client[ME].mask(replace(delivery, sealed=one), attempt.values[ME])


def test_a_second_list_of_public_keys_is_refused() -> None:
    attempt = Attempt(5, terms())
    attempt.keys()
    roster = attempt.server.roster()
    attempt.client[ME].share(roster)
    other = {name: key for name, key in roster.keys.items() if name != "site-004"}
    with pytest.raises(MaskingRefused, match="two different lists"):
        restarted(attempt).share(replace(roster, keys=other))


def test_forged_shares_and_those_of_strangers_are_refused() -> None:
    attempt = Attempt(5, terms())
    delivery = attempt.delivered()[ME]
    sealed, mine = dict(delivery.sealed), attempt.values[ME]
    swapped = sealed | {"site-001": sealed["site-002"], "site-002": sealed["site-001"]}
    reflected = sealed | {"site-001": attempt.client[ME].state.sealed["site-001"]}
    for wrong in (swapped, reflected, sealed | {"site-001": b"nonsense"}):
        with pytest.raises(MaskingRefused, match="forged"):
            attempt.client[ME].mask(replace(delivery, sealed=wrong), mine)
    with pytest.raises(MaskingRefused, match="no neighbour"):
        attempt.client[ME].mask(replace(delivery, sealed=sealed | {"eve": b""}), mine)
    with pytest.raises(MaskingRefused, match="another client"):
        attempt.client[ME].mask(replace(delivery, receiver="site-001"), mine)
    assert not attempt.client[ME].state.masked


def test_another_input_or_another_delivery_is_never_masked() -> None:
    attempt = Attempt(6, terms())
    delivery = attempt.delivered()[ME]
    attempt.client[ME].mask(delivery, attempt.values[ME])
    with pytest.raises(MaskingRefused, match="another contribution"):
        restarted(attempt).mask(delivery, attempt.values[ME] + 1)
    fewer = {name: s for name, s in delivery.sealed.items() if name != "site-005"}
    with pytest.raises(MaskingRefused, match="two different sets of shares"):
        restarted(attempt).mask(replace(delivery, sealed=fewer), attempt.values[ME])


@pytest.mark.parametrize("values", [np.zeros(4, np.int64), np.zeros(5), np.zeros((5, 1), np.int64)])
def test_an_input_of_another_kind_is_refused(values: Any) -> None:
    attempt = Attempt(4, terms())
    with pytest.raises(MaskingRefused, match="was to mask 5"):
        attempt.client[ME].mask(attempt.delivered()[ME], values)


def test_stages_cannot_be_skipped() -> None:
    attempt, ahead = Attempt(4, terms()), Attempt(4, terms())
    request = ahead.requested()
    with pytest.raises(MaskingRefused, match="before it shared"):
        attempt.client[ME].mask(ahead.server.deliveries()[ME], attempt.values[ME])
    with pytest.raises(MaskingRefused, match="no part of"):
        attempt.client[ME].reveal(request)


def requests() -> dict[str, Callable[[UnmaskRequest], UnmaskRequest]]:
    return {
        "both secrets": lambda r: replace(r, dropped=(*r.dropped, "site-002")),
        "one twice": lambda r: replace(r, survivors=(*r.survivors, "site-002")),
        "no part of": lambda r: replace(
            r, survivors=tuple(n for n in r.survivors if n != ME), dropped=(*r.dropped, ME)
        ),
        "does not have": lambda r: replace(r, survivors=(*r.survivors, "eve")),
        "other neighbours": lambda r: replace(r, dropped=()),
    }


@pytest.mark.parametrize("why", requests())
def test_a_request_that_no_server_in_good_order_sends_is_refused(why: str) -> None:
    attempt = Attempt(6, terms(minimum=4))
    request = attempt.requested(without=["site-005"])
    with pytest.raises(MaskingRefused, match=why):
        attempt.client[ME].reveal(requests()[why](request))
    assert not attempt.client[ME].state.request
    attempt.client[ME].reveal(request)


def test_a_client_that_never_shared_cannot_be_unmasked() -> None:
    attempt = Attempt(6, terms(minimum=4))
    attempt.keys()
    attempt.masked(attempt.shares(without=["site-005"]))
    request = attempt.server.request()
    for key in ("survivors", "dropped"):
        more = replace(request, **{key: (*getattr(request, key), "site-005")})
        with pytest.raises(MaskingRefused, match="other neighbours"):
            attempt.client[ME].reveal(more)


def test_no_sum_of_fewer_than_agreed_is_unmasked() -> None:
    attempt = Attempt(6, terms(minimum=4))
    request = attempt.requested()
    few = replace(request, survivors=request.survivors[:3], dropped=request.survivors[3:])
    with pytest.raises(NotUnmasked, match="3 contributions"):
        attempt.client[ME].reveal(few)


def test_two_different_sums_are_never_unmasked() -> None:
    attempt = Attempt(6, terms(minimum=4))
    request = attempt.requested()
    attempt.client[ME].reveal(request)
    other = replace(request, survivors=request.survivors[:5], dropped=request.survivors[5:])
    with pytest.raises(MaskingRefused, match="two different sums"):
        restarted(attempt).reveal(other)
    shuffled = replace(request, survivors=request.survivors[::-1])
    assert restarted(attempt).reveal(shuffled) == attempt.client[ME].reveal(request)


def test_a_client_reveals_one_secret_of_each_neighbour() -> None:
    attempt = Attempt(6, terms(minimum=4))
    revealed = attempt.client[ME].reveal(attempt.requested(without=["site-003"]))
    assert revealed.self_shares.keys() == set(attempt.names) - {"site-003"}
    assert revealed.key_shares.keys() == {"site-003"}


@pytest.mark.parametrize("fill", [0, -1, None])
def test_a_masked_contribution_looks_uniform(fill: int | None) -> None:
    attempt = Attempt(3, terms(length=50_000))
    if fill is not None:
        attempt.values[ME] = np.full(50_000, fill)
    masked = attempt.one().values
    assert chisquare(np.bincount(masked.view(np.uint8), minlength=256)).pvalue > 1e-6
    top = (masked >> np.uint64(56)).astype(np.int64)
    assert chisquare(np.bincount(top, minlength=256)).pvalue > 1e-6
    assert chisquare(np.bincount(top >> 7, minlength=2)).pvalue > 1e-6
    assert len(np.unique(masked)) == 50_000, "no part of a mask is used twice"


def test_no_secret_is_printed() -> None:
    attempt = Attempt(4, terms())
    attempt.requested()
    client = attempt.client[ME]
    shown = f"{client!r} {client.state!r} {client._secrets!r}"
    held = [client.state.own_share, *client.state.held.values(), client._secrets.self_seed]
    assert not any(repr(secret)[2:-1] in shown or secret.hex() in shown for secret in held)
