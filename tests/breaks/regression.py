"""Breaks of what a regression promises: losses of single records, public constants, and candour."""

from __future__ import annotations

from tests.breaks.base import Break

TASK = "tests/learning/networks/test_regression.py"
TARGETS = "tests/data/test_targets.py"
RUNS = "tests/runs/test_regression.py"

BREAKS: list[Break] = [
    Break(
        "a regression's loss centred over the batch",
        "learning/networks/regression.py",
        "return each.mean(dim=1)",
        "return each.mean(dim=1) - each.mean().detach() + each.mean()",
        f"{TASK}::test_regression_losses_do_not_couple_records",
    ),
    Break(
        "targets binned by quantiles of the private ones",
        "data/targets.py",
        "np.digitize(first, edges)",
        "np.digitize(first, np.quantile(first, (0.25, 0.5, 0.75)))",
        f"{TARGETS}::test_a_bin_depends_on_the_record_alone",
    ),
    Break(
        "diabetes scaled by statistics of the patients",
        "data/tabular.py",
        "low, high = np.array(DIABETES_RANGES).T\n    table = _shipped("
        '"diabetes_data_raw.csv.gz", delimiter=None)',
        'table = _shipped("diabetes_data_raw.csv.gz", delimiter=None)\n'
        "    low, high = table.min(axis=0), table.max(axis=0)",
        f"{TARGETS}::test_diabetes_is_scaled_by_public_constants_alone",
    ),
    Break(
        "targets outside their public range are taken",
        "data/targets.py",
        "if (np.abs(y) > 1.0 + 1e-6).any():",
        "if False:",
        f"{TARGETS}::test_targets_that_are_no_numbers_or_out_of_range_are_refused_without_a_value",
    ),
    Break(
        "single predictions of test records not listed as outside the guarantee",
        "run/privacy_report.py",
        "TaskKind.regression: [OUTSIDE_POINTS],",
        "",
        f"{RUNS}::test_a_regression_runs_in_every_style_and_topology",
    ),
]
