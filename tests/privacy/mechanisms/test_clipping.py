"""After clipping the float64 norm is at most C: for every input, dtype and scale."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dp_fedmed.privacy import clip_l2, clip_l2_rows

DTYPES = st.sampled_from([np.float16, np.float32, np.float64])


@st.composite
def arrays(draw, **more):
    dtype = draw(DTYPES)
    width = np.dtype(dtype).itemsize * 8
    return draw(hnp.arrays(dtype, elements=st.floats(width=width, **more), **SHAPE))


SHAPE = {"shape": hnp.array_shapes(max_dims=2, max_side=6, min_side=0)}
BOUNDS = st.one_of(
    st.floats(1e-3, 1e3), st.floats(1e-320, 1e308, allow_subnormal=True, exclude_min=True)
)


def norm(parts):
    flat = np.concatenate([p.astype(np.float64).ravel() for p in parts] or [np.zeros(0)])
    peak = np.abs(flat).max(initial=0.0)
    return 0.0 if peak == 0.0 else float(peak * np.linalg.norm(flat / peak))


@given(parts=st.lists(arrays(allow_nan=False, allow_infinity=False), max_size=4), bound=BOUNDS)
@settings(max_examples=300)
def test_the_norm_is_at_most_c_whatever_the_input(parts, bound):
    clipped = clip_l2(parts, max_norm=bound)
    assert clipped.norm_after <= bound
    assert norm(clipped.arrays) <= bound * (1 + 1e-15) + 5e-324
    assert np.isfinite(norm(clipped.arrays))
    for before, after in zip(parts, clipped.arrays, strict=True):
        assert before.dtype == after.dtype
        assert before.shape == after.shape


@given(
    rows=hnp.arrays(
        np.float32,
        st.tuples(st.integers(0, 6), st.integers(0, 6)),
        elements=st.floats(width=32, allow_nan=True, allow_infinity=True),
    ),
    bound=st.floats(1e-30, 1e30),
)
@settings(max_examples=300)
def test_every_row_is_at_most_c_and_finite(rows, bound):
    clipped = clip_l2_rows(rows, max_norm=bound)
    after = np.array([norm([row]) for row in clipped.rows])
    assert np.all(after <= bound * (1 + 1e-15))
    assert np.all(clipped.norms_after <= bound)
    bad = ~np.isfinite(rows).all(axis=1)
    assert clipped.num_nonfinite == bad.sum()
    assert not clipped.rows[bad].any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_updates_stay_below_c_by_any_order_of_summation(dtype):
    rng = np.random.Generator(np.random.PCG64(3))
    parts = [rng.standard_normal(n).astype(dtype) for n in (100_003, 7, 50_000)]
    clipped = clip_l2(parts, max_norm=1.0)
    flat = np.concatenate([p.astype(np.float64) for p in clipped.arrays])
    assert np.linalg.norm(flat) <= 1.0
    assert np.sqrt(np.cumsum(flat**2)[-1]) <= 1.0
    assert np.linalg.norm(flat) > 1.0 - 1e-6


def test_a_vector_within_the_bound_is_returned_bit_for_bit():
    parts = [np.array([3.0]), np.array([[4.0]])]
    clipped = clip_l2(parts, max_norm=5.0)
    assert not clipped.was_clipped
    assert clipped.norm_before == clipped.norm_after == 5.0
    assert all(np.array_equal(a, b) for a, b in zip(parts, clipped.arrays, strict=True))
    assert clipped.arrays[0] is not parts[0]
    rows = clip_l2_rows(np.array([[3.0, 4.0]]), max_norm=5.0)
    assert rows.num_clipped == 0


def test_clipping_keeps_the_direction():
    clipped = clip_l2([np.array([30.0, -40.0])], max_norm=1.0)
    np.testing.assert_allclose(clipped.arrays[0], [0.6, -0.8], rtol=1e-11)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_one_bad_value_makes_the_whole_vector_zero_and_is_counted(poison):
    clipped = clip_l2([np.ones(3), np.array([1.0, poison, poison])], max_norm=1.0)
    assert all(not a.any() for a in clipped.arrays)
    assert clipped.num_nonfinite == 2
    assert clipped.norm_after == 0.0
    assert clipped.was_clipped


def test_extreme_magnitudes_are_defined():
    huge = clip_l2([np.full(4, 1.7e308)], max_norm=1.0)
    np.testing.assert_allclose(huge.arrays[0], 0.5, rtol=1e-11)
    tiny = clip_l2([np.full(4, 5e-324)], max_norm=1.0)
    assert tiny.norm_before > 0.0
    assert not tiny.was_clipped
    zero = clip_l2([np.zeros(4), np.zeros((0, 3))], max_norm=1.0)
    assert zero.norm_before == 0.0
    assert clip_l2([], max_norm=1.0).arrays == []


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf, "1", True, None])
def test_bad_bounds_are_refused(bad):
    with pytest.raises((TypeError, ValueError), match="max_norm"):
        clip_l2([np.ones(2)], max_norm=bad)


@pytest.mark.parametrize("bad", [np.array([1, 2]), np.array([True]), np.array([1j]), ["a"]])
def test_other_dtypes_are_refused(bad):
    with pytest.raises(TypeError, match="float16, float32 or float64"):
        clip_l2([bad], max_norm=1.0)


def test_rows_need_a_matrix():
    with pytest.raises(ValueError, match="shape"):
        clip_l2_rows(np.ones(3), max_norm=1.0)
