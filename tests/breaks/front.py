"""Breaks of what a user is told: settings taken in silence, sums and promises that do not hold."""

from __future__ import annotations

from tests.breaks.base import Break

EFFECTS = "tests/config/test_effects.py"

BREAKS: list[Break] = [
    Break(
        "a budget given without a private style is taken in silence",
        "config/effects.py",
        '_with("privacy.sample.", STYLE, "sample", "hybrid"',
        '_with("privacy.sample.", STYLE, "none", "user", "sample", "hybrid"',
        f"{EFFECTS}::test_the_refusal_names_the_setting_and_what_it_needs",
    ),
    Break(
        "settings without effect are not looked for",
        "config/composition.py",
        "    refuse_without_effect([config], given)\n",
        "",
        f"{EFFECTS}::test_a_setting_counts_where_it_is_declared_to_and_is_refused_elsewhere",
    ),
    Break(
        "Flower's run-config is not looked at for settings without effect",
        "config/composition.py",
        "return compose([*chosen, *further], given=given)",
        "return compose([*chosen, *further], given=())",
        f"{EFFECTS}::test_flowers_run_config_is_checked_alike",
    ),
    Break(
        "runs with a public noise seed are in a sweep's sum",
        "sweeps/summary.py",
        "if j.is_private and {level} <= j.epsilon.keys() & j.delta]",
        "if {level} <= j.epsilon.keys() & j.delta]",
        "tests/sweeps/test_display.py::test_a_public_noise_seed_promises_nothing_on_the_terminal_and_on_the_page",
    ),
    Break(
        "runs that stopped early are left out of a sweep's sum",
        "sweeps/summary.py",
        "if job.task == task and not job.broke]",
        "if job.task == task and not job.failed]",
        "tests/sweeps/test_display.py::test_what_runs_spend_is_added_up",
    ),
    Break(
        "a trusted server is not named in a plan",
        "config/arithmetic.py",
        "    elif config.record_noise_at_server:\n",
        "    elif False:\n",
        "tests/config/test_arithmetic.py::test_what_is_not_against_the_server_is_what_the_observer_table_leaves_out",
    ),
    Break(
        "a privacy report of a newer version is believed",
        "reporting/run_facts.py",
        'if (number(report.get("schema", 1)) or 0) > REPORT_SCHEMA:',
        "if False:",
        "tests/reporting/test_run_facts.py::test_a_report_of_a_newer_version_promises_nothing",
    ),
]
