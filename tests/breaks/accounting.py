"""Breaks of what was spent by whom, by which relation, and when a run ends."""

from __future__ import annotations

from tests.breaks.base import Break

ACCOUNTING = "tests/federation/test_privacy_guard.py"
GROUP = "tests/privacy/accounting/test_group.py"

BREAKS: list[Break] = [
    Break(
        "accounting: a site that left is forgotten",
        "federation/run_account.py",
        "names = {name for plan in self._plans.values() for name in plan.clients}",
        "names = set(self.plan.clients)",
        f"{ACCOUNTING}::test_a_site_that_left_stays_in_the_maximum",
    ),
    Break(
        "accounting: secret participations end the run",
        "federation/privacy_guard.py",
        "goes_on = self._next_fits if self.hidden else self._may_train",
        "goes_on = self._may_train",
        f"{ACCOUNTING}::test_secret_participations_that_are_used_up_do_not_end_the_run",
    ),
    Break(
        "accounting: a hidden budget looks at who took part",
        "federation/privacy_guard.py",
        "        if not self.hidden:\n            return self.fits(name, self._taken",
        "        if True:\n            return self.fits(name, self._taken",
        f"{ACCOUNTING}::test_a_hidden_run_ends_after_as_many_rounds_whoever_was_drawn",
    ),
    Break(
        "accounting: a default target ends a run whose noise was given",
        "config/composition.py",
        'return None if _parent_.get("noise_multiplier") is not None else epsilon',
        "return epsilon",
        f"{ACCOUNTING}::test_a_noise_that_is_given_lifts_the_default_target_but_not_a_given_one",
    ),
    Break(
        "accounting: replacements and removals are composed as one",
        "site/ledger.py",
        '(self.replaced if event.adjacency == "replace_one" else self.removed).add(event)',
        "self.removed.add(event)",
        "tests/site/test_ledger.py::test_a_clients_own_ledger_brings_neighbours_to_one_relation",
    ),
    Break(
        "accounting: a patient counts with the client that is worst for a record",
        "run/privacy_report.py",
        "worst = max(found, key=lambda name: found[name], default=None)",
        "worst = max(found, key=lambda name: epsilons[name], default=None)",
        f"{ACCOUNTING}::test_a_patients_epsilon_is_the_worst_over_all_clients",
    ),
    Break(
        "accounting: a patient's records are drawn once for all",
        "privacy/accounting/mixture.py",
        "logs: Array = chosen + j * math.log(q) + (k - j) * math.log1p(-q)",
        "logs: Array = 0 * chosen + j * math.log(q) + (k - j) * math.log1p(-q)",
        "tests/privacy/accounting/test_mixture.py::test_a_mixture_diverges_as_numeric_integration_says",
    ),
    Break(
        "accounting: a group in one direction only",
        "privacy/accounting/pld.py",
        '("REMOVE", delta_if_removed, mixture.mixture_if_removed),',
        '("REMOVE", delta_if_removed, mixture.mixture_if_added),',
        f"{GROUP}::test_a_group_bound_holds_and_is_close_by_monte_carlo",
    ),
    Break(
        "accounting: one round more than fits",
        "federation/run_account.py",
        "return rounds <= low",
        "return rounds <= low + 1",
        f"{ACCOUNTING}::test_a_hidden_run_ends_after_as_many_rounds_whoever_was_drawn",
    ),
    Break(
        "accounting: a mean is rounded before it is noised",
        "privacy/toolbox/mechanisms.py",
        "total = sum(_nearest_multiple(float(value), exponent) for value in clamped)",
        "total = _nearest_multiple(math.fsum(clamped) / n, exponent) * n",
        "tests/privacy/toolbox/test_mechanisms.py::test_private_mean_is_not_rounded_before_it_is_noised",
    ),
]
