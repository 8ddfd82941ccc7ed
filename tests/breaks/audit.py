"""Breaks of the audit itself: an audit that looks away finds nothing."""

from __future__ import annotations

from tests.breaks.base import Break

_TESTS = "tests/evidence/test_release_audit.py"

BREAKS: list[Break] = [
    Break(
        "the audit tries the initial weights only, under which a zero head hides the layers below",
        "evidence/release_sources.py",
        "for _ in range(MODELS))]",
        "for _ in range(0))]",
        f"{_TESTS}::test_a_record_is_tried_under_other_weights_than_the_first",
    ),
    Break(
        "the audit's record stands alone in its batch, where coupling does not show",
        "evidence/release_sources.py",
        "            records = joined(self.canaries.subset(np.array([number - 1])), records)",
        "            records = self.canaries.subset(np.array([number - 1]))",
        f"{_TESTS}::test_the_real_build_stays_below_its_claim",
    ),
    Break(
        "the audit weighs all arrays alike, so one without noise does not show",
        "evidence/one_release.py",
        "if own[name] > 0.25 * whole else",
        "if own[name] > -1.0 else",
        f"{_TESTS}::test_too_little_noise_is_found",
    ),
    Break(
        "only the first release of a statistic is attacked",
        "evidence/release_sources.py",
        "min(config.federation.num_rounds, 2)",
        "min(config.federation.num_rounds, 1)",
        "tests/evidence/test_release_sources.py::test_each_release_of_a_statistic_is_attacked",
    ),
    Break(
        "one lucky attack in twenty calls a correct build broken",
        "evidence/release_audit.py",
        "    if found.mu(sure) > 1.0 / target.event.key[1]:",
        "    if found.mu(sure) < 0.0:",
        f"{_TESTS}::test_a_lucky_attack_is_not_taken_for_a_broken_build",
    ),
    Break(
        "the bound on μ takes the observed rates for the true ones",
        "privacy/auditing.py",
        "    level = 0.5 * (1.0 - _confidence(confidence))\n    tpr",
        "    level = 0.5 + 0.0 * _confidence(confidence)\n    tpr",
        "tests/privacy/test_auditing.py::test_a_true_mu_is_hardly_ever_exceeded",
    ),
]
