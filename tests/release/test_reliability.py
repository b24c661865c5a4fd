"""What is known to go wrong in releases, and the tests that hold it: where to look, and to begin.

Each fault was seen or tried, here or in similar repositories. A test may hold several.
"""

from __future__ import annotations

import ast
from functools import cache

import pytest

from tests.conftest import ROOT

# Fault → what must be → the tests of it, as FILE::TEST below tests/.
FAULTS: dict[str, dict[str, tuple[str, ...]]] = {
    "one flipped bit loads wrong weights without a word": {
        "the manifest is checked before a loader sees the file": (
            "serving/test_manifest.py::test_one_flipped_bit_is_found",
            "release/test_registry.py::test_a_flipped_bit_is_not_stored",
            "release/promotion/test_release.py::test_a_corrupted_model_is_not_proposed",
            "release/promotion/test_release.py::"
            "test_what_was_tampered_with_after_it_was_proposed_is_not_applied",
        ),
    },
    "the disk is full": {
        "told; the old files are intact and nothing half-written is left": (
            "release/test_registry.py::"
            "test_a_full_disk_leaves_the_store_and_the_registry_as_they_were",
            "release/promotion/test_release.py::test_a_full_disk_leaves_everything_as_it_was",
            "release/test_audit.py::test_a_full_disk_leaves_the_log_as_it_was",
            "release/rollout/test_rollout.py::test_a_log_that_cannot_be_written_undoes_the_switch",
        ),
        "no server is stopped that the state on the disk still sends requests to": (
            "release/rollout/test_states.py::test_a_disk_that_is_full_from_any_effect_on_stops_nothing",
            "release/ab/test_routing.py::test_a_full_disk_sends_no_key_to_a_b_that_is_stopped",
        ),
    },
    "of two promotions at once the worse wins": {
        "the better ends as champion, always": (
            "release/rollout/test_races.py::test_of_two_at_once_the_better_ends_as_champion",
            "release/rollout/test_rollout.py::test_two_applies_at_once_end_as_one",
        ),
    },
    "metrics are gamed: NaN, infinity, a finished run that takes new ones": {
        "recomputed from the hashed predictions, bounded, refused when in doubt": (
            "policies/test_fail_closed.py::test_each_place_alone_is_needed",
            "policies/test_fail_closed.py::"
            "test_quality_passes_only_sound_numbers_over_the_threshold",
            "release/evidence/test_recomputation.py::test_what_does_not_follow_is_refused",
            "release/evidence/test_predictions.py::test_a_tampered_file_is_found_by_its_hash",
            "release/promotion/test_release.py::test_a_tracking_servers_numbers_change_nothing",
        ),
    },
    "scanners miss malicious pickles": {
        "formats are allowed by content, no other is let through": (
            "policies/test_formats.py::test_a_pickle_is_no_format_under_any_name",
            "policies/test_formats.py::test_skops_counts_with_trusted_types_alone",
            "release/promotion/test_release.py::test_a_pickle_in_the_model_is_refused_by_the_gate",
        ),
    },
    "a canary takes NaN or no traffic for health, or promotes a version nobody watched": {
        "it rolls back or holds; all traffic is the last step; a new version begins anew": (
            "release/canary/test_verdict.py::test_figures_that_are_none_roll_back",
            "release/canary/test_verdict.py::test_enough_requests_without_a_difference_go_on",
            "release/declaration/test_strategy.py::test_a_promotion_ends_at_100",
            "release/canary/test_canary.py::test_what_is_declared_meanwhile_ends_it",
            "release/canary/test_canary.py::test_a_bad_green_is_rolled_back",
            "release/rollout/test_states.py::TestReleases",
        ),
    },
    "an apply or a rollback is killed": {
        "the next one ends it, whatever step it was": (
            "release/promotion/test_propose_killed.py::test_a_proposal_killed_at_any_step_is_made_again",
            "release/rollout/test_rollout.py::test_an_apply_killed_at_any_step_is_finished_by_the_next",
            "release/rollout/test_rollback_killed.py::"
            "test_a_rollback_killed_at_any_step_is_done_by_the_next",
        ),
    },
    "secrets reach a server or a log": {
        "neither holds one": (
            "backends/serving/test_server.py::test_its_environment_holds_no_secret_of_the_caller",
            "infra/live/test_sas.py::test_no_log_holds_a_signature_or_a_key",
        ),
    },
    "the schema drifts": {
        "refused or told with a column diff": (
            "toolkit/data/test_tables.py::test_other_columns_are_told_in_one_place",
            "release/evidence/test_predictions.py::test_other_columns_are_refused",
            "release/test_comparison.py::test_other_features_are_told",
            "release/test_compare.py::test_other_features_than_the_champions_are_noted",
            "release/promotion/test_release.py::test_a_model_of_other_data_than_it_is_scored_on_is_refused",
        ),
    },
    "the answers leak: a feature, identifiers, time": {
        "found by the evaluation, refused by the gate (policies/gates/leakage.yml)": (
            "measures/test_leakage.py::test_features_that_give_a_label_away_are_told",
            "measures/test_leakage.py::test_a_numeric_target_by_rank_correlation",
            "measures/test_leakage.py::test_identifiers_in_both_parts_are_told",
            "measures/test_leakage.py::test_a_test_in_the_past_of_training_is_told",
            "policies/test_gate_cases.py::test_a_gate_refuses",
            "release/promotion/test_classification.py::test_a_test_that_was_trained_on_is_refused",
        ),
    },
    "shuffled labels seem to teach something": {
        "near a half, and refused": (
            "release/promotion/test_classification.py::test_shuffled_labels_end_near_a_half_and_are_refused",
        ),
    },
}
HELD = [test for musts in FAULTS.values() for tests in musts.values() for test in tests]


@cache
def _names(file: str) -> set[str]:
    """The tests that a file defines, at its top level."""
    body = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8")).body
    made = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    return made | {
        target.id
        for node in body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


@pytest.mark.parametrize("test", HELD)
def test_what_holds_a_fault_is_there(test: str) -> None:
    """A test that is renamed or removed is missed here."""
    file, _, name = test.partition("::")
    assert name.lower().startswith("test") and name in _names(file)


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_held(fault: str) -> None:
    """No row is empty."""
    assert all(FAULTS[fault].values()) and FAULTS[fault]
