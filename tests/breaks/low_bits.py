"""Breaks of the integers that noise is added in, and of the margins of norms and sums."""

from __future__ import annotations

from tests.breaks.base import Break

SUM = "privacy/mechanisms/private_sum.py"
MECHANISMS = "tests/privacy/mechanisms"
ATTACK = f"{MECHANISMS}/test_low_bits.py::test_low_bits_tell_nothing_of_a_unit"
MARGINS = f"{MECHANISMS}/test_private_sum.py"
EXACT = f"{MECHANISMS}/test_exact_sensitivity.py"
NOISE = f"{MECHANISMS}/test_rounded_noise.py"
RUNS = "tests/runs/test_low_bits.py"

BREAKS = [
    Break(
        "noise is drawn in float32 and then rounded",
        SUM,
        "stream.normal(size, std=std / self.step)",
        "stream.normal(size, std=std / self.step, dtype=np.float32)",
        ATTACK,
    ),
    Break(
        "float64 noise that is not rounded",
        SUM,
        "np.rint(draws, out=draws).astype(np.int64)",
        "draws  # type: ignore[assignment]",
        f"{MECHANISMS}/test_low_bits.py"
        "::test_what_is_released_is_an_integer_that_either_sum_could_have_given",
    ),
    Break(
        "a whole run's noise is not rounded",
        SUM,
        "np.rint(draws, out=draws).astype(np.int64)",
        "draws  # type: ignore[assignment]",
        f"{RUNS}::test_runs_that_look_for_anomalies",
    ),
    Break(
        "a whole network run's noise is drawn in float32",
        SUM,
        "stream.normal(size, std=std / self.step)",
        "stream.normal(size, std=std / self.step, dtype=np.float32)",
        f"{RUNS}::test_a_networks_run",
    ),
    Break(
        "float32 noise on a float32 sum of updates",
        "privacy/mechanisms/client_updates.py",
        "return {n: v.astype(np.float32) for n, v in zip(exact, released, strict=True)}",
        "draw = streams.noise(self.purpose, list(exact.values()))\n"
        "        return {n: (self.sums.grid.values(t).astype(np.float32) + draw.normal(t.shape,"
        " std=self.std, dtype=np.float32)) / np.float32(self.expected_cohort)"
        " for n, t in exact.items()}",
        ATTACK,
    ),
    Break(
        "float32 noise on float32 rows",
        "privacy/mechanisms/noisy_rows.py",
        "return self.sums.release([total], stream)[0].astype(np.float32)",
        "return self.sums.grid.values(total).astype(np.float32)"
        " + stream.normal(total.shape, std=self.std, dtype=np.float32)",
        ATTACK,
    ),
    Break(
        "noise is rounded toward zero",
        SUM,
        "np.rint(draws, out=draws).astype(np.int64)",
        "np.trunc(draws, out=draws).astype(np.int64)",
        f"{NOISE}::test_noise_is_the_rounded_normal_step_by_step",
    ),
    Break(
        "noise of records at the server is 3 % too small",
        "privacy/mechanisms/record_sums.py",
        "gaussian_std(noise_multiplier=self.record_noise, sensitivity=self.sensitivity)",
        "0.97 * gaussian_std(noise_multiplier=self.record_noise, sensitivity=self.sensitivity)",
        f"{NOISE}::test_every_mechanisms_noise_is_a_normal_of_the_scale_that_is_accounted",
    ),
    Break(
        "no margin for a norm that is added up in the worst order",
        SUM,
        "return bound * (1.0 - (dimension + 8.0) * 2.0 * _ROUNDOFF)",
        "return bound",
        f"{MARGINS}::test_a_contribution_is_bounded_where_a_norm_is_added_up_in_the_worst_order",
    ),
    Break(
        "a margin of d roundings where d and eight happen",
        SUM,
        "return bound * (1.0 - (dimension + 8.0) * 2.0 * _ROUNDOFF)",
        "return bound * (1.0 - 0.5 * dimension * _ROUNDOFF)",
        f"{MARGINS}::test_the_margin_below_a_bound_covers_any_order_of_summation",
    ),
    Break(
        "integers above 2⁵³ are taken for exact floats",
        SUM,
        "(dimension + 4.0) * _ROUNDOFF",
        "dimension * _ROUNDOFF",
        f"{MARGINS}::test_integers_that_are_longer_than_a_bound_by_any_little_do_not_fit",
    ),
    Break(
        "squares that vanish are taken for zero",
        SUM,
        "if _LEAST_SQUARES < squares < math.inf:",
        "if squares < math.inf:",
        f"{MARGINS}::test_a_c_whose_square_vanishes_bounds_too",
    ),
    Break(
        "truncating a sum is not charged",
        SUM,
        "(1.0 + norms + sums + rows) + math.sqrt(dimension) * self.step",
        "(1.0 + norms + sums + rows)",
        f"{MARGINS}::test_a_full_step_in_every_value_is_what_truncation_adds",
    ),
    Break(
        "sums in float64 are charged as if they were exact",
        SUM,
        "sums = 2.0 * (contributions + 2.0) * contributions * _ROUNDOFF",
        "sums = 0.0",
        f"{MARGINS}::test_sensitivity_is_no_less_than_its_terms_in_exact_arithmetic",
    ),
    Break(
        "projecting a sum is charged as if it were exact",
        SUM,
        "return max_norm * (dimension + 8.0) * 4.0 * _ROUNDOFF",
        "return 0.0",
        f"{MARGINS}::test_projecting_a_sum_moves_it_by_no_more_than_is_charged_for_rounding",
    ),
    Break(
        "updates are clipped to a billionth above C",
        "privacy/mechanisms/client_updates.py",
        "self.sums.bounded(list(update.values()))",
        "self.sums.bounded(list(update.values()), self.max_norm * (1 + 1e-8))",
        f"{EXACT}::test_a_client_moves_the_sum_of_updates_by_at_most_c",
    ),
    Break(
        "a client counts twice below C",
        "privacy/mechanisms/client_updates.py",
        "(1 if norm <= self.max_norm else -1)",
        "(2 if norm <= self.max_norm else -2)",
        f"{EXACT}::test_a_client_moves_updates_and_count_by_what_their_two_noises_hide",
    ),
    Break(
        "vectors and rows are clipped to a hair above the bound",
        SUM,
        "clip_l2_rows(wide, max_norm=limit)",
        "clip_l2_rows(wide, max_norm=limit * (1 + 1e-7))",
        f"{EXACT}::test_a_record_moves_a_sum_of_vectors_by_the_sensitivity",
    ),
    Break(
        "gradients are clipped to 0.1 % above C",
        "privacy/mechanisms/dp_sgd.py",
        "np.minimum(max_norm / np.maximum(norms, 1e-300), 1.0)",
        "np.minimum(1.001 * max_norm / np.maximum(norms, 1e-300), 1.0)",
        f"{EXACT}::test_a_record_moves_a_sum_of_gradients_by_the_sensitivity",
    ),
    Break(
        "a client's sum is projected to a hair above its bound",
        "privacy/mechanisms/record_sums.py",
        "for part in steps], self.client_norm)[0]",
        "for part in steps], self.client_norm * (1 + 1e-8))[0]",
        f"{EXACT}::test_a_client_moves_the_sum_of_records_by_at_most_its_bound",
    ),
    Break(
        "an image's vector is not bounded",
        "privacy/mechanisms/statistic.py",
        "return self.sums.bounded_rows(contribution)",
        "return self.sums.grid.truncated(9.0 * np.asarray(contribution, np.float64))",
        f"{EXACT}::test_an_image_moves_a_statistic_by_at_most_one",
    ),
    Break(
        "a row has the norm of all of an image's rows",
        "privacy/mechanisms/noisy_rows.py",
        "self.sums.bounded_rows(contribution, max_norm=BOUND)",
        "self.sums.bounded_rows(2.0 * contribution)",
        f"{EXACT}::test_a_replaced_image_moves_its_own_rows_and_those_by_two_root_m",
    ),
]
