"""release.yml as events start it: what is applied where, and what a rolled back version gets."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from ml.core.errors import UserError
from ml.reports.pull_requests.release import OUTCOMES, summary
from ml.repository.github.api import GitHub, read_results
from ml.repository.github.releases import (
    approver,
    declaration,
    environments,
    revert,
    with_entry,
)
from tests.conftest import EXAMPLE
from tests.core.test_markdown import APART, HOSTILE, MENTION
from tests.github.events import NONE, Job, Repository, git
from tests.github.test_check import team, template
from tests.github.test_train import results
from tests.reports.pull_requests.test_comparison import OURS, RENDER, elements
from tests.stand_ins.github import APP

__all__ = ["team", "template"]
FILE = "ml/projects/words/release.yml"
EVIDENCE = "ml/projects/words/evidence/dev.json"
ATTESTATION = "ml/projects/words/evidence/dev.attestation.json"
STACKS = ["dev", "staging", "prod"]
DEV = "  dev:\n    version: 1\n    # words\n\n"


def declared(**versions: str) -> str:
    """release.yml with these versions; a version's digest is its number over and over."""
    entries = [
        f"  {name}: {{version: '{versions[name]}', digest: sha256:{versions[name] * 64}}}\n"
        if name in versions
        else f"  {name}: {{}}\n"
        for name in STACKS
    ]
    return f"schema_version: 1\nenvironments:\n{''.join(entries)}"


def came_to(outcome: str, version: str = "2", **fields: object) -> dict[str, object]:
    """A result as `ml release apply --json` prints it; the driver fills in the environment."""
    return {
        **{"project": "words", "environment": "{stack}", "model": "words", "version": version},
        **{"decision": version * 64, "approved_by": "ana", "outcome": outcome, "exit_code": 0},
        **{"serving": version, "serving_digest": f"sha256:{version * 64}"},
        **{"gates": [], "problems": [], "canary": None},
        **fields,
    }


def rolled_back(why: str = "errors: 9 of 60") -> dict[str, object]:
    """Version 2, which its canary rolled back; version 1 serves."""
    canary = {
        **{"outcome": "rolled-back", "why": why, "at_percent": 10, "replayed": 0, "seconds": 12.5},
        "signals": {"errors": {"log_e_value": 41.5, "limit": 20.0, "sentence": why}},
        **{"requests": {"blue": 540, "green": 60}, "errors": {"blue": 0, "green": 9}},
    }
    problem = {"code": "rolled-back", "actual": why, "expected": "no worse", "hint": "again"}
    serving = {"serving": "1", "serving_digest": f"sha256:{'1' * 64}"}
    return came_to("rolled-back", problems=[problem], canary=canary, exit_code=3, **serving)


@pytest.fixture(autouse=True)
def released(team: Repository) -> None:
    """Version 1 is declared for dev and prod, and released; an apply succeeds."""
    first = {FILE: declared(dev="1", prod="1"), EVIDENCE: '{"version": "1"}\n'}
    team.push(first, NONE)
    team.deployed(True, "release")
    ends(team, came_to("applied"))
    team.commands()


def ends(team: Repository, *results: Mapping[str, object]) -> None:
    """`make release` ends with these results."""
    failing = any(result["outcome"] not in ("applied", "unchanged") for result in results)
    team.fake, team.failing = ("advisories", "release"), ("release",) if failing else ()
    team.writes = {"release": {".local/check/release.json": json.dumps(results)}}


def merge(team: Repository, **versions: str) -> dict[str, Job]:
    """A pull request with these versions is merged."""
    evidence = dict.fromkeys((EVIDENCE, ATTESTATION), f'{{"version": "{versions.get("dev")}"}}\n')
    return team.push({FILE: declared(**versions), **evidence}, "release")


