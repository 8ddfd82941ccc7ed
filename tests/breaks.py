"""The privacy code broken on purpose, one way at a time, and the test that must then fail.

    python -m tests.breaks               try all of them, on a copy of the checkout
    python -m tests.breaks ledger clip   those whose name has one of these words

Exits with 1 if a break is not caught. `tests/test_breaks.py` sees to it that the list fits the
code.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
STYLES = "tests/federation/test_styles.py"
CLIENT_LEVEL = "tests/federation/test_client_level.py"
DP_SGD = "tests/tasks/test_dp_sgd.py"
RESUME = "tests/federation/resume"
ANOMALY = "tests/federation/test_anomaly.py"
ROWS = "tests/federation/test_anomaly_rows.py"
EVIDENCE = "tests/federation/test_anomaly_evidence.py"
NOISE = "tests/privacy/test_noise.py"
LEDGER = "tests/privacy/test_ledger.py"
CARD = "tests/reporting/test_privacy_card.py"
RUN_REPORT = "tests/reporting/test_run_report.py"
SWEEP_REPORT = "tests/reporting/test_sweep_report.py"
STOPPING = "tests/federation/test_stopping.py"
HOSTILE_CLIENTS = "tests/federation/test_hostile_clients.py"
HOSTILE_SERVER = "tests/federation/test_hostile_server.py"
SECRETS = "tests/federation/test_secrets.py"
NAMED_CODE = "tests/test_named_code.py"
FAULTS = "tests/federation/test_faults.py"
LOCAL_GRID = "tests/federation/test_local_grid.py"


@dataclass(frozen=True)
class Break:
    """One mistake.

    Attributes:
        name: what somebody did.
        file: in `dp_fedmed/`.
        old: what stands there.
        new: what is put in its place.
        caught_by: the test that fails then.
    """

    name: str
    file: str
    old: str
    new: str
    caught_by: str


BREAKS = [
    Break(
        "record noise ÷ 4",
        "tasks/dp_sgd.py",
        "sigma = self.noise_multiplier * self.max_grad_norm",
        "sigma = self.noise_multiplier * self.max_grad_norm / 4",
        f"{DP_SGD}::test_noise_has_the_scale_that_is_accounted",
    ),
    Break(
        "client noise ÷ 4",
        "federation/client_level.py",
        "std = self.update_noise * self.clip_norm",
        "std = self.update_noise * self.clip_norm / 4",
        f"{CLIENT_LEVEL}::test_released_noise_has_the_scale_that_is_accounted",
    ),
    Break(
        "a site's own noise on a statistic ÷ 2",
        "learning/anomaly.py",
        "std = work.plan.noise_multiplier * BOUND / max(1, count)",
        "std = work.plan.noise_multiplier * BOUND / max(1, count) / 2",
        f"{ANOMALY}::test_a_clients_own_noise_has_the_scale_that_is_charged",
    ),
    Break(
        "no noise on the count of adaptive clipping",
        "federation/client_level.py",
        "stream.normal(1, std=count_noise)",
        "stream.normal(1, std=0.0)",
        f"{CLIENT_LEVEL}::test_the_count_of_adaptive_clipping_is_noised",
    ),
    Break(
        "no clipping of records (hooks, functorch)",
        "tasks/dp_sgd.py",
        "factors = (self.max_grad_norm / (norms + 1e-6)).clamp(max=1.0)",
        "factors = torch.ones_like(norms)",
        f"{DP_SGD}::test_one_record_moves_the_sum_by_at_most_c",
    ),
    Break(
        "no clipping of records (ghost)",
        "tasks/dp_sgd.py",
        "factors = (optimizer.max_grad_norm / (norms + 1e-6)).clamp(max=1.0)",
        "factors = torch.ones_like(norms)",
        f"{DP_SGD}::test_one_record_moves_the_sum_by_at_most_c",
    ),
    Break(
        "no clipping of updates",
        "federation/client_level.py",
        "max_norm=self.clip_norm)",
        "max_norm=1e30)",
        f"{CLIENT_LEVEL}::test_one_client_moves_the_sum_by_at_most_c",
    ),
    Break(
        "no bound on an image's vector",
        "tasks/patchcore/statistics.py",
        "max_norm=BOUND",
        "max_norm=1e9",
        "tests/tasks/patchcore/test_statistics.py"
        "::test_the_bound_does_not_rest_on_a_mechanisms_own_arithmetic",
    ),
    Break(
        "the accountant is new each round",
        "federation/privacy_guard.py",
        "self._record(charge)  # first: what",
        "self.accountant = self.plan.accountant(self.config)\n"
        "        self._record(charge)  # first: what",
        f"{STYLES}::test_epsilon_grows_with_every_round_and_never_restarts",
    ),
    Break(
        "noise is reused across rounds",
        "federation/secrets.py",
        "return self.key.stream(self._id(purpose, step, self.key.private_digest(exact)))",
        "return self.key.stream(StreamId(run='r', phase=0, purpose=purpose, round_num=0,"
        " public_digest=bytes(32), private_digest=bytes(32)))",
        f"{CLIENT_LEVEL}::test_noise_is_not_repeated_across_rounds_or_runs",
    ),
    Break(
        "one noise vector for two different sums",
        "privacy/noise.py",
        'return self._mac(b"dp_fedmed private digest v1" + array_digest(arrays))',
        'return self._mac(b"dp_fedmed private digest v1")',
        f"{CLIENT_LEVEL}::test_the_same_inputs_give_the_same_release_and_others_do_not",
    ),
    Break(
        "one noise vector at two noise scales",
        "federation/secrets.py",
        'settings = {"in force": dict(in_force), **computed_from(config)}',
        "settings = computed_from(config)",
        f"{STYLES}::test_one_sum_at_two_noise_scales_does_not_share_its_noise",
    ),
    Break(
        "the private digest is a plain hash",
        "privacy/noise.py",
        'return self._mac(b"dp_fedmed private digest v1" + array_digest(arrays))',
        'return hashlib.sha256(b"dp_fedmed private digest v1" + array_digest(arrays)).digest()',
        f"{NOISE}::test_the_private_digest_is_keyed",
    ),
    Break(
        "noise from a public seed passes as private",
        "privacy/noise.py",
        "return cls(digest, is_private=False)",
        "return cls(digest)",
        f"{NOISE}::test_a_public_seed_taints_every_stream_and_derived_key",
    ),
    Break(
        "updates weighted by examples under client-level noise",
        "config_checks.py",
        "if federation.weighting is not Weighting.uniform:",
        "if False:",
        f"{CLIENT_LEVEL}::test_what_breaks_the_guarantee_is_refused",
    ),
    Break(
        "a run stops by how many clients came",
        "config_checks.py",
        "        if federation.min_clients is not None:\n",
        "        if False:\n",
        f"{CLIENT_LEVEL}::test_what_breaks_the_guarantee_is_refused",
    ),
    Break(
        "the sum is divided by who came",
        "federation/client_level.py",
        "/ self.expected_cohort\n            for name",
        "/ max(1.0, 2 * abs(self._below))\n            for name",
        f"{CLIENT_LEVEL}::test_the_sum_is_divided_by_the_expected_cohort_not_by_who_came",
    ),
    Break(
        "the gradient is divided by the realised batch",
        "tasks/dp_sgd.py",
        ".div_(self.expected_batch_size)",
        ".div_(self.expected_batch_size * 0.9)",
        f"{DP_SGD}::test_the_denominator_is_the_expected_batch_not_the_realised_one",
    ),
    Break(
        "a cohort of fixed size is accounted as Poisson",
        "federation/sampling.py",
        """        return PrivacyEvent.fixed_size(
            unit="client",
            noise_multiplier=noise_multiplier,
            cohort_size=self._size(population),
            population=population,
            adjacency="zero_out",
""",
        """        return PrivacyEvent.poisson(
            unit="client",
            noise_multiplier=noise_multiplier,
            sample_rate=self.rate,
""",
        "tests/federation/test_sampling.py::test_only_poisson_claims_amplification",
    ),
    Break(
        "batches of a shuffled epoch, accounted as Poisson",
        "tasks/dp_sgd.py",
        "np.flatnonzero(rng.random(n) < plan.sample_rate)",
        "rng.permutation(n)[: round(n * plan.sample_rate)]",
        f"{DP_SGD}::test_poisson_batches_have_the_mean_and_variance_of_coins",
    ),
    Break(
        "an empty batch takes no step",
        "tasks/dp_sgd.py",
        "        optimizer.noisy_step(step, noise_for)\n",
        "        if losses:\n            optimizer.noisy_step(step, noise_for)\n",
        f"{DP_SGD}::test_an_empty_batch_still_takes_a_step_of_pure_noise",
    ),
    Break(
        "one NaN record poisons the sum",
        "tasks/dp_sgd.py",
        "            rows = [torch.where(finite[:, None], r, 0.0) for r in rows]\n",
        "",
        f"{DP_SGD}::test_a_record_that_is_not_finite_contributes_nothing",
    ),
    Break(
        "a loss that couples records is let through",
        "learning/gradient.py",
        "if found > COUPLING_TOLERANCE:",
        "if False:",
        "tests/federation/test_runs.py::test_a_network_that_couples_records_is_refused_before_round_1",
    ),
    Break(
        "running statistics go with the update",
        "learning/gradient.py",
        "for key in update.keys() - self.trainable:",
        "for key in set():",
        f"{STYLES}::test_running_statistics_do_not_leave_a_private_client",
    ),
    Break(
        "the training loss is sent",
        "learning/gradient.py",
        "            result = self._train_privately(work)\n",
        "            result = self._train_privately(work)\n"
        '            metrics["train_loss"] = result.loss\n',
        f"{STYLES}::test_no_loss_of_private_records_is_sent",
    ),
    Break(
        "the cohort is drawn from the public seed",
        "federation/strategy.py",
        "        if self.hides_cohorts:\n            rng = self._secrets",
        "        if False:\n            rng = self._secrets",
        f"{STYLES}::test_a_secret_cohort_does_not_follow_from_the_seed",
    ),
    Break(
        "the report shows who took part",
        "federation/privacy_guard.py",
        "        if not self.hidden:\n            return {name: self.accountant.history",
        "        if True:\n            return {name: self.accountant.history",
        f"{STYLES}::test_hidden_cohorts_stay_out_of_public_files",
    ),
    Break(
        "the best model is kept",
        "federation/server_run.py",
        "if self.private:  # choosing the best",
        "if False:  # choosing the best",
        f"{STYLES}::test_the_last_model_is_kept_not_the_best",
    ),
    Break(
        "sampling of clients is counted as amplification for records",
        "federation/privacy_plan.py",
        "            sample_rate=self.sample_rate,\n            steps=self.steps,",
        "            sample_rate=self.sample_rate * 0.5,\n            steps=self.steps,",
        f"{STYLES}::test_records_of_a_run_cost_the_worst_clients_epsilon",
    ),
    Break(
        "calibrated by one accountant, enforced by another",
        "federation/privacy_plan.py",
        "num_rounds=rounds,\n                accountant=config.privacy.accountant.value,",
        'num_rounds=rounds,\n                accountant="pld",',
        f"{STYLES}::test_a_calibrated_run_spends_its_target_and_no_more",
    ),
    Break(
        "the budget is not looked at before a round",
        "federation/privacy_guard.py",
        "        self._require_budget(server_round)\n",
        "",
        f"{STYLES}::test_a_budget_ends_the_run_cleanly_before_the_round_that_does_not_fit",
    ),
    Break(
        "the wrong RDP of a sampled Gaussian: α q² / 2σ²",
        "privacy/rdp.py",
        "        log_excess = np.empty_like(ORDERS)\n",
        "        return _sealed(ORDERS * q * q / (2.0 * sigma * sigma))\n"
        "        log_excess = np.empty_like(ORDERS)\n",
        "tests/privacy/test_reference_values.py",
    ),
    Break(
        "a resumed run forgets what it spent",
        "federation/privacy_guard.py",
        "for charge in journal.charges if journal is not None else ():",
        "for charge in ():",
        f"{RESUME}/test_going_on.py::test_an_interrupted_run_goes_on_and_spends_its_target",
    ),
    Break(
        "a round that was released is released anew",
        "federation/strategy.py",
        "self._replayed = self.guard.journal.stored()",
        "self._replayed = None",
        f"{RESUME}/test_going_on.py::test_a_release_that_is_on_disk_is_taken_from_there_and_nobody_is_asked",
    ),
    Break(
        "a round done differently is not charged again",
        "federation/journal.py",
        "for charge in self._by_round.get((self.phase, server_round, digest), ()):",
        "for charge in [c for c in self.charges if c.server_round == server_round]:",
        f"{RESUME}/test_going_on.py::test_going_back_to_do_something_else_is_charged_again",
    ),
    Break(
        "an edited ledger is believed",
        "privacy/ledger.py",
        "if not hmac.compare_digest(previous.hex().encode(), seal[1]):",
        "if False:",
        f"{LEDGER}::test_a_changed_chain_is_refused",
    ),
    Break(
        "a shared ledger forgets a run",
        "federation/journal.py",
        "        if self._data_ledger is not None:\n            clients",
        "        if False:\n            clients",
        f"{RESUME}/test_data_ledger.py::test_a_data_ledger_adds_up_what_runs_spent_on_the_same_data",
    ),
    Break(
        "a shared ledger forgets what a run for clients tells of a record",
        "federation/data_ledger.py",
        "    if not within:\n        return",
        "    if True:\n        return",
        f"{RESUME}/test_data_ledger.py::test_every_run_counts_for_both_units_whichever_it_protects",
    ),
    Break(
        "a shared ledger promises a client what its runs for records do not",
        "federation/data_ledger.py",
        "None if records_only else",
        "",
        f"{RESUME}/test_data_ledger.py::test_every_run_counts_for_both_units_whichever_it_protects",
    ),
    Break(
        "a forged (σ, q, T) is believed",
        "federation/privacy_guard.py",
        "if realised.get(key) != expected[key]:",
        "if False:",
        f"{STYLES}::test_a_reply_that_does_not_fit_the_plan_is_refused",
    ),
    Break(
        "a client trains beyond its own budget",
        "federation/client_ledger.py",
        "if not spent <= most * (1 + 1e-9):",
        "if False:",
        f"{STYLES}::test_a_client_refuses_noise_that_breaks_its_budget",
    ),
    Break(
        "a client follows a server whose ledger went back",
        "federation/client_ledger.py",
        "if run.ledger >= asked.ledger:",
        "if False:",
        f"{STYLES}::test_a_client_refuses_a_server_whose_ledger_went_back",
    ),
    Break(
        "a patient counts with all records",
        "data/clients.py",
        "    if config.data.group_by is None:\n        return indices\n",
        "    return indices\n",
        f"{STYLES}::test_patients_are_capped_and_have_their_own_epsilon",
    ),
    Break(
        "a trusted server is promised something",
        "federation/privacy_report.py",
        'sees_it = unit == "client" or config.record_noise_at_server',
        'sees_it = unit == "client"',
        f"{ANOMALY}::test_a_trusted_server_is_promised_nothing",
    ),
    Break(
        "a key that others can read",
        "privacy/keys.py",
        "os.open(temporary, flags, 0o600)",
        "os.open(temporary, flags, 0o644)",
        f"{NOISE}::test_key_files_are_private_exclusive_and_round_trip",
    ),
    Break(
        "a plan by another accountant than the run's",
        "federation/forecast.py",
        "return make_plan(config, records=records, sampler=sampler, is_private=is_private)",
        "return make_plan(\n            with_accountant(config, AccountantName.rdp),\n"
        "            records=records,\n            sampler=sampler,\n"
        "            is_private=is_private,\n        )",
        "tests/test_plan.py::test_a_run_spends_and_noises_just_as_planned",
    ),
    Break(
        "a plan that counts records otherwise than a client",
        "federation/forecast.py",
        "client_indices(config, data, client=number, num_clients=count)[0]",
        "client_indices(config, data, client=number, num_clients=count)[0].repeat(2)",
        "tests/test_plan.py::test_records_are_counted_as_a_client_counts_them",
    ),
    Break(
        "a secret cohort on the terminal",
        "federation/server_run.py",
        'record = public_record(record, row["epsilon"])',
        'record.epsilons = row["epsilon"]',
        f"{STOPPING}::test_on_a_terminal_the_panel_is_drawn_and_ctrl_c_ends_the_round",
    ),
    Break(
        "a stop after the round that leaves no checkpoint",
        "federation/server_run.py",
        "if isinstance(error, Interrupted) and",
        "if False and",
        f"{STOPPING}::test_on_a_terminal_the_panel_is_drawn_and_ctrl_c_ends_the_round",
    ),
    Break(
        "single rows accounted as if an image could be removed",
        "federation/privacy_plan.py",
        'return "replace_one" if config.releases_rows else "add_remove"',
        'return "add_remove"',
        f"{ROWS}::test_rows_cost_one_release_for_a_replaced_image",
    ),
    Break(
        "single rows calibrated for C, not for 2C",
        "federation/privacy_plan.py",
        'return (2.0 if adjacency == "replace_one" else 1.0) *',
        "return",
        f"{ROWS}::test_the_target_is_met_and_the_noise_is_on_the_rows",
    ),
    Break(
        "rows chosen by what they hold",
        "tasks/patchcore/noisy_rows.py",
        "            chosen.append(patches",
        "            kept = np.argsort(-patches.reshape(-1, patches.shape[2])[:, 0])[: len(kept)]\n"
        "            chosen.append(patches",
        f"{ROWS}::test_replacing_one_image_moves_what_a_client_sends_by_two_root_m_at_most",
    ),
    Break(
        "noise of a row for an image of several",
        "tasks/patchcore/noisy_rows.py",
        "return noise_multiplier * self.sanitizer.sensitivity / 2.0",
        "return noise_multiplier",
        "tests/tasks/patchcore/test_statistics.py::test_noisy_rows_carry_the_noise_they_promise",
    ),
    Break(
        "a client's own ledger counts a replacement as a removal",
        "federation/client_ledger.py",
        'row.get("adjacency", "add_remove")',
        '"add_remove"',
        f"{ROWS}::test_a_clients_own_budget_counts_replacements",
    ),
    Break(
        "kept features are found by the number of images",
        "tasks/patchcore/feature_cache.py",
        "    found.update(np.ascontiguousarray(images).data)\n",
        "",
        "tests/tasks/patchcore/test_feature_cache.py::test_other_images_have_other_features",
    ),
    Break(
        "figures by client are published in private styles",
        "federation/server_run.py",
        "            self.directory.append_metrics(row)\n            private",
        "            self.directory.append_metrics(row | seen)\n            private",
        f"{EVIDENCE}::test_figures_by_client_stay_private_where_clients_do",
    ),
    Break(
        "odds of half the ε",
        "privacy/odds.py",
        "(1.0 + math.exp(min(epsilon, 700.0)))",
        "(1.0 + math.exp(min(epsilon / 2, 700.0)))",
        "tests/privacy/test_odds.py::test_even_odds_have_a_closed_form",
    ),
    Break(
        "odds without δ",
        "privacy/odds.py",
        "balanced = 1.0 - (1.0 - delta) /",
        "balanced = 1.0 - 1.0 /",
        "tests/privacy/test_odds.py::test_the_best_mechanism_of_a_guarantee_reaches_the_bound",
    ),
    Break(
        "a privacy card outlives the rounds after it",
        "federation/run_directory.py",
        "for name in (CARD_FILE, EVALUATION_FILE):",
        "for name in ():",
        f"{CARD}::test_what_was_said_of_an_earlier_model_goes_when_a_run_goes_on",
    ),
    Break(
        "a report promises in spite of a public noise seed",
        "reporting/promises.py",
        """    if not facts.is_private:
        return Promise(reason""",
        """    if facts.is_private is None:
        return Promise(reason""",
        f"{RUN_REPORT}::test_a_public_noise_seed_voids_every_promise",
    ),
    Break(
        "a report rounds odds down",
        "reporting/words.py",
        "up = math.ceil(100.0 * probability",
        "up = math.floor(100.0 * probability",
        f"{RUN_REPORT}::test_a_page_says_who_is_promised_what_as_odds",
    ),
    Break(
        "a report runs what a setting holds",
        "reporting/page.py",
        "autoescape=True",
        "autoescape=False",
        f"{RUN_REPORT}::test_what_settings_and_names_hold_is_shown_not_run",
    ),
    Break(
        "a report shows whose machine it was",
        "reporting/words.py",
        'return "…/" + (re.split',
        "return value + (re.split",
        f"{RUN_REPORT}::test_no_place_on_the_machine_is_told",
    ),
    Break(
        "a report does not look at the ledger",
        "reporting/run_facts.py",
        "problems = [without_paths(text) for text in view.problems()]",
        "problems: list[str] = []",
        f"{RUN_REPORT}::test_a_run_that_was_tampered_with_says_so_first",
    ),
    Break(
        "the best run is chosen by the test set",
        "reporting/sweep_facts.py",
        "judged = setting.val if by_val and setting.val is not None else setting.test",
        "judged = setting.test",
        f"{SWEEP_REPORT}::test_the_best_is_chosen_by_validation_among_private_runs_within_epsilon",
    ),
    Break(
        "peer: the size of an array is not compared before it is read",
        "federation/arrays.py",
        "if size > most:",
        "if False:",
        f"{HOSTILE_CLIENTS}::test_an_unfit_reply_is_refused_and_said_once",
    ),
    Break(
        "peer: no limit on a norm where nobody clips",
        "federation/strategy.py",
        "LARGEST_NORM if self.mechanism is None else None",
        "None",
        f"{HOSTILE_CLIENTS}::test_where_nobody_clips_absurd_updates_are_refused",
    ),
    Break(
        "peer: no limit on a count of examples",
        "federation/replies.py",
        "not 0 <= examples <= MOST_EXAMPLES",
        "examples < 0",
        f"{HOSTILE_CLIENTS}::test_an_unfit_reply_is_refused_and_said_once",
    ),
    Break(
        "peer: a count of examples is not compared with the plan",
        "federation/strategy.py",
        "self.guard.check_examples(name, examples)",
        "pass",
        f"{HOSTILE_CLIENTS}::test_an_unfit_reply_is_refused_and_said_once",
    ),
    Break(
        "peer: a forged σ is accepted",
        "federation/privacy_guard.py",
        "if realised.get(key) != expected[key]:",
        "if False:",
        f"{HOSTILE_CLIENTS}::test_an_unfit_reply_is_refused_and_said_once",
    ),
    Break(
        "peer: replies are not matched with messages",
        "federation/exchange.py",
        "if message is not None and message.metadata.dst_node_id == node:",
        "if True:",
        f"{HOSTILE_CLIENTS}::test_an_unfit_reply_is_refused_and_said_once",
    ),
    Break(
        "peer: text is logged as it came",
        "federation/failures.py",
        "    said = str(text)",
        "    return str(text)\n    said = str(text)",
        f"{HOSTILE_CLIENTS}::test_nobody_writes_lines_of_its_own_into_the_log",
    ),
    Break(
        "peer: a warning in every round",
        "federation/strategy.py",
        "if reason not in warned and",
        "if",
        f"{HOSTILE_CLIENTS}::test_an_unfit_reply_is_refused_and_said_once",
    ),
    Break(
        "peer: a client takes any σ",
        "learning/gradient.py",
        "if not max(least, LEAST_NOISE) <= noise < math.inf:",
        "if False:",
        f"{HOSTILE_SERVER}::test_a_client_refuses_what_its_settings_do_not_imply",
    ),
    Break(
        "peer: a client takes any style",
        "client_app.py",
        'if told.get("style", style) != style:',
        "if False:",
        f"{HOSTILE_SERVER}::test_a_client_refuses_what_its_settings_do_not_imply",
    ),
    Break(
        "peer: a site's limit counts each run by itself",
        "federation/client_ledger.py",
        "(self._spent, budget.all_runs_epsilon, budget.all_runs_delta),",
        "",
        f"{HOSTILE_SERVER}::test_all_runs_together_keep_to_the_sites_own_limit",
    ),
    Break(
        "peer: a second answer is not paid for",
        "federation/client_ledger.py",
        "if self._paid[asked.key] <= len(before):",
        "if False:",
        f"{HOSTILE_SERVER}::test_averaging_is_paid_for",
    ),
    Break(
        "peer: a server's ledger may go back",
        "federation/client_ledger.py",
        "if run.ledger >= asked.ledger:",
        "if False:",
        f"{HOSTILE_SERVER}::test_a_ledger_that_goes_back_or_forks_is_refused",
    ),
    Break(
        "peer: a client takes any arrays for the model",
        "learning/gradient.py",
        "return model_arrays.checked(sent, self.state.read())",
        "return model_arrays.from_record(sent)",
        f"{HOSTILE_SERVER}::test_a_model_that_is_not_its_own_is_refused",
    ),
    Break(
        "peer: a public noise seed at a site",
        "federation/site_rules.py",
        "if config.privacy.noise_seed is not None:",
        "if False:",
        f"{HOSTILE_SERVER}::test_settings_of_a_server_do_not_overrule_the_site",
    ),
    Break(
        "peer: named code is not checked",
        "named_code.py",
        "if is_within(path, [*DECLARED[key], *allowed]):",
        "if True:",
        f"{NAMED_CODE}::test_code_that_nobody_allowed_is_refused_before_it_is_imported",
    ),
    Break(
        "peer: code that a declared module imports is open",
        "named_code.py",
        "if is_within(path, DECLARED[key]) and not is_within(home, DECLARED[key]):",
        "if False:",
        f"{NAMED_CODE}::test_a_declared_module_is_no_way_to_other_code",
    ),
    Break(
        "peer: a server's allow_code counts at a site",
        "federation/site_rules.py",
        "config.model._target_, self.allow_code, how",
        "config.model._target_, config.allow_code, how",
        f"{HOSTILE_SERVER}::test_settings_of_a_server_do_not_overrule_the_site",
    ),
    Break(
        "peer: folders in the log",
        "reporting/run_log.py",
        "if len(path) > 1:",
        "if False:",
        f"{SECRETS}::test_nothing_secret_is_written_or_sent",
    ),
    Break(
        "peer: a client's failure in run.log",
        "reporting/run_log.py",
        "handler.addFilter(lambda record: record.name != CLIENT_LOGGER)",
        "pass",
        f"{SECRETS}::test_a_clients_failure_stays_in_a_file_of_its_own",
    ),
    Break(
        "peer: the ledger's key in the report",
        "federation/server_run.py",
        "        self.directory.write_json(REPORT_FILE, report, durable=durable)",
        "        report['key'] = bytes(self.store.mac_key._secret).hex()\n"
        "        self.directory.write_json(REPORT_FILE, report, durable=durable)",
        f"{SECRETS}::test_nothing_secret_is_written_or_sent",
    ),
    Break(
        "peer: a record goes with the answer",
        "client_app.py",
        'content["metrics"] = MetricRecord({"num-examples"',
        'content["x"] = ConfigRecord({"x": records.x.tobytes()})\n'
        '        content["metrics"] = MetricRecord({"num-examples"',
        f"{SECRETS}::test_nothing_secret_is_written_or_sent",
    ),
    Break(
        "peer: key files by the umask",
        "privacy/keys.py",
        "os.open(temporary, flags, 0o600)",
        "os.open(temporary, flags)",
        f"{SECRETS}::test_private_files_are_for_their_owner_even_without_a_umask_and_no_pickle_is_read",
    ),
    Break(
        "peer: every second round is not charged",
        "federation/privacy_guard.py",
        "federation=self.plan.user_event,",
        "federation=self.plan.user_event if server_round % 2 else None,",
        f"{FAULTS}::test_a_run_full_of_faults_ends_with_the_right_epsilon_and_leaves_nothing",
    ),
    Break(
        "peer: a worker lost with an introduction ends the run",
        "federation/nodes.py",
        "if reply.error.code == ENGINE_ERROR and asked[node_id] < TRIES:",
        "if False:",
        f"{LOCAL_GRID}::test_a_worker_that_dies_while_names_are_asked_is_asked_again",
    ),
    Break(
        "peer: metrics are sent under a site's limit",
        "federation/site_rules.py",
        "if self.max_epsilon is not None and not self.publish_metrics:",
        "if False:",
        f"{HOSTILE_SERVER}::test_metrics_of_private_records_are_not_sent_under_a_limit",
    ),
]


def fails(broken: Break, tree: Path) -> bool:
    """Whether the named test fails with the break in this copy of the checkout."""
    file = tree / "dp_fedmed" / broken.file
    sound = file.read_text(encoding="utf-8")
    file.write_text(sound.replace(broken.old, broken.new), encoding="utf-8")
    try:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-x",
                "-p",
                "no:cacheprovider",
                broken.caught_by,
            ],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
        )
    finally:
        file.write_text(sound, encoding="utf-8")
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{broken.name}: pytest could not run\n{done.stdout}{done.stderr}")
    return done.returncode == 1


def main(words: list[str]) -> int:
    """Try the breaks that are named, and print which test caught which."""
    wanted = [b for b in BREAKS if not words or any(word in b.name for word in words)]
    table = Table("broken on purpose", "where", "caught by", "")
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "checkout"
        leave = shutil.ignore_patterns(".git", ".venv", "checkpoints", "site", "__pycache__")
        shutil.copytree(ROOT, tree, ignore=leave)
        for broken in track(wanted, description="breaking"):
            caught = fails(broken, tree)
            missed += not caught
            name = broken.caught_by.rsplit("/", 1)[-1]
            table.add_row(broken.name, broken.file, name, "caught" if caught else "[red]MISSED")
    Console(width=200).print(table)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
