"""Breaks of what makes a gradient row one record's, and of the integer grid."""

from __future__ import annotations

from tests.breaks.base import Break

CHECK = "tests/learning/networks/test_record_check.py"
DP_SGD = "tests/learning/networks/test_dp_sgd.py"

BREAKS = [
    Break(
        "rows are not counted",
        "learning/networks/per_sample.py",
        "if isinstance(rows, Tensor) and len(rows) == records:",
        "if isinstance(rows, Tensor):",
        "tests/learning/networks/test_per_sample.py::test_rows_are_counted_on_every_batch",
    ),
    Break(
        "records are checked with the weights that a head starts with",
        "learning/networks/record_check.py",
        "p.add_(torch.randn(p.shape, generator=draw).to(dtype) / fan_in**0.5)",
        "pass",
        f"{CHECK}::test_coupled_records_are_refused_in_every_mode",
    ),
    Break(
        "gradients are not compared with a record's own",
        "learning/networks/record_check.py",
        "if not bool((a - b).norm() <= allowed)",
        "if False",
        f"{CHECK}::test_hooks_that_are_wrong_are_refused_by_layer",
    ),
    Break(
        "records are checked in float32",
        "learning/networks/record_check.py",
        "COUPLING, COUPLING_FLOAT32 = 1e-9, 1e-6",
        "COUPLING, COUPLING_FLOAT32 = 1e-3, 1e-3",
        f"{CHECK}::test_coupled_records_are_refused_in_every_mode",
    ),
    Break(
        "a dropout mask for each place in the batch",
        "learning/networks/per_sample.py",
        'randomness="same"',
        'randomness="different"',
        f"{CHECK}::test_auto_takes_the_first_mode_that_is_right",
    ),
    Break(
        "float32 noise on a sum",
        "privacy/mechanisms/private_sum.py",
        "np.rint(draws, out=draws).astype(np.int64)",
        "draws.astype(np.float32)  # type: ignore[assignment]",
        f"{DP_SGD}::test_the_low_bits_of_a_release_tell_nothing",
    ),
    Break(
        "norms of records in float32",
        "learning/networks/dp_sgd.py",
        "torch.linalg.vector_norm(rows[part].double(), dim=1)",
        "torch.linalg.vector_norm(rows[part], dim=1).double()",
        f"{DP_SGD}::test_norms_of_many_weights_are_taken_in_float64",
    ),
    Break(
        "a pass that broke off stays in Opacus' hooks",
        "learning/networks/per_sample.py",
        "        except BaseException:\n            self.reset()\n            raise",
        "        except BaseException:\n            raise",
        f"{DP_SGD}::test_a_pass_that_breaks_off_does_not_poison_the_next",
    ),
    Break(
        "a network may remember a batch",
        "learning/networks/per_sample.py",
        "            refuse_changed(before, self.model)\n",
        "",
        f"{CHECK}::test_a_network_that_remembers_a_batch_adds_nothing",
    ),
    Break(
        "random numbers by place in the batch",
        "learning/networks/record_check.py",
        'if mode == "hooks" and not torch.equal(drawn, torch.get_rng_state()):',
        "if False:",
        f"{CHECK}::test_hooks_that_are_wrong_are_refused_by_layer",
    ),
    Break(
        "foreign code by hooks, as far as probing goes",
        "learning/networks/record_check.py",
        'if known else ("functorch",)',
        'if True else ("functorch",)',
        f"{CHECK}::test_what_probing_cannot_find_is_not_left_to_probing",
    ),
    Break(
        "audit: a record that moves too far is left to statistics",
        "evidence/release_audit.py",
        "if pair.moved > MOST_MOVED:",
        "if False:",
        "tests/evidence/test_release_audit.py::"
        "test_a_record_that_moves_too_far_is_found_however_much_noise_hides_it",
    ),
    Break(
        "what rounding adds is not charged",
        "privacy/mechanisms/private_sum.py",
        "return max_norm * (1.0 + norms + sums + rows) + math.sqrt(dimension) * self.step",
        "return max_norm",
        "tests/privacy/mechanisms/test_private_sum.py::test_sensitivity_covers_truncation_and_float64_sums",
    ),
    Break(
        "a site takes the server's word for the network",
        "learning/networks/learner.py",
        "if not isinstance(mechanism, DPSGD) or self._vetted == mechanism.grad_mode:",
        "if True:",
        "tests/runs/test_nodes.py::test_a_site_tries_the_network_for_itself",
    ),
    Break(
        "blocks by who was drawn",
        "learning/networks/dp_sgd.py",
        "np.split(chosen, np.searchsorted(chosen, np.arange(size, n, size)))",
        "np.split(chosen, np.arange(size, len(chosen), size))",
        f"{DP_SGD}::test_records_are_cut_into_blocks_by_their_numbers_not_by_who_was_drawn",
    ),
]
