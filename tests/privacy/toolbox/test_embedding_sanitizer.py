"""EmbeddingSanitizer: no ε without saying how many rows an image owns."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_fedmed.privacy import DPConfig, EmbeddingSanitizer, GaussianMechanism, gaussian_epsilon


def sanitizer(**more):
    return EmbeddingSanitizer(DPConfig(enabled=True, max_rows_per_image=4, **more))


def test_rows_per_image_have_no_default_once_enabled():
    with pytest.raises(ValueError, match="max_rows_per_image must be given"):
        DPConfig(enabled=True)


def test_a_disabled_config_is_not_validated_and_protects_nothing():
    plain = EmbeddingSanitizer(DPConfig(epsilon=-1.0, delta=7.0))
    rows = np.ones((2, 3))
    assert plain.get_privacy_spent()["epsilon"] == 0.0
    assert np.array_equal(plain.sanitize(rows), rows)
    assert plain.get_privacy_spent()["epsilon"] == math.inf
    assert plain.get_privacy_spent()["unit"] == "none"
    assert plain.event() is None
    with pytest.raises(ValueError, match="max_rows_per_image"):
        _ = plain.sensitivity


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epsilon", 0.0),
        ("epsilon", 50.0),
        ("delta", 0.0),
        ("clipping_norm", -1.0),
        ("clipping_norm", math.nan),
        ("max_rows_per_image", 0),
        ("max_rows_per_image", 2.5),
        ("row_selection", "greedy"),
        ("enabled", 1),
    ],
)
def test_an_enabled_config_is_validated(field, value):
    arguments = {"enabled": True, "max_rows_per_image": 4, field: value}
    with pytest.raises((TypeError, ValueError), match=field):
        DPConfig(**arguments)


def test_clip_embeddings_reports_what_it_did():
    rows = np.array([[3.0, 4.0], [0.3, 0.4], [np.nan, 1.0]])
    clipped, num_clipped, before, after = sanitizer().clip_embeddings(rows)
    assert num_clipped == 2
    assert before == pytest.approx((5.0 + 0.5) / 2)
    assert after == pytest.approx((1.0 + 0.5 + 0.0) / 3)
    assert np.linalg.norm(clipped, axis=1).max() <= 1.0


@given(
    k=st.integers(1, 6),
    images=st.integers(1, 5),
    scale=st.floats(1e-3, 1e6),
    seed=st.integers(0, 10**6),
)
def test_replacing_one_image_moves_the_rows_by_at_most_the_sensitivity(k, images, scale, seed):
    rng = np.random.Generator(np.random.PCG64(seed))
    one = EmbeddingSanitizer(DPConfig(enabled=True, max_rows_per_image=k, clipping_norm=0.7))
    rows = rng.standard_normal((images * k, 5)) * scale
    other = rows.copy()
    other[:k] = -rows[:k] * scale
    moved = one.clip_embeddings(rows)[0] - one.clip_embeddings(other)[0]
    assert np.linalg.norm(moved) <= one.sensitivity


def test_the_noise_is_that_of_the_image_not_of_a_row():
    one = sanitizer(epsilon=2.0, clipping_norm=0.5)
    assert one.sensitivity == 2 * 0.5 * math.sqrt(4)
    expected = GaussianMechanism(epsilon=2.0, delta=1e-5, sensitivity=2.0).sigma
    assert one.noise_std == expected
    noise = one.sanitize(np.zeros((400, 100)), seed=1)
    assert noise.std() == pytest.approx(expected, rel=0.02)


def test_calls_compose_exactly():
    one = sanitizer(epsilon=1.0)
    for _ in range(9):
        one.sanitize(np.ones((4, 8), dtype=np.float32))
    sigma = GaussianMechanism(epsilon=1.0, delta=1e-5, sensitivity=1.0).sigma
    expected = gaussian_epsilon(noise_multiplier=sigma / 3, delta=1e-5)
    spent = one.get_privacy_spent()
    assert spent["epsilon"] == pytest.approx(expected, rel=1e-9)
    assert spent["num_sanitizations"] == 9
    assert spent["adjacency"] == "replace_one"
    assert one.event().count == 9


def test_the_cap_is_checked_when_owners_are_named():
    one = sanitizer()
    rows = np.zeros((6, 2))
    with pytest.raises(ValueError, match="owns 5 rows but max_rows_per_image=4"):
        one.sanitize(rows, image_ids=["a", "b", "b", "b", "b", "b"])
    with pytest.raises(ValueError, match="entries"):
        one.sanitize(rows, image_ids=["a"])
    assert one.get_stats()["num_sanitizations"] == 0
    one.sanitize(rows, image_ids=list("aabbbb"))


def test_selected_rows_respect_the_cap_and_look_at_no_embedding():
    one = sanitizer()
    ids = np.repeat(["a", "b", "c"], [10, 2, 4])
    chosen = one.select_rows(ids, seed=1)
    names, counts = np.unique(ids[chosen], return_counts=True)
    assert dict(zip(names.tolist(), counts.tolist(), strict=True)) == {"a": 4, "b": 2, "c": 4}
    one.sanitize(np.zeros((len(chosen), 2)), image_ids=ids[chosen])


def test_stats_and_taint():
    one = sanitizer()
    one.sanitize(np.array([[3.0, 4.0], [np.inf, 0.0]]))
    stats = one.get_stats()
    assert stats["is_private"]
    assert (stats["num_rows"], stats["num_clipped"], stats["num_nonfinite"]) == (2, 2, 1)
    assert stats["avg_norm_before"] == 5.0
    one.sanitize(np.zeros((1, 2)), seed=3)
    assert not one.get_privacy_spent()["is_private"]
    assert not one.event().is_private
