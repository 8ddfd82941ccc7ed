"""Breaks of the accounting, the mechanisms, the ledger, and the checks on peers."""

from __future__ import annotations

from tests.breaks.base import Break

STYLES = "tests/runs/test_styles.py"
CLIENT_UPDATES = "tests/privacy/mechanisms/test_client_updates.py"
ADAPTIVE = "tests/privacy/mechanisms/test_adaptive_clipping.py"
DP_SGD = "tests/learning/networks/test_dp_sgd.py"
RESUME = "tests/runs/resume"
ANOMALY = "tests/runs/anomaly/test_anomaly.py"
ROWS = "tests/runs/anomaly/test_anomaly_rows.py"
EVIDENCE = "tests/runs/anomaly/test_anomaly_evidence.py"
NOISE = "tests/privacy/streams/test_noise.py"
LEDGER = "tests/privacy/test_ledger.py"
CARD = "tests/reporting/test_report.py"
RUN_REPORT = "tests/reporting/test_run_page.py"
SWEEP_REPORT = "tests/sweeps/test_page.py"
STOPPING = "tests/runs/test_stopping.py"
HOSTILE_CLIENTS = "tests/runs/test_hostile_clients.py"
HOSTILE_SERVER = "tests/runs/test_hostile_server.py"
SECRETS = "tests/runs/test_secrets.py"
NAMED_CODE = "tests/config/test_named_code.py"
FAULTS = "tests/runs/test_faults.py"
LOCAL_GRID = "tests/engines/test_local_grid.py"