def test_a_merge_releases_what_it_declares(team: Repository) -> None:
    """That environment alone; the same run again has the same effects."""
    jobs = merge(team, dev="2", prod="1")
    assert results(jobs) == ["success", "success", "skipped"]
    assert team.signed_in == ["dev-release"]
    words = ["advisories", "release", "release-summary", "release-issue"]
    assert team.commands() == ["make releases", *(f"make {each}" for each in words)]
    assert "✅ `words` `2` now serves" in jobs["release"].summary
    ends(team, came_to("unchanged"))
    jobs = team.pushed("release")
    assert results(jobs) == ["success", "skipped", "skipped"]
    assert team.state.changes == [] and team.signed_in == ["dev-release"]


def test_environments_are_released_in_order(team: Repository) -> None:
    """dev, staging, prod. A reviewer who rejects one stops no project that has served there: the
    gate `order` judges each version."""
    merge(team, dev="2", staging="2", prod="2")
    assert team.signed_in == [f"{name}-release" for name in STACKS]
    team.signed_in.clear()
    team.rejected = ("staging-release",)
    jobs = merge(team, dev="3", staging="3", prod="3")
    assert jobs["release"].result == "failure"
    assert team.signed_in == ["dev-release", "prod-release"]


def test_each_environment_that_rolled_back_has_a_revert(team: Repository) -> None:
    """One failure stops no other environment, and its revert is not lost behind a later one's."""
    ends(team, rolled_back())
    merge(team, dev="2", staging="2", prod="1")
    assert team.signed_in == ["dev-release", "staging-release"]
    titles = [pull["title"] for pull in team.state.pulls if of_the_app(pull)]
    assert sorted(titles) == [f"Revert words 2 in {name}" for name in ("dev", "staging")]


def test_a_revert_that_fails_stops_no_other(team: Repository) -> None:
    """One project has no earlier version; the job fails, and the other's revert is there."""
    other = "ml/projects/other/release.yml"
    team.push({other: declared()}, NONE)
    ends(team, {**rolled_back(), "project": "other"}, rolled_back())
    jobs = merge(team, dev="2", prod="1")
    assert jobs["revert"].result == "failure"
    titles = [pull["title"] for pull in team.state.pulls if of_the_app(pull)]
    assert titles == ["Revert words 2 in dev"]


@pytest.mark.parametrize("name", ["README.md", "ml/projects/words/train.py"])
def test_other_merges_start_nothing(name: str, team: Repository) -> None:
    assert team.push({name: "words\n"}, "release") == {}


def test_what_was_not_released_is_released_by_the_next_run(team: Repository) -> None:
    """Also where the declaration was taken back meanwhile: dev may have got it."""
    team.rejected = ("prod-release",)
    merge(team, dev="2", prod="2")
    team.rejected = ()
    team.signed_in.clear()
    merge(team, dev="1", prod="1")
    assert team.signed_in == ["dev-release", "prod-release"]
    team.signed_in.clear()
    merge(team, dev="1", staging="1", prod="1")
    assert team.signed_in == ["staging-release"]


def test_by_hand_every_environment_is_released(team: Repository) -> None:
    """After drift, say."""
    team.scheduled("release", "workflow_dispatch")
    assert team.signed_in == [f"{name}-release" for name in STACKS]


