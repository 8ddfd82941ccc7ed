"""Breaks of sums that workers add up."""

from __future__ import annotations

from tests.breaks.base import Break

SUMS = "tests/federation/test_partial_sums.py"
POOL = "tests/engines/test_worker_pool.py"
WORKER = "tests/engines/test_worker.py"
KILLED = f"{POOL}::test_whoever_is_killed_each_client_that_was_added_is_in_the_sum_once"

BREAKS = [
    Break(
        "partial sums: a dead worker's sum is lost",
        "engines/worker_pool.py",
        "            if batch.total is not None:\n                worker.hand_in(batch.total)\n",
        "",
        KILLED,
    ),
    Break(
        "partial sums: a sum is overwritten while it is the one that was reported",
        "engines/worker.py",
        "free = 0 if self.held is None else 1 - self.held",
        "free = 0 if self.held is None else self.held",
        f"{WORKER}::test_a_sum_is_written_beside_the_one_that_was_reported",
    ),
    Break(
        "partial sums: a round begins with the sum of the last",
        "engines/worker_pool.py",
        "            if self.adder != batch.number:",
        "            if self.adder == 0:",
        f"{SUMS}::test_workers_add_up_to_the_same_bytes_with_the_c_of_each_round",
    ),
    Break(
        "partial sums: what a late worker had finished is lost",
        "engines/worker_pool.py",
        "                batch.done.update(worker.last_words())",
        "                worker.held = None",
        f"{SUMS}::test_what_was_added_before_a_time_out_counts",
    ),
    Break(
        "partial sums: a worker does not check a client's noise",
        "federation/partial_sums.py",
        "        self.charges = self.expected.charges(realised)",
        "        self.charges = 1",
        f"{SUMS}::test_a_worker_checks_what_a_client_did_for_its_records",
    ),
    Break(
        "partial sums: a worker does not bound",
        "federation/partial_sums.py",
        "bounded = self.mechanism.bound(answer, client=asked.name)",
        "bounded = {**answer, self.names[-1]: np.ones(1, np.int64)}",
        f"{SUMS}::test_a_huge_answer_is_clipped_by_a_worker_as_by_the_server",
    ),
    Break(
        "partial sums: floats too",
        "federation/partial_sums.py",
        "if any(value.dtype != np.int64 for value in made.total.values()):",
        "if False:",
        f"{SUMS}::test_what_cannot_be_added_up_elsewhere_is_added_up_here",
    ),
    Break(
        "partial sums: who pays again is not charged",
        "federation/partial_sums.py",
        "if facts.charges is not None and self._reader.guard is not None:",
        "if False:",
        f"{SUMS}::test_clients_pay_here_in_name_order_and_who_is_missing_is_late",
    ),
    Break(
        "partial sums: failures of hidden cohorts are shown",
        "federation/replies.py",
        'self._warn(self.shown, record, name, "contributed nothing", reason)',
        'self._warn(logger, record, name, "contributed nothing", reason)',
        f"{SUMS}::test_who_failed_is_not_shown_where_cohorts_are_hidden",
    ),
    Break(
        "partial sums: a client's state is forgotten",
        "engines/local_grid.py",
        "            self._keep_state(job, outcome)\n            total.note",
        "            total.note",
        f"{SUMS}::test_a_clients_state_lasts_where_its_answer_is_added_up",
    ),
]
