"""Noise streams: different inputs never share one, equal inputs always do."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dp_fedmed.privacy import NoiseKey, NoiseStream, Purpose, public_digest
from tests.privacy.streams.inputs import KEY, MODEL, SUM, draw, noise_id

CHANGED = {
    "run": noise_id(run="run2"),
    "phase": noise_id(phase=1),
    "purpose": noise_id(purpose=Purpose.RECORD_NOISE),
    "round": noise_id(round_num=4),
    "client": noise_id(client="b"),
    "server": noise_id(client=None),
    "step": noise_id(step=3),
    "sigma": noise_id(config={"sigma": 1.0000001}),
    "C": noise_id(config={"C": 2.0}),
    "model": noise_id(model=[MODEL[0] + 1e-16, MODEL[1] + np.float32(1e-7)]),
    "model shape": noise_id(model=[MODEL[0].reshape(3, 2), MODEL[1]]),
    "model dtype": noise_id(model=[MODEL[0].view(np.int64), MODEL[1]]),
    "data": noise_id(data=[np.nextafter(np.ones(4), 2)]),
}


def test_equal_inputs_give_the_same_bytes():
    assert draw(noise_id()) == draw(noise_id())


@pytest.mark.parametrize("what", CHANGED)
def test_changing_any_one_input_gives_another_stream(what):
    others = [draw(noise_id()), *(draw(v) for k, v in CHANGED.items() if k != what)]
    assert draw(CHANGED[what]) not in others


def test_another_key_gives_another_stream():
    assert draw(noise_id()) != draw(noise_id(), NoiseKey.from_public_seed(2))
    assert draw(noise_id()) != draw(noise_id(), KEY.derive("client", "a"))
    assert draw(noise_id(), KEY.derive("a", "bc")) != draw(noise_id(), KEY.derive("ab", "c"))


NAMES = st.text(min_size=1, max_size=4)


@given(
    a=st.tuples(NAMES, NAMES, st.integers(0, 99), st.integers(0, 99)),
    b=st.tuples(NAMES, NAMES, st.integers(0, 99), st.integers(0, 99)),
)
def test_the_encoding_is_unambiguous(a, b):
    def encode(fields):
        run, client, round_num, step = fields
        return noise_id(run=run, client=client, round_num=round_num, step=step).encode()

    assert (encode(a) == encode(b)) == (a == b)


def test_streams_of_different_rounds_are_uncorrelated():
    one = KEY.stream(noise_id(round_num=1)).normal(200_000)
    two = KEY.stream(noise_id(round_num=2)).normal(200_000)
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.01


@pytest.mark.parametrize("purpose", [p for p in Purpose if p.is_noise])
def test_noise_needs_a_private_digest(purpose):
    with pytest.raises(ValueError, match="needs a private_digest"):
        noise_id(purpose=purpose, private_digest=None)


@pytest.mark.parametrize("purpose", [p for p in Purpose if not p.is_noise])
def test_sampling_refuses_a_private_digest(purpose):
    with pytest.raises(ValueError, match="refuses a private_digest"):
        noise_id(purpose=purpose)
    assert noise_id(purpose=purpose, private_digest=None)


@pytest.mark.parametrize(
    "change",
    [
        {"purpose": "client-noise"},
        {"run": ""},
        {"client": ""},
        {"client": 3},
        {"round_num": -1},
        {"round_num": 1.0},
        {"step": True},
        {"public_digest": b"short"},
        {"public_digest": "a" * 32},
        {"private_digest": b""},
    ],
)
def test_bad_stream_inputs_are_refused(change):
    with pytest.raises((TypeError, ValueError), match=next(iter(change)).split("_")[0]):
        noise_id(**change)


def test_a_public_seed_taints_every_stream_and_derived_key():
    assert not KEY.is_private
    assert not KEY.derive("a").is_private
    assert not KEY.stream(noise_id()).is_private
    assert NoiseKey.generate().stream(noise_id()).is_private


def test_chacha20_matches_the_published_vector():
    """RFC 8439's block function with zero key, nonce and counter: the keystream starts 76b8e0ad."""
    stream = NoiseStream(bytes(32), is_private=False)
    raw = stream.generator.bit_generator.random_raw(4)
    assert np.asarray(raw, dtype="<u8").tobytes().hex() == (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_normals_do_not_depend_on_threads_and_are_normal(dtype):
    one, two = np.empty(1_300_000, dtype), np.empty(1_300_000, dtype)
    NoiseStream.from_public_seed(4).fill_normal(one, threads=1)
    NoiseStream.from_public_seed(4).fill_normal(two, threads=3)
    assert np.array_equal(one, two)
    assert one.mean() == pytest.approx(0.0, abs=5e-3)
    assert one.std() == pytest.approx(1.0, abs=5e-3)
    assert stats.kstest(one[:100_000], "norm").pvalue > 1e-3


def test_a_stream_never_repeats_itself():
    stream = NoiseStream.from_public_seed(4)
    first, second, raw = stream.normal(4), stream.normal(4), stream.generator.standard_normal(4)
    chunks = np.empty((1 << 19) + 4)
    NoiseStream.from_public_seed(4).fill_normal(chunks)
    values = [first, second, raw, chunks[1 << 19 :]]
    assert np.array_equal(chunks[:4], first)
    assert np.array_equal(chunks[1 << 19 :], second)
    assert len({v.tobytes() for v in values[:3]}) == 3


def test_chunks_of_a_stream_do_not_overlap():
    values = np.empty(3 << 19)
    NoiseStream.from_public_seed(4).fill_normal(values)
    assert len(np.unique(values)) == len(values)


def test_sum_of_four_is_standard_normal_and_another_draw():
    four = NoiseStream.from_public_seed(4).normal(100_000, method="sum_of_four")
    one = NoiseStream.from_public_seed(4).normal(100_000)
    assert stats.kstest(four, "norm").pvalue > 1e-3
    assert not np.array_equal(four, one)
    assert four.std() == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("key", [b"", b"short", bytes(33), "a" * 32])
def test_a_stream_of_a_weak_key_is_refused(key):
    with pytest.raises(ValueError, match="32 bytes"):
        NoiseStream(key, is_private=True)
    with pytest.raises(ValueError, match="32 bytes"):
        NoiseKey(key, is_private=True)


def test_fill_normal_refuses_arrays_it_cannot_fill():
    stream = NoiseStream.fresh()
    with pytest.raises(TypeError, match="float32 or float64"):
        stream.fill_normal(np.zeros(3, dtype=np.int64))
    with pytest.raises(ValueError, match="contiguous"):
        stream.fill_normal(np.zeros((4, 4)).T[::2])
    with pytest.raises(ValueError, match="std"):
        stream.normal(3, std=-1.0)


def test_digests_refuse_what_has_no_stable_bytes():
    with pytest.raises(TypeError, match="objects"):
        public_digest(arrays=[np.array([object()])])
    with pytest.raises(ValueError, match="JSON"):
        public_digest(config={"lr": float("nan")})


def test_the_private_digest_is_keyed():
    assert KEY.private_digest(SUM) != NoiseKey.from_public_seed(2).private_digest(SUM)
