"""The table of attacks on the workflows: each gets nothing, and the tests that hold it.

What is not tried elsewhere is tried below. `make torture ARGS=attacks` runs all of them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.conftest import EXAMPLE, ROOT
from tests.github.events import PULL, Repository
from tests.github.test_check import team, template, text
from tests.github.test_posting import packed

__all__ = ["team", "template"]
HERE, GATES = "tests/github/test_attacks.py", "tests/policies/test_gate_settings.py"
CHECK, POSTING = "tests/github/test_check.py", "tests/github/test_posting.py"
TRAIN, RELEASE = "tests/github/test_train.py", "tests/github/test_release.py"
TRUST, OWNERS = "tests/release/test_trust.py", "tests/github/test_codeowners.py"
ENVIRONMENTS = "tests/release/promotion/test_environments.py"
MERGE, REQUESTS = "tests/github/test_merge.py", "tests/github/test_pull_requests.py"
GIT, LAYOUT = "tests/core/test_git.py", "tests/repository/forks/test_layout.py"
BOOTSTRAP, RULES = "tests/infra/live/test_bootstrap.py", "tests/github/test_rules.py"

# What an attacker does → (file, test) that hold it.
ATTACKS: dict[str, list[tuple[str, str]]] = {
    "a pull request edits a workflow: a token that reads, no secret, no sign-in": [
        (CHECK, "test_an_edited_workflow_gets_a_token_that_reads"),
        (CHECK, "test_a_workflow_without_checks_is_not_ready"),
        (RULES, "test_a_rule_refuses"),
        (BOOTSTRAP, "test_each_purpose_has_a_protected_environment_of_its_own"),
    ],
    "a pull request says itself what has to run, or edits what says so": [
        (CHECK, "test_what_runs_is_not_the_pull_requests_to_say"),
        (CHECK, "test_a_skipped_job_that_the_change_needs_is_said"),
        (POSTING, "test_a_step_that_the_change_needs_is_said"),
        (POSTING, "test_more_files_than_github_lists"),
        (POSTING, "test_what_is_no_projects_own_is_said"),
    ],
    "a pull request edits the Makefile: main's runs where there are rights": [
        (CHECK, "test_an_edited_makefile_gets_nothing"),
    ],
    "a file at the root runs in place of the Makefile, or of a module of Python": [
        (CHECK, "test_a_file_at_the_root_runs_nothing"),
        (TRAIN, "test_a_tree_with_such_a_name_is_not_fetched"),
        (LAYOUT, "test_a_name_at_the_root_is_refused"),
    ],
    "a pull request has a repository among its files: its programs and its history are not read": [
        (GIT, "test_a_repository_among_the_files_is_not_read"),
        (GIT, "test_git_runs_no_other_program"),
        (LAYOUT, "test_no_repository_is_among_the_files"),
        ("tests/repository/github/test_fetch.py", "test_no_repository_is_fetched"),
        ("tests/backends/test_azure.py", "test_the_commit_of_a_job_is_that_of_its_spec"),
    ],
    "a spec has `$(curl …)` in an input: it is refused before anything runs": [
        (HERE, "test_shell_in_an_input_runs_nothing"),
        ("tests/specs/test_shell.py", "test_an_attack_is_refused"),
        ("tests/specs/test_shell.py", "test_the_check_finds_it_in_a_spec"),
    ],
    "a branch has shell in its name": [
        (CHECK, "test_the_name_of_a_branch_runs_nothing"),
        (POSTING, "test_the_name_of_a_branch_is_text"),
    ],
    "a project that is to be promoted has shell in its name": [
        (MERGE, "test_a_merge_is_promoted_and_a_pull_request_compared_with_it"),
    ],
    "a title has Markdown and HTML": [
        (CHECK, "test_the_name_of_a_branch_runs_nothing"),
        (POSTING, "test_hostile_documents_are_text"),
    ],
    "gates.yml is lowered in the pull request that needs it": [
        (HERE, "test_a_lowered_gate_is_refused_and_named"),
        (GATES, "test_a_project_may_not_loosen"),
        (GATES, "test_the_policy_itself_judges_something"),
        (OWNERS, "test_everything_has_an_owner"),
    ],
    "release.yml names another digest": [
        (ENVIRONMENTS, "test_what_is_not_as_declared_touches_nothing"),
        (MERGE, "test_a_merge_is_promoted_and_a_pull_request_compared_with_it"),
        (TRUST, "test_an_invented_decision"),
        (TRUST, "test_the_real_place_takes_attested_evidence_alone"),
    ],
    "release.yml skips an environment": [
        (TRUST, "test_an_environment_waits_for_the_one_before"),
        (TRUST, "test_an_environment_has_served_what_the_branch_declared"),
    ],
    "an old release is started again, or an approval is used for something else": [
        (RELEASE, "test_an_approval_is_of_what_main_declares"),
        (TRUST, "test_an_approval_is_of_a_digest"),
    ],
    "an artifact of the untrusted run has paths, sizes or bytes that lie": [
        (POSTING, "test_a_poisoned_artifact_is_not_read"),
        (POSTING, "test_an_artifact_that_is_too_large_is_not_downloaded"),
        (POSTING, "test_the_verdict_is_what_github_says"),
    ],
    "an artifact of the untrusted run has Markdown in it": [
        (POSTING, "test_hostile_documents_are_text"),
    ],
    "an artifact of the untrusted run names another pull request": [
        (HERE, "test_an_artifact_does_not_choose_its_pull_request"),
        (POSTING, "test_nothing_is_posted"),
    ],
    "what a training leaves lies about the files, the project or the version to promote": [
        (MERGE, "test_a_document_that_lies_opens_nothing"),
    ],
    "a branch of the app's has another commit when its pull request is opened": [
        (REQUESTS, "test_a_branch_of_somebody_else_is_not_presented"),
        (REQUESTS, "test_a_branch_with_another_history_is_not_presented"),
        (REQUESTS, "test_a_push_before_the_pull_request_closes_it"),
    ],
    "a promotion or a way back that began earlier takes back what main declares by now": [
        (MERGE, "test_a_promotion_changes_its_own_entry_alone"),
        (RELEASE, "test_a_revert_changes_its_own_entry_alone"),
    ],
    "somebody without write access asks for training, or pushes after it was asked for": [
        (TRAIN, "test_nothing_is_trained"),
        (TRAIN, "test_a_later_push_is_not_trained"),
        (TRAIN, "test_links_and_programs_of_the_tree_are_texts"),
    ],
    "a model's answers write words into the issue and the pull request of a rollback": [
        (RELEASE, "test_words_of_a_model_are_text"),
    ],
    "a canary is passed by hand: somebody closes the revert, or edits its branch": [
        (REQUESTS, "test_people_have_the_last_word"),
    ],
}


def held() -> Iterator[tuple[str, str]]:
    for tests in ATTACKS.values():
        yield from tests


@pytest.mark.parametrize(("file", "name"), sorted({*held()}))
def test_what_holds_an_attack_is_there(file: str, name: str) -> None:
    """A test that is renamed or removed is missed here."""
    tree = ast.parse((ROOT / file).read_text())
    assert name in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]


@pytest.mark.example
@pytest.mark.attack("A pull request has shell in an input of a spec")
@pytest.mark.parametrize(
    ("old", "new"),
    [("seed: 0", "seed: '{}'"), ("inputs.trees=2 inputs.matches=3", "inputs.seed={}")],
    ids=["spec", "tag"],
)
def test_shell_in_an_input_runs_nothing(old: str, new: str, team: Repository) -> None:
    """In the spec, and in the tag by which its small run is made: `make smoke` runs nothing."""
    pwned = team.folder / "pwned"
    spec = f"ml/projects/{EXAMPLE.name}/jobs/train.yml"
    assert old in text(spec)
    evil = new.format(f"$(touch${{IFS}}{pwned})")
    team.fake = ("affected-tests", "lint")
    team.pull_request({spec: text(spec).replace(old, evil)})
    jobs = team.check()
    assert jobs["change"].result == jobs["required"].result == "failure"
    assert not pwned.exists()
    team.follow()
    (body,) = team.state.bodies(PULL)
    assert "### ❌ Not ready" in body and "pwned" not in body


@pytest.mark.attack("A pull request lowers the gates that it needs")
def test_a_lowered_gate_is_refused_and_named(team: Repository) -> None:
    """The comment begins with it, whatever the checks say; its owners have to approve it."""
    policy = "policies/promotion/gates.yml"
    team.fake = ("lint", "smoke", "affected-tests")
    team.pull_request({policy: text(policy).replace("max_age_days: 30", "max_age_days: 3000")})
    team.check()
    team.follow()
    (body,) = team.state.bodies(PULL)
    assert f"changes its own checks: {policy}.**" in body.replace("\\", "")


@pytest.mark.attack("An artifact of an untrusted run names another pull request")
def test_an_artifact_does_not_choose_its_pull_request(team: Repository) -> None:
    """Neither by a document of its own, nor in the documents that are read."""
    team.pull_request({"docs/page.md": "# words\n"})
    team.check()
    lie = {"number": 99, "pull_request": 99, "issue": 99, "head_sha": "a" * 40}
    names = ("affected.json", "smoke.json", "infra.json", "pull.json")
    team.state.artifacts.clear()
    team.state.artifact(team.runs, "check-results", packed(dict.fromkeys(names, lie)))
    team.follow()
    assert len(team.state.bodies(PULL)) == 1 and not team.state.bodies(99)
    assert {path for _, path in team.state.changes} == {f"issues/{PULL}/comments"}
