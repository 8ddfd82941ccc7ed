"""Breaks of what keeps cohorts secret, and of what sites say before round 1."""

from __future__ import annotations

from tests.breaks.base import Break

PRIVATE_LOG = "tests/federation/test_private_log.py"
NODES = "tests/runs/test_nodes.py"
ENGINES = "tests/runs/test_engines.py"
NAMES_NOBODY = f"{PRIVATE_LOG}::test_the_real_server_app_names_nobody_outside_the_private_file"

BREAKS = [
    Break(
        "cohort: its logger is in Python's tree",
        "federation/private_log.py",
        "logger = logging.Logger(name, logging.INFO)",
        "logger = logging.getLogger(name)",
        NAMES_NOBODY,
    ),
    Break(
        "cohort: without a handler its lines go to stderr",
        "federation/private_log.py",
        "    logger.addHandler(logging.NullHandler())",
        "    pass",
        f"{PRIVATE_LOG}::test_no_handler_hears_the_private_logger_but_the_runs_own",
    ),
    Break(
        "cohort: failures are public",
        "federation/replies.py",
        "self.shown = cohort_logger if hides_cohorts else logger",
        "self.shown = logger",
        NAMES_NOBODY,
    ),
    Break(
        "cohort: a simulated client's failure is on its stream",
        "site/answers.py",
        "            keep_failure(site.config.run_dir, client_name(node), verb)",
        '            logger.exception("%s", client_name(node))',
        NAMES_NOBODY,
    ),
    Break(
        "cohort: who contributed is published",
        "run/server_run.py",
        "        if not self.strategy.hides_cohorts:\n            self.result.participation",
        "        if True:\n            self.result.participation",
        f"{NODES}::test_a_client_that_contributed_to_no_round_marks_the_run_where_cohorts_are_no_secret",
    ),
    Break(
        "site: a label is looked at when its record is drawn",
        "site/records.py",
        "if low < 0 or high >= classes:",
        "if False:",
        f"{NODES}::test_a_label_outside_the_classes_is_found_before_round_1",
    ),
    Break(
        "site: a round's classes are not checked against all records",
        "site/runtime.py",
        "if fitting not in self._fitting:",
        "if not self._fitting:",
        f"{NODES}::test_a_server_that_changes_its_mind_is_refused_whichever_records_are_drawn",
    ),
    Break(
        "site: what it says of itself crosses the boundary as it is",
        "federation/failures.py",
        "    if not simulated:\n        return describe_failure(error)",
        "    if False:\n        return describe_failure(error)",
        f"{NODES}::test_a_site_that_can_never_contribute_stops_the_run_before_round_1",
    ),
    Break(
        "site: nobody asks whether it can take part",
        "run/server_run.py",
        "check_ready(grid, nodes, self._order_to, timeout=timeout)",
        "pass",
        f"{NODES}::test_a_site_that_can_never_contribute_stops_the_run_before_round_1",
    ),
    Break(
        "Ray listens on every interface",
        "federation/flower_compat.py",
        "_ray_on_loopback() if here else nullcontext()",
        "nullcontext()",
        f"{ENGINES}::test_a_ray_that_is_started_here_is_bound_to_loopback",
    ),
]