def test_a_canary_that_failed_opens_an_issue_and_a_revert(team: Repository) -> None:
    """Twice as well as once; then the revert is merged, and the issue is closed."""
    ends(team, rolled_back())
    jobs = merge(team, dev="2", prod="1")
    assert jobs["release"].result == "failure" and jobs["revert"].result == "success"
    assert "❌ `words` `2` was rolled back; version `1` serves" in jobs["release"].summary
    (issue,) = team.state.issues
    assert issue["title"] == "Rolled back: words 2 in dev"
    assert (
        "| `green` | 60 | 9 |" in issue["body"] and "| `errors` | errors: 9 of 60" in issue["body"]
    )
    (pull,) = [pull for pull in team.state.pulls if pull["title"].startswith("Revert")]
    # A pull request that a workflow's own token opens starts no checks.
    assert pull["user"]["login"] == APP and pull["title"] == "Revert words 2 in dev"
    head = pull["head"]["ref"]
    assert git(team.origin, "show", f"{head}:{FILE}") == declared(dev="1", prod="1").strip()
    assert git(team.origin, "show", f"{head}:{EVIDENCE}") == '{"version": "1"}'
    changed = git(team.origin, "diff", "--name-status", "--no-renames", "main", head)
    assert changed.split() == ["D", ATTESTATION, "M", EVIDENCE, "M", FILE]
    assert {*team.signed_in} == {"dev-release"}  # the job that reverts signs in nowhere

    before = len(team.state.changes)
    again = team.pushed("release")
    assert again["revert"].result == "success"
    assert team.state.changes[before:] == [("POST", "git/trees")]
    assert len(team.state.issues) == len([*filter(of_the_app, team.state.pulls)]) == 1

    ends(team, came_to("unchanged", "1"))
    git(team.origin, "update-ref", "refs/heads/main", head)
    assert team.pushed("release")["release"].result == "success"
    assert issue["state"] == "closed"


def of_the_app(pull: Mapping[str, Any]) -> bool:
    return bool(pull.get("user", {}).get("login") == APP)


def test_the_revert_declares_what_serves(team: Repository) -> None:
    """Version 2 was merged and rejected; 3 was rolled back: version 1 serves, and is declared."""
    team.rejected = ("dev-release",)
    merge(team, dev="2", prod="1")
    team.rejected = ()
    ends(team, {**rolled_back(), "version": "3", "decision": "3" * 64})
    merge(team, dev="3", prod="1")
    (pull,) = filter(of_the_app, team.state.pulls)
    text = git(team.origin, "show", f"{pull['head']['ref']}:{FILE}")
    assert text == declared(dev="1", prod="1").strip()


@pytest.mark.attack("A way back is merged that began before another environment moved on")
def test_a_revert_changes_its_own_entry_alone(team: Repository) -> None:
    """Prod has version 2 by the time the pull request is opened; and keeps it."""
    ends(team, rolled_back())
    now = {FILE: declared(dev="2", staging="1", prod="2")}
    team.meanwhile["revert"] = lambda: team.merged_meanwhile(now)
    assert merge(team, dev="2", prod="1")["revert"].result == "success"
    (pull,) = filter(of_the_app, team.state.pulls)
    text = git(team.origin, "show", f"{pull['head']['ref']}:{FILE}")
    assert text == declared(dev="1", staging="1", prod="2").strip()


@pytest.mark.parametrize(
    ("outcome", "gate"),
    [("rejected", "attestation"), ("rejected", "order"), ("failed", "")],
)
def test_what_was_refused_is_in_the_summary(outcome: str, gate: str, team: Repository) -> None:
    """Neither an issue nor a revert: what serves is as it was."""
    gates = [{"gate": gate, "actual": "nobody attested it", "required": "the trusted workflow"}]
    problem = {"code": "server-silent", "actual": "no answer", "expected": "one", "hint": "look"}
    fields: dict[str, object] = {"gates": gates} if gate else {"problems": [problem]}
    ends(team, came_to(outcome, exit_code=3, serving="1", **fields))
    jobs = merge(team, dev="2", prod="1")
    assert results(jobs) == ["success", "failure", "success"]
    words = f"`{gate}`: nobody attested it" if gate else "server-silent: no answer"
    assert words in jobs["release"].summary and "version `1` serves" in jobs["release"].summary
    assert team.state.changes == []


def test_a_release_that_was_killed_goes_on(team: Repository) -> None:
    """It wrote no results: nothing is opened; the run again ends it."""
    team.failing, team.writes = ("release",), {}
    jobs = merge(team, dev="2", prod="1")
    assert results(jobs) == ["success", "failure", "success"] and team.state.changes == []
    assert jobs["release"].steps[2] == {"name": "summary", "conclusion": "failure"}
    ends(team, came_to("applied"))
    assert results(team.pushed("release")) == ["success", "success", "skipped"]