BREAKS = [
    Break(
        "record noise ÷ 4",
        "privacy/mechanisms/dp_sgd.py",
        "std = gaussian_std(noise_multiplier=self.noise_multiplier, sensitivity=moved)",
        "std = gaussian_std(noise_multiplier=self.noise_multiplier, sensitivity=moved) / 4",
        f"{DP_SGD}::test_noise_has_the_scale_that_is_accounted",
    ),
    Break(
        "client noise ÷ 4",
        "privacy/mechanisms/client_updates.py",
        "gaussian_std(noise_multiplier=self.noise_multiplier, sensitivity=self.max_norm)",
        "gaussian_std(noise_multiplier=self.noise_multiplier, sensitivity=self.max_norm / 4)",
        f"{CLIENT_UPDATES}::test_released_noise_has_the_scale_that_is_accounted",
    ),
    Break(
        "a site's own noise on a statistic ÷ 2",
        "privacy/mechanisms/statistic.py",
        "self.sums.release([total], stream, denominator=max(1, self.records))[0]",
        "self.sums.release([total], stream, std=self.sums.std / 2, denominator=self.records)[0]",
        f"{ANOMALY}::test_a_clients_own_noise_has_the_scale_that_is_charged",
    ),
    Break(
        "no noise on the count of adaptive clipping",
        "privacy/mechanisms/adaptive_clipping.py",
        "stream, std=self.count_noise, denominator",
        "stream, std=0.0, denominator",
        f"{ADAPTIVE}::test_the_count_of_adaptive_clipping_is_noised",
    ),
    Break(
        "no clipping of records (hooks, functorch)",
        "learning/networks/dp_sgd.py",
        "factors = torch.from_numpy(self.mechanism.bound(norms.numpy()))",
        "factors = torch.isfinite(norms).double()",
        f"{DP_SGD}::test_one_record_moves_the_sum_by_at_most_c",
    ),
    Break(
        "no clipping of updates",
        "privacy/mechanisms/client_updates.py",
        "self.sums.bounded(list(update.values()))",
        "self.sums.bounded(list(update.values()), 1e6 * self.max_norm)",
        f"{CLIENT_UPDATES}::test_one_client_moves_the_sum_by_at_most_c",
    ),
    Break(
        "no bound on an image's vector",
        "privacy/mechanisms/statistic.py",
        "return self.sums.bounded_rows(contribution)",
        "return self.sums.bounded_rows(contribution, 1e6)",
        "tests/privacy/mechanisms/test_statistic.py::test_one_record_moves_the_sum_by_at_most_one",
    ),
    Break(
        "the accountant is new each round",
        "federation/privacy_guard.py",
        "self.record(charge)  # first: what",
        "self.accountant = self.plan.accountant(self.config)\n"
        "        self.record(charge)  # first: what",
        f"{STYLES}::test_epsilon_grows_with_every_round_and_never_restarts",
    ),
    Break(
        "noise is reused across rounds",
        "privacy/streams/rounds.py",
        "return self.key.stream(self._id(purpose, step, self.key.private_digest(exact)))",
        "return self.key.stream(StreamId(run='r', phase=0, purpose=purpose, round_num=0,"
        " public_digest=bytes(32), private_digest=bytes(32)))",
        f"{CLIENT_UPDATES}::test_noise_is_not_repeated_across_rounds_or_runs",
    ),
    Break(
        "one noise vector for two different sums",
        "privacy/streams/noise.py",
        'return self._mac(b"dp_fedmed private digest v1" + array_digest(arrays))',
        'return self._mac(b"dp_fedmed private digest v1")',
        f"{CLIENT_UPDATES}::test_the_same_inputs_give_the_same_release_and_others_do_not",
    ),
    Break(
        "one noise vector at two noise scales",
        "privacy/streams/rounds.py",
        'config={"in force": dict(order), **settings}',
        "config=dict(settings)",
        f"{STYLES}::test_one_sum_at_two_noise_scales_does_not_share_its_noise",
    ),
    Break(
        "the private digest is a plain hash",
        "privacy/streams/noise.py",
        'return self._mac(b"dp_fedmed private digest v1" + array_digest(arrays))',
        'return hashlib.sha256(b"dp_fedmed private digest v1" + array_digest(arrays)).digest()',
        f"{NOISE}::test_the_private_digest_is_keyed",
    ),
    Break(
        "noise from a public seed passes as private",
        "privacy/streams/noise.py",
        "return cls(digest, is_private=False)",
        "return cls(digest)",
        f"{NOISE}::test_a_public_seed_taints_every_stream_and_derived_key",
    ),
    Break(
        "updates weighted by examples under client-level noise",
        "config/checks.py",
        "if federation.weighting is not Weighting.uniform:",
        "if False:",
        f"{CLIENT_UPDATES}::test_what_breaks_the_guarantee_is_refused",
    ),
    Break(
        "a run stops by how many clients came",
        "config/checks.py",
        "        if federation.min_clients is not None:\n",
        "        if False:\n",
        f"{CLIENT_UPDATES}::test_what_breaks_the_guarantee_is_refused",
    ),
    Break(
        "the sum is divided by who came",
        "privacy/mechanisms/client_updates.py",
        "denominator=self.expected_cohort,",
        "denominator=max(1.0, abs(total[BELOW][0])),",
        f"{CLIENT_UPDATES}::test_the_sum_is_divided_by_the_expected_cohort_not_by_who_came",
    ),
    Break(
        "the gradient is divided by the realised batch",
        "privacy/mechanisms/dp_sgd.py",
        "std=std, denominator=denominator)",
        "std=std, denominator=0.9 * denominator)",
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
        "learning/networks/dp_sgd.py",
        "np.flatnonzero(rng.random(n) < plan.sample_rate)",
        "rng.permutation(n)[: round(n * plan.sample_rate)]",
        f"{DP_SGD}::test_poisson_batches_have_the_mean_and_variance_of_coins",
    ),
    Break(
        "an empty batch takes no step",
        "learning/networks/dp_sgd.py",
        "        optimizer.noisy_step(step, noise_for)\n",
        "        if losses:\n            optimizer.noisy_step(step, noise_for)\n",
        f"{DP_SGD}::test_an_empty_batch_still_takes_a_step_of_pure_noise",
    ),
    Break(
        "one NaN record poisons the sum",
        "learning/networks/dp_sgd.py",
        "rows = [torch.where(torch.isfinite(norms)[:, None], r, 0.0) for r in rows]",
        "pass",
        f"{DP_SGD}::test_a_record_that_is_not_finite_contributes_nothing",
    ),
    Break(
        "a loss that couples records is let through",
        "learning/networks/record_check.py",
        "if moved > self.coupling:",
        "if False:",
        "tests/runs/test_runs.py::test_a_network_that_couples_records_is_refused_before_round_1",
    ),
    Break(
        "running statistics go with the update",
        "learning/networks/learner.py",
        "for key in update.keys() - self.trainable:",
        "for key in set():",
        f"{STYLES}::test_running_statistics_do_not_leave_a_private_client",
    ),
    Break(
        "the training loss is sent",
        "learning/networks/learner.py",
        "            result = self._train_privately(work)\n",
        "            result = self._train_privately(work)\n"
        '            metrics["train_loss"] = result.loss\n',
        f"{STYLES}::test_no_loss_of_private_records_is_sent",
    ),
    Break(
        "the cohort is drawn from the public seed",
        "federation/strategy.py",
        "        if self.hides_cohorts:\n            rng = self._streams",
        "        if False:\n            rng = self._streams",
        f"{STYLES}::test_a_secret_cohort_does_not_follow_from_the_seed",
    ),
    Break(
        "the report shows who took part",
        "federation/run_account.py",
        "        if not self.hidden:\n            return {name: self.accountant.history",
        "        if True:\n            return {name: self.accountant.history",
        f"{STYLES}::test_hidden_cohorts_stay_out_of_public_files",
    ),
    Break(
        "the best model is kept",
        "run/server_run.py",
        "if self.private:  # choosing the best",
        "if False:  # choosing the best",
        f"{STYLES}::test_the_last_model_is_kept_not_the_best",
    ),
    Break(
        "sampling of clients is counted as amplification for records",
        "federation/plan.py",
        "            sample_rate=self.sample_rate,\n            steps=self.steps,",
        "            sample_rate=self.sample_rate * 0.5,\n            steps=self.steps,",
        f"{STYLES}::test_records_of_a_run_cost_the_worst_clients_epsilon",
    ),
    Break(
        "calibrated by one accountant, enforced by another",
        "planning/plan.py",
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
        "privacy/accounting/rdp.py",
        "        log_excess = np.empty_like(ORDERS)\n",
        "        return _sealed(ORDERS * q * q / (2.0 * sigma * sigma))\n"
        "        log_excess = np.empty_like(ORDERS)\n",
        "tests/privacy/accounting/test_reference_values.py",
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
        "federation/privacy_guard.py",
        "self.stored = self.journal.stored()",
        "self.stored = None",
        f"{RESUME}/test_going_on.py::test_a_release_that_is_on_disk_is_taken_from_there_and_nobody_is_asked",
    ),
    Break(
        "a round done differently is not charged again",
        "run/journal.py",
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
        "run/journal.py",
        "        if self._data_ledger is not None:\n            clients",
        "        if False:\n            clients",
        f"{RESUME}/test_data_ledger.py::test_a_data_ledger_adds_up_what_runs_spent_on_the_same_data",
    ),
    Break(
        "a shared ledger forgets what a run for clients tells of a record",
        "run/data_ledger.py",
        "    if not within:\n        return",
        "    if True:\n        return",
        f"{RESUME}/test_data_ledger.py::test_every_run_counts_for_both_units_whichever_it_protects",
    ),
    Break(
        "a shared ledger promises a client what its runs for records do not",
        "run/data_ledger.py",
        "None if records_only else",
        "",
        f"{RESUME}/test_data_ledger.py::test_every_run_counts_for_both_units_whichever_it_protects",
    ),
    Break(
        "a forged (σ, q, T) is believed",
        "federation/privacy_guard.py",
        "if realised.get(key) != wanted:",
        "if False:",
        f"{STYLES}::test_a_reply_that_does_not_fit_the_plan_is_refused",
    ),
    Break(
        "a client trains beyond its own budget",
        "site/ledger.py",
        "if most is not None and not before.within(event, most, delta, budget.method):",
        "if False:",
        f"{STYLES}::test_a_client_refuses_noise_that_breaks_its_budget",
    ),
    Break(
        "a client follows a server whose ledger went back",
        "site/ledger.py",
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
        "run/privacy_report.py",
        'seen = {"record": config.record_noise_at_server or pooled',
        'seen = {"record": pooled',
        f"{ANOMALY}::test_a_trusted_server_is_promised_nothing",
    ),
    Break(
        "a key that others can read",
        "privacy/streams/keys.py",
        "os.open(temporary, flags, 0o600)",
        "os.open(temporary, flags, 0o644)",
        "tests/privacy/streams/test_keys.py::test_key_files_are_private_exclusive_and_round_trip",
    ),
    Break(
        "a plan by another accountant than the run's",
        "planning/forecast.py",
        "return make_plan(config, records=records, sampler=sampler, is_private=is_private)",
        "return make_plan(\n            with_accountant(config, AccountantName.rdp),\n"
        "            records=records,\n            sampler=sampler,\n"
        "            is_private=is_private,\n        )",
        "tests/commands/test_plan.py::test_a_run_spends_and_noises_just_as_planned",
    ),
    Break(
        "a plan that counts records otherwise than a client",
        "planning/forecast.py",
        "parts = training_parts(config, data)",
        "parts = [part.repeat(2) for part in training_parts(config, data)]",
        "tests/planning/test_forecast.py::test_records_are_counted_as_a_client_counts_them",
    ),
    Break(
        "a secret cohort on the terminal",
        "run/server_run.py",
        'record = public_record(record, row["epsilon"])',
        'record.epsilons = row["epsilon"]',
        f"{STOPPING}::test_on_a_terminal_the_panel_is_drawn_and_ctrl_c_ends_the_round",
    ),
    Break(
        "a stop after the round that leaves no checkpoint",
        "run/server_run.py",
        "if isinstance(error, Interrupted) and",
        "if False and",
        f"{STOPPING}::test_on_a_terminal_the_panel_is_drawn_and_ctrl_c_ends_the_round",
    ),
    Break(
        "single rows accounted as if an image could be removed",
        "planning/plan.py",
        'return "replace_one" if config.releases_rows else "zero_out"',
        'return "zero_out"',
        f"{ROWS}::test_rows_cost_one_release_for_a_replaced_image",
    ),
    Break(
        "single rows calibrated for C, not for 2C",
        "planning/plan.py",
        'return (2.0 if adjacency == "replace_one" else 1.0) *',
        "return",
        f"{ROWS}::test_the_target_is_met_and_the_noise_is_on_the_rows",
    ),
    Break(
        "rows chosen by what they hold",
        "learning/anomaly/noisy_rows.py",
        "        chosen.append(patches",
        "        kept = np.argsort(-patches.reshape(-1, patches.shape[2])[:, 0])[: len(kept)]\n"
        "        chosen.append(patches",
        f"{ROWS}::test_replacing_one_image_moves_what_a_client_sends_by_two_root_m_at_most",
    ),
    Break(
        "noise of a row for an image of several",
        "privacy/mechanisms/noisy_rows.py",
        "moved = BOUND * math.sqrt(self.rows_per_record)",
        "moved = BOUND",
        "tests/learning/anomaly/test_noisy_rows.py::test_noisy_rows_carry_the_noise_they_promise",
    ),
    Break(
        "a client's own ledger counts a replacement as a removal",
        "site/ledger.py",
        'row.get("adjacency", "zero_out")',
        '"zero_out"',
        f"{ROWS}::test_a_clients_own_budget_counts_replacements",
    ),
    Break(
        "kept features are found by the number of images",
        "learning/anomaly/features.py",
        "    found.update(np.ascontiguousarray(images).data)\n",
        "",
        "tests/learning/anomaly/test_features.py::test_other_images_have_other_features",
    ),
    Break(
        "figures by client are published in private styles",
        "run/server_run.py",
        "            self.directory.append_metrics(row)\n            private",
        "            self.directory.append_metrics(row | seen)\n            private",
        f"{EVIDENCE}::test_figures_by_client_stay_private_where_clients_do",
    ),
    Break(
        "odds of half the ε",
        "privacy/accounting/odds.py",
        "(1.0 + math.exp(min(epsilon, 700.0)))",
        "(1.0 + math.exp(min(epsilon / 2, 700.0)))",
        "tests/privacy/accounting/test_odds.py::test_even_odds_have_a_closed_form",
    ),
    Break(
        "odds without δ",
        "privacy/accounting/odds.py",
        "balanced = 1.0 - (1.0 - delta) /",
        "balanced = 1.0 - 1.0 /",
        "tests/privacy/accounting/test_odds.py::test_the_best_mechanism_of_a_guarantee_reaches_the_bound",
    ),
    Break(
        "a privacy card outlives the rounds after it",
        "run/directory.py",
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
        "privacy/accounting/odds.py",
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
        "sweeps/summary.py",
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
        "None if self.mechanism or self.masked else LARGEST_NORM",
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
        "federation/replies.py",
        "checks.check_examples(name, examples)",
        "pass",
        f"{HOSTILE_CLIENTS}::test_an_unfit_reply_is_refused_and_said_once",
    ),
    Break(
        "peer: a forged σ is accepted",
        "federation/privacy_guard.py",
        "if realised.get(key) != wanted:",
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
        "federation/replies.py",
        "if reason not in warned and",
        "if",
        f"{HOSTILE_CLIENTS}::test_an_unfit_reply_is_refused_and_said_once",
    ),
    Break(
        "peer: a client takes any σ",
        "assemble/mechanisms.py",
        "if not max(least, LEAST_NOISE) <= sigma < math.inf:",
        "if False:",
        f"{HOSTILE_SERVER}::test_a_client_refuses_what_its_settings_do_not_imply",
    ),
    Break(
        "peer: a client takes any style",
        "site/runtime.py",
        "if order.style != style:",
        "if False:",
        f"{HOSTILE_SERVER}::test_a_client_refuses_what_its_settings_do_not_imply",
    ),
    Break(
        "peer: a site's limit counts each run by itself",
        "site/ledger.py",
        "(self._spent, budget.all_runs_epsilon, budget.all_runs_delta),",
        "",
        f"{HOSTILE_SERVER}::test_all_runs_together_keep_to_the_sites_own_limit",
    ),
    Break(
        "peer: a second answer is not paid for",
        "site/ledger.py",
        "if self._paid[asked.key] <= len(before):",
        "if False:",
        f"{HOSTILE_SERVER}::test_averaging_is_paid_for",
    ),
    Break(
        "peer: a server's ledger may go back",
        "site/ledger.py",
        "if run.ledger >= asked.ledger:",
        "if False:",
        f"{HOSTILE_SERVER}::test_a_ledger_that_goes_back_or_forks_is_refused",
    ),
    Break(
        "peer: a client takes any arrays for the model",
        "site/runtime.py",
        "else model_arrays.checked(record, like)",
        "else model_arrays.from_record(record)",
        f"{HOSTILE_SERVER}::test_a_model_that_is_not_its_own_is_refused",
    ),
    Break(
        "peer: a public noise seed at a site",
        "site/rules.py",
        "if config.privacy.noise_seed is not None:",
        "if False:",
        f"{HOSTILE_SERVER}::test_settings_of_a_server_do_not_overrule_the_site",
    ),
    Break(
        "peer: named code is not checked",
        "config/named_code.py",
        "if is_within(path, [*DECLARED[key], *allowed]):",
        "if True:",
        f"{NAMED_CODE}::test_code_that_nobody_allowed_is_refused_before_it_is_imported",
    ),
    Break(
        "peer: code that a declared module imports is open",
        "config/named_code.py",
        "if is_within(path, DECLARED[key]) and not is_within(home, DECLARED[key]):",
        "if False:",
        f"{NAMED_CODE}::test_a_declared_module_is_no_way_to_other_code",
    ),
    Break(
        "peer: a server's allow_code counts at a site",
        "site/rules.py",
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
        "site/answers.py",
        "        if SiteRules.is_deployed(node):\n            logger.exception",
        "        if True:\n            logger.exception",
        f"{SECRETS}::test_a_clients_failure_stays_in_a_file_of_its_own",
    ),
    Break(
        "peer: the ledger's key in the report",
        "run/server_run.py",
        "        self.directory.write_json(REPORT_FILE, report, durable=durable)",
        "        report['key'] = bytes(self.store.mac_key._secret).hex()\n"
        "        self.directory.write_json(REPORT_FILE, report, durable=durable)",
        f"{SECRETS}::test_nothing_secret_is_written_or_sent",
    ),
    Break(
        "peer: a record goes with the answer",
        "site/own_rounds.py",
        'content["metrics"] = MetricRecord({"num-examples"',
        "from flwr.app import ConfigRecord\n"
        '        content["x"] = ConfigRecord({"x": work.records.x.tobytes()})\n'
        '        content["metrics"] = MetricRecord({"num-examples"',
        f"{SECRETS}::test_nothing_secret_is_written_or_sent",
    ),
    Break(
        "peer: key files by the umask",
        "privacy/streams/keys.py",
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
        "site/rules.py",
        "if self.max_epsilon is not None and not self.publish_metrics:",
        "if False:",
        f"{HOSTILE_SERVER}::test_metrics_of_private_records_are_not_sent_under_a_limit",
    ),
    Break(
        "a client's sum is not bounded under one noise",
        "privacy/mechanisms/record_sums.py",
        "if self.client_norm is not None and not sums.fits(steps, self.client_norm):",
        "if False:",
        "tests/privacy/mechanisms/test_record_sums.py"
        "::test_a_clients_sum_is_bounded_where_clients_are_protected",
    ),
    Break(
        "one noise is enough for a record only",
        "privacy/mechanisms/record_sums.py",
        "return max(std, gaussian_std(noise_multiplier=sigma, sensitivity=self.client_norm))",
        "return std",
        "tests/privacy/mechanisms/test_record_sums.py"
        "::test_one_noise_is_enough_for_a_record_and_for_a_client",
    ),
    Break(
        "one noise for clients with different shares of records in a step",
        "planning/plan.py",
        "if len({own.sample_rate for own in clients.values()}) > 1:",
        "if False:",
        "tests/runs/test_noise_places.py"
        "::test_unequal_shares_of_records_are_refused_with_a_batch_that_works",
    ),
    Break(
        "a contribution with a NaN is not left out",
        "privacy/mechanisms/private_sum.py",
        "if not all(np.isfinite(part).all() for part in flat):",
        "if False:",
        "tests/privacy/mechanisms/test_private_sum.py"
        "::test_a_contribution_that_is_not_finite_is_zero",
    ),
    Break(
        "a contribution is clipped to C, not below it by what a norm may be wrong",
        "privacy/mechanisms/private_sum.py",
        "return bound * (1.0 - (dimension + 8.0) * 2.0 * _ROUNDOFF)",
        "return bound * (1.0 + 2.0**-28)",
        "tests/privacy/mechanisms/test_private_sum.py"
        "::test_a_contribution_is_bounded_in_exact_arithmetic",
    ),
    Break(
        "frozen weights beside a client's sum make it look too long",
        "privacy/mechanisms/private_sum.py",
        "dimension = sum(int(np.count_nonzero(part)) for part in flat)",
        "dimension = sum(part.size for part in flat)",
        "tests/privacy/mechanisms/test_record_sums.py::test_an_honest_clients_sum_passes_as_it_is"
        "_beside_any_number_of_frozen_weights",
    ),
]
