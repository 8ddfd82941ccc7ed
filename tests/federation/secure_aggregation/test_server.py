"""The server learns the exact sum of the survivors, and nothing with too few of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dp_fedmed.errors import MaskingRefused, NotUnmasked, SecureAggregationError
from dp_fedmed.federation.secure_aggregation import MaskedSum, add_up
from tests.federation.secure_aggregation.attempts import Attempt, terms


@pytest.mark.parametrize(
    ("clients", "length"),
    [(2, 1), (3, 7), (5, 40_000), (10, 1), (17, 33), (32, 64), (33, 9), (40, 32_768), (100, 11)],
)
def test_the_sum_is_exact(clients: int, length: int) -> None:
    attempt = Attempt(clients, terms(length=length, minimum=max(2, clients * 8 // 10)))
    attempt.revealed(attempt.requested())
    assert np.array_equal(attempt.server.total(), attempt.expected())
    assert np.array_equal(attempt.server.total(), attempt.expected()), "asked again, the same"


def test_negative_integers_keep_their_sign() -> None:
    attempt = Attempt(3, terms(length=2))
    for name, value in zip(attempt.names, ([-5, 3], [-7, -4], [2, 0]), strict=True):
        attempt.values[name] = np.array(value, np.int64)
    attempt.revealed(attempt.requested())
    assert attempt.server.total().tolist() == [-10, -1]


@pytest.mark.parametrize(("clients", "minimum", "colluding"), [(10, 7, 1), (60, 48, 4)])
def test_clients_may_drop_out_at_each_stage(clients: int, minimum: int, colluding: int) -> None:
    attempt = Attempt(clients, terms(minimum=minimum, colluding=colluding))
    first, second, third, *_, last = attempt.names
    attempt.keys(without=[first])
    deliveries = attempt.shares(without=[second])
    attempt.masked(deliveries, without=[third])
    attempt.revealed(attempt.server.request(), without=[last])
    assert np.array_equal(attempt.server.total(), attempt.expected(without=attempt.names[:3]))


@pytest.mark.parametrize("stage", ["keys", "shares", "contributions"])
def test_as_many_as_allowed_may_drop_out_at_one_stage(stage: str) -> None:
    attempt = Attempt(40, terms(minimum=32, colluding=4))
    gone = attempt.names[3:11]
    attempt.keys(without=gone if stage == "keys" else ())
    deliveries = attempt.shares(without=gone if stage == "shares" else ())
    attempt.masked(deliveries, without=gone)
    attempt.revealed(attempt.server.request())
    assert np.array_equal(attempt.server.total(), attempt.expected(without=gone))


@pytest.mark.parametrize("stage", ["keys", "shares", "contributions", "unmasking"])
def test_with_one_more_drop_out_nothing_is_unmasked(stage: str) -> None:
    attempt = Attempt(6, terms(minimum=4))
    gone = {stage: attempt.names[:3]}

    def go_on() -> None:
        attempt.keys(without=gone.get("keys", ()))
        deliveries = attempt.shares(without=gone.get("shares", ()))
        attempt.masked(deliveries, without=gone.get("contributions", ()))
        attempt.revealed(attempt.server.request(), without=gone.get("unmasking", ()))
        attempt.server.total()

    with pytest.raises(NotUnmasked, match="needed to unmask"):
        go_on()
    assert attempt.server.stage.name == stage, "it may still be waited for more"


def test_one_share_less_than_the_threshold_does_not_unmask_and_one_more_does() -> None:
    attempt = Attempt(6, terms(minimum=4))  # any 4 of 6 shares rebuild a seed
    request = attempt.requested()
    attempt.revealed(request, without=attempt.names[3:])
    before = attempt.server._sum.copy()
    with pytest.raises(NotUnmasked, match="3 clients revealed"):
        attempt.server.total()
    assert np.array_equal(attempt.server._sum, before), "no mask is taken away before all can be"
    attempt.server.take_revealed(attempt.client[attempt.names[4]].reveal(request))
    assert np.array_equal(attempt.server.total(), attempt.expected())


def test_shares_below_the_threshold_rebuild_another_seed() -> None:
    from dp_fedmed.federation.secure_aggregation.primitives import rebuild

    attempt = Attempt(6, terms(minimum=4))
    request = attempt.requested()
    name = attempt.names[0]
    seed = attempt.client[name]._secrets.self_seed
    shares = {
        place: attempt.client[by].reveal(request).self_shares[name]
        for place, by in enumerate(attempt.names, start=1)
    }
    assert rebuild({place: shares[place] for place in (1, 3, 4, 6)}) == seed
    assert rebuild({place: shares[place] for place in (1, 3, 4)}) != seed


def test_contributions_may_be_added_up_on_the_way() -> None:
    attempt = Attempt(7, terms(minimum=5))
    deliveries = attempt.delivered()
    masked = [attempt.client[n].mask(deliveries[n], attempt.values[n]) for n in attempt.names[:6]]
    attempt.server.add(add_up(masked[:4]))
    with pytest.raises(MaskingRefused, match="came twice"):
        attempt.server.add(masked[3])
    attempt.server.add(add_up(masked[4:]))
    attempt.revealed(attempt.server.request())
    assert attempt.server.added == set(attempt.names[:6])
    assert np.array_equal(attempt.server.total(), attempt.expected(without=attempt.names[6:]))


def test_pairwise_masks_cancel_and_self_masks_stay() -> None:
    attempt = Attempt(4, terms(minimum=4))
    attempt.requested()
    masked = attempt.server._sum.copy()
    assert not np.array_equal(masked.view(np.int64), attempt.expected())
    seeds = {name: client._secrets.self_seed for name, client in attempt.client.items()}
    attempt.server._unmask(seeds, {})
    assert np.array_equal(attempt.server._sum.view(np.int64), attempt.expected())


def test_a_wrong_share_is_noticed_and_nothing_is_released() -> None:
    attempt = Attempt(4, terms(minimum=4))
    request = attempt.requested()
    attempt.revealed(request, without=attempt.names[:1])
    honest = attempt.client[attempt.names[0]].reveal(request)
    shares = {name: bytes(16) for name in honest.self_shares}
    attempt.server.take_revealed(replace(honest, self_shares=shares))
    with pytest.raises(NotUnmasked, match="do not fit what it committed to"):
        attempt.server.total()


def test_a_wrong_share_of_a_dropped_clients_key_is_noticed() -> None:
    attempt = Attempt(4, terms(minimum=3))
    request = attempt.requested(without=attempt.names[3:])
    attempt.revealed(request, without=attempt.names[:1])
    honest = attempt.client[attempt.names[0]].reveal(request)
    wrong = {name: bytes(16) for name in honest.key_shares}
    attempt.server.take_revealed(replace(honest, key_shares=wrong))
    with pytest.raises(NotUnmasked, match="do not fit what it committed to"):
        attempt.server.total()


def test_keys_that_are_not_a_clients_own_are_refused() -> None:
    attempt = Attempt(4, terms())
    one, two, *_ = (client.advertise() for client in attempt.client.values())
    attempt.server.take_keys(one)
    attempt.server.take_keys(one)
    with pytest.raises(MaskingRefused, match="two different sets"):
        attempt.server.take_keys(replace(one, keys=two.keys))
    with pytest.raises(MaskingRefused, match="of another client"):
        attempt.server.take_keys(replace(two, keys=two.keys[:64] + one.keys[64:]))
    with pytest.raises(MaskingRefused, match="three different"):
        attempt.server.take_keys(replace(two, keys=two.keys[:-1]))
    with pytest.raises(MaskingRefused, match="another attempt"):
        attempt.server.take_keys(replace(two, attempt=terms(attempt=1).digest()))


def test_shares_that_are_not_for_the_neighbours_are_refused() -> None:
    attempt = Attempt(4, terms())
    attempt.keys()
    roster = attempt.server.roster()
    shares = attempt.client["site-000"].share(roster)
    with pytest.raises(MaskingRefused, match="another list"):
        attempt.server.take_shares(replace(shares, roster=bytes(32)))
    with pytest.raises(MaskingRefused, match="another list"):
        attempt.server.take_shares(replace(shares, sender="eve"))
    with pytest.raises(MaskingRefused, match="not for all"):
        attempt.server.take_shares(replace(shares, sealed={"site-001": b""}))
    attempt.server.take_shares(shares)
    with pytest.raises(MaskingRefused, match="two different"):
        attempt.server.take_shares(replace(shares, sealed=dict.fromkeys(shares.sealed, b"")))


def test_contributions_of_another_kind_are_refused() -> None:
    attempt = Attempt(4, terms())
    masked = attempt.one()
    for changed, why in [
        (replace(masked, values=masked.values[:-1]), "shape"),
        (replace(masked, values=masked.values.view(np.int64)), "int64"),
        (replace(masked, attempt=bytes(32)), "another attempt"),
        (replace(masked, names=("eve",)), "shared no secrets"),
        (replace(masked, names=()), "twice"),
        (replace(masked, names=("site-000", "site-000")), "twice"),
    ]:
        with pytest.raises(MaskingRefused, match=why):
            attempt.server.add(changed)
    attempt.server.add(masked)
    with pytest.raises(MaskingRefused, match="came twice"):
        attempt.server.add(masked)


def test_revealed_shares_must_be_those_that_were_asked_for() -> None:
    attempt = Attempt(5, terms())
    request = attempt.requested(without=["site-004"])
    revealed = attempt.client["site-000"].reveal(request)
    for changed, why in [
        (replace(revealed, sender="site-004"), "no survivor"),
        (replace(revealed, self_shares={}), "other shares"),
        (replace(revealed, key_shares=revealed.self_shares), "other shares"),
        (replace(revealed, key_shares={"site-004": b"short"}), "wrong length"),
    ]:
        with pytest.raises(MaskingRefused, match=why):
            attempt.server.take_revealed(changed)
    attempt.server.take_revealed(revealed)
    with pytest.raises(MaskingRefused, match="two different"):
        attempt.server.take_revealed(replace(revealed, key_shares={"site-004": bytes(16)}))


def test_stages_follow_each_other() -> None:
    attempt = Attempt(4, terms())
    for too_early in (attempt.server.deliveries, attempt.server.request, attempt.server.total):
        with pytest.raises(MaskingRefused, match="still waits for keys"):
            too_early()
    attempt.requested()
    with pytest.raises(MaskingRefused, match="waits for unmasking"):
        attempt.server.take_keys(attempt.client["site-000"].advertise())
    late = MaskedSum(attempt.agreed.digest(), ("site-000",), np.zeros(5, np.uint64))
    with pytest.raises(SecureAggregationError, match="stage"):
        attempt.server.add(late)