@pytest.mark.attack("What a canary saw has Markdown, HTML or mentions in it")
@pytest.mark.parametrize("hostile", [*HOSTILE, "<!-- release words prod -->", "```\n# x"])
def test_words_of_a_model_are_text(hostile: str) -> None:
    """In the summary, and so in the issue and the pull request, which have the same words."""
    gates = [{"gate": hostile, "actual": hostile, "required": hostile}]
    result = {**rolled_back(hostile), "environment": hostile, "model": hostile, "gates": gates}
    page = summary([{**result, "approved_by": hostile, "version": hostile, "serving": hostile}])
    assert elements(page) <= OURS | {"p", "h3", "li", "ul", "pre", "code", "a", "em"}
    rendered = RENDER.render(page)
    # GitHub looks for none in code.
    assert not MENTION.search(re.sub(r"<code.*?</code>", "", rendered, flags=re.S))
    assert "<!--" not in rendered.replace(APART, "")


# Who approved, and of what.


def of_main(team: Repository, folder: Path) -> Path:
    git(folder, "clone", "-q", str(team.origin), "clone")
    return folder / "clone"


def approved(team: Repository, root: Path, *approvals: tuple[str, str]) -> str:
    team.state.tokens["reader"] = {"actions": "read", "contents": "read"}
    team.state.approvals[7] = [*approvals]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GITHUB_RUN_ID", "7")
        patch.setenv("GITHUB_ACTOR", "merger")
        return approver(GitHub(team.state.repository, "reader", team.state.api), root, "prod")


def test_the_reviewer_approves(team: Repository, tmp_path: Path) -> None:
    """The last one of this environment; where none is asked, who merged."""
    root = of_main(team, tmp_path)
    approvals = [("ana", "prod-release"), ("ben", "prod-release"), ("eve", "dev-release")]
    assert approved(team, root, *approvals) == "ben"
    assert approved(team, root, ("eve", "dev-release")) == "merger"


@pytest.mark.attack("An old release is started again after main declared another version")
def test_an_approval_is_of_what_main_declares(team: Repository, tmp_path: Path) -> None:
    """Another environment's declaration does not matter."""
    root = of_main(team, tmp_path)
    team.push({FILE: declared(dev="2", prod="1")}, NONE)
    assert approved(team, root, ("ana", "prod-release")) == "ana"
    team.push({FILE: declared(dev="2", prod="2")}, NONE)
    with pytest.raises(UserError, match="declaration-changed"):
        approved(team, root, ("ana", "prod-release"))


@pytest.mark.example
def test_the_command_itself_runs(team: Repository) -> None:
    """Not a fake: another notation of the example's declaration; nothing is declared to apply."""
    team.fake, team.writes = ("advisories",), {}
    name = f"ml/projects/{EXAMPLE.name}/release.yml"
    text = git(team.origin, "show", f"main:{name}")
    team.push({FILE: None, EVIDENCE: None}, NONE)
    team.deployed(True, "release")
    jobs = team.push({name: text.replace("  dev: {}", "  dev:")}, "release")
    assert results(jobs) == ["success", "success", "skipped"]
    assert jobs["release"].summary.strip() == "Nothing is declared."


# A reader of lines alone sees the entry of dev in prod's text, whatever dev declares.
IN_A_TEXT = f"""\
environments:
  prod:
    reason: "so that
{DEV}    it goes"
  "dev": {{version: 2}}
"""
HIDDEN = "{}:\n  dev: {{version: 2}}\nnote: {}\nenvironments:\n  dev: {{version: 1}}\n{}\n"


@pytest.mark.attack("A text in release.yml looks like an entry, or passes for all of them")
@pytest.mark.parametrize(
    "text",
    [
        IN_A_TEXT,
        *(HIDDEN.format(key, mark, mark) for key in ('"environments"', "'environments'")
          for mark in "\"'"),
        *(HIDDEN.format(key, '"', '"') for key in ("? environments\n", "!!str environments")),
        '  environments:\n    dev: {version: 2}\n  n: "\nenvironments:\n  dev: {version: 1}\n"\n',
        '{"environments": {dev: {version: 2}}, note: "\nenvironments:\n  dev: {version: 1}\n"}\n',
        '--- {"environments": {dev: {version: 2}}, n: "\nenvironments:\n  dev: {version: 1}\n"}\n',
    ],
)  # fmt: skip
def test_a_text_is_no_entry(text: str) -> None:
    """What YAML reads is the declaration, and no edit changes anything else."""
    assert declaration(text, "dev") == '{"version": 2}'
    wanted = "environments:\n  dev:\n    version: 3\n"
    try:
        edited = with_entry("dev", text, wanted, text)
    except UserError as refused:
        assert "ambiguous-entry" in str(refused)
    else:
        assert declaration(edited, "dev") == '{"version": 3}'
        assert yaml.safe_load(edited).get("note") == yaml.safe_load(text).get("note")


@pytest.mark.parametrize("open_before", [True, False])
def test_a_revert_of_what_main_declares_no_more(
    open_before: bool, team: Repository, tmp_path: Path
) -> None:
    """Nothing is opened, and what is open is closed."""
    team.push({FILE: declared(dev="2", prod="1")}, NONE)
    root = of_main(team, tmp_path)
    team.state.tokens["app"] = {"contents": "write", "pull-requests": "write"}
    team.state.apps.add("app")
    app = GitHub(team.state.repository, "app", team.state.api)
    result = {**rolled_back(), "environment": "dev"}
    if open_before:
        assert revert(app, root, result).endswith("is opened")
    team.merged_meanwhile({FILE: declared(dev="3", prod="1")})
    text = revert(app, root, result)
    assert "main now declares another release for dev" in text
    assert [pull["state"] for pull in filter(of_the_app, team.state.pulls)] == [
        "closed"
    ] * open_before


@pytest.mark.attack("A run of somebody's tag passes for main's last success")
def test_a_run_of_another_commit_released_nothing(team: Repository) -> None:
    """A tag named main may have a workflow of its own, whose runs GitHub lists under that name."""
    team.rejected = ("dev-release",)
    merge(team, dev="2", prod="1")
    team.rejected = ()
    work = team.folder / "fork"
    git(work, "commit", "-q", "--allow-empty", "-m", "with a workflow that succeeds")
    git(work, "push", "-q", "origin", "HEAD:refs/tags/main")
    team.deployed(True, "release", git(work, "rev-parse", "HEAD"))
    team.pushed("release")
    assert team.signed_in == ["dev-release"]


@pytest.mark.attack("A tag named main says what main declares, and an old release is run again")
def test_a_tag_does_not_say_what_main_declares(team: Repository, tmp_path: Path) -> None:
    root = of_main(team, tmp_path)
    team.merged_meanwhile({FILE: declared(dev="1", prod="2")})
    git(team.origin, "update-ref", "refs/tags/main", git(root, "rev-parse", "HEAD"))
    with pytest.raises(UserError, match="declaration-changed"):
        approved(team, root, ("ana", "prod-release"))


def test_a_start_that_is_not_here_is_none(team: Repository, tmp_path: Path) -> None:
    root = of_main(team, tmp_path)
    assert environments(root, "f" * 40) == environments(root) == STACKS
    assert environments(root, git(root, "rev-parse", "HEAD")) == []


def test_results_of_any_shape_are_refused(tmp_path: Path) -> None:
    shapes: Sequence[str] = ("", "null", "{}1", '[{"outcome": "evil"}]', "[1]", "3")
    for shape in shapes:
        with pytest.raises(UserError, match="no-results"):
            read_results(tmp_path / "none.json", "make release", shape, OUTCOMES)
    assert read_results(tmp_path, "make release", "[]", OUTCOMES) == []
