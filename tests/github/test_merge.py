"""merge.yml as merges start it: what is trained, who attests it, which pull request there is."""

from __future__ import annotations

import io
import json
import re
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from ml.backends.azure.backend import AzureBackend
from ml.repository.github.pull_requests.promotions import main as promotions_main
from tests.backends.conftest import azure
from tests.conftest import ROOT
from tests.github.events import NONE, PULL, Job, Repository, git
from tests.github.test_check import team, template
from tests.github.test_release import declared
from tests.github.test_train import RESULTS, UNFINISHED
from tests.release import tiny
from tests.release.authority import Authority
from tests.release.promotion.test_environments import REVIEWS, advisories
from tests.shared import declare_endpoint
from tests.stand_ins.azure.running import StandIn, provision, register_environment
from tests.stand_ins.github import APP

__all__ = ["azure", "team", "template"]
FOLDER = "ml/projects/words"
FILES = {f"{FOLDER}/jobs/train.yml": "", f"{FOLDER}/jobs/evaluate.yml": ""}
FILES |= {f"{FOLDER}/gates.yml": "", f"{FOLDER}/release.yml": "environments:\n"}
RELEASE = f"{FOLDER}/release.yml"
TRAIN = {f"{FOLDER}/train.py": "print(1)\n"}
TARGETS = ("train", "advisories", "evidence", "promote")
DISPATCH = ("POST", "actions/workflows/merge.yml/dispatches")


def results(jobs: dict[str, Job]) -> list[str]:
    """Of the jobs that every merge has."""
    return [job.result for key, job in jobs.items() if key != "continuation"]


def promotion(**changes: Any) -> dict[str, Any]:
    document = {
        "project": "words",
        "environment": "dev",
        "model": "words",
        "version": "4",
        "outcome": "pending",
        "files": {
            f"{FOLDER}/release.yml": "environments:\n  dev: {version: 4}\n",
            f"{FOLDER}/evidence/dev.json": "{}",
        },
        "comparison": RESULTS[0]["comparison"],
    }
    return {**document, **changes}


def leaves(team: Repository, document: object) -> None:
    """What `make promote` writes next."""
    written = {".local/check/promotion.json": json.dumps(document)}
    team.writes = {**team.writes, "promote": written}


def test_merges_of_two_projects_do_not_wait_for_each_other() -> None:
    """GitHub drops the waiting run of a group when another comes: a group is of one project."""
    text = (ROOT / ".github/workflows/merge.yml").read_text()
    workflow = yaml.safe_load(text)
    assert "concurrency" not in workflow
    for job in workflow["jobs"].values():
        one = "matrix.project" if "strategy" in job else "github.run_id"
        assert f"${{{{ {one} }}}}" in job["concurrency"]["group"]
        assert job["concurrency"]["cancel-in-progress"] is False
    groups = [job["concurrency"]["group"] for job in workflow["jobs"].values()]
    assert len({*groups}) == len(groups)


def test_promotions_of_two_projects_do_not_wait_for_each_other() -> None:
    """Nor does an approval of prod that is pending cancel a promotion to staging."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/promote.yml").read_text())
    group = workflow["concurrency"]["group"]
    assert "${{ inputs.project }}" in group and "${{ inputs.environment }}" in group


def promotions(team: Repository) -> list[dict[str, Any]]:
    return [pull for pull in team.state.pulls if pull["number"] != PULL]


@pytest.fixture(autouse=True)
def workflow(team: Repository) -> None:
    """A project is on main and trained; `make promote` passes the gates."""
    team.fake = (*team.fake, *TARGETS)
    team.variables, team.authority = {"TRAIN": "true"}, Authority()
    team.owner = "team"
    team.push(FILES, NONE)
    team.deployed(workflow="merge")
    statement = {"commit": "0" * 40, "evaluation": "x", "created": "2026-01-02T03:04:05+00:00"}
    team.writes = {
        "train": {".local/check/train.json": json.dumps(RESULTS)},
        "evidence": {
            ".local/check/subjects.txt": f"{'e' * 64}  evidence.json\n{'a' * 64}  model\n",
            ".local/check/predicate.json": json.dumps(statement),
        },
        "promote": {".local/check/promotion.json": json.dumps(promotion())},
    }


def test_a_merge_to_a_project_has_a_pull_request(team: Repository) -> None:
    """By the app, so that it starts checks; it changes release.yml and brings the evidence."""
    jobs = team.push(TRAIN, "merge")
    assert results(jobs) == ["success"] * 4
    assert team.commands() == [
        *("make merged-projects", "make unfinished", "make train", "make train-summary"),
        *("make trained", "make advisories", "make evidence", "make promote"),
        *("make promotion-summary", "make promotion-request"),
    ]
    assert team.signed_in == ["dev-train", "dev-release"]
    summary = jobs["candidate"].summary
    assert summary.startswith("### train-1 against words 3 for dev\n\nModel `sha256:1`")
    assert f"| `train-1` | model | `sha256:{'c' * 64}` |" in summary
    (handed_over,) = team.folder.glob("*-evidence-*/work/.local/check/train.json")
    assert json.loads(handed_over.read_text()) == RESULTS
    (pull,) = promotions(team)
    assert pull["user"]["login"] == APP and pull["title"] == "Promote words 4 to dev"
    assert pull["head"]["ref"] == "promote/words-dev-4" and pull["base"]["ref"] == "main"
    assert pull["body"].startswith("### train-1 against words 3 for dev\n\n**Gates: ✅ pass")
    assert "Merging this declares version `4` of words" in pull["body"]
    assert "0.9100 (0.9000 – 0.9200)" in pull["body"] and "| `quality` |" in pull["body"]
    show = ("show", f"promote/words-dev-4:{FOLDER}/release.yml")
    assert git(team.origin, *show) == promotion()["files"][f"{FOLDER}/release.yml"].strip()
    changed = git(team.origin, "diff", "--name-only", "main", "promote/words-dev-4").splitlines()
    assert {*changed} == {*promotion()["files"]} and len(changed) == 2


@pytest.mark.attack("What is registered is not what the reviewer of its training saw")
@pytest.mark.parametrize("content", ["", "{"])
def test_nothing_is_looked_for_that_was_not_handed_over(content: str, team: Repository) -> None:
    """Without what this run of the workflow trained there is no evidence."""
    team.writes = {**team.writes, "train": {".local/check/train.json": content}}
    team.fake = (*team.fake, "train-summary")
    assert results(team.push(TRAIN, "merge"))[1:3] == ["success", "failure"]
    assert not {"make evidence", "make promote"} & {*team.commands()} and promotions(team) == []
    assert "dev-release" not in team.signed_in


@pytest.mark.attack(
    "Who deletes the newest hand-over has an earlier attempt's registered or promoted"
)
def test_what_an_earlier_attempt_handed_over_is_not_taken(team: Repository) -> None:
    """Neither of a candidate nor of its promotion; GitHub says when the newest attempt ran."""

    def delete() -> None:
        artifacts = team.state.artifacts[team.runs]
        artifacts[:] = [{**artifacts[-1], "created_at": "2026-01-02T03:04:05Z"}]

    team.meanwhile["promotion"] = delete
    assert results(team.push(TRAIN, "merge")) == [*["success"] * 3, "failure"]
    team.meanwhile["evidence"] = delete
    team.commands()
    assert results(team.pushed("merge"))[2] == "failure"
    assert "make evidence" not in team.commands() and promotions(team) == []


def test_a_merge_that_happens_twice_has_one_pull_request(team: Repository) -> None:
    """A run that is started again writes another decision; what reviewers look at stays."""
    team.push(TRAIN, "merge")
    changes = [*team.state.changes]
    number, _ = team.state.runs.popitem()
    del team.state.artifacts[number]
    leaves(team, promotion(files={f"{FOLDER}/release.yml": "environments: {}\n"}))
    assert results(team.pushed("merge")) == ["success"] * 4
    assert team.state.changes == changes and len(promotions(team)) == 1


def test_a_newer_version_takes_the_place_of_an_earlier_one(team: Repository) -> None:
    """A pull request that somebody closed is not opened again."""
    team.push(TRAIN, "merge")
    leaves(team, promotion(version="5"))
    team.push({f"{FOLDER}/train.py": "print(2)\n"}, "merge")
    states = {pull["head"]["ref"]: pull["state"] for pull in promotions(team)}
    assert states == {"promote/words-dev-4": "closed", "promote/words-dev-5": "open"}
    team.state.changes.clear()
    leaves(team, promotion())
    team.push({f"{FOLDER}/train.py": "print(1)\n"}, "merge")
    assert team.state.changes == []


def test_a_version_by_a_mended_score_py_has_a_pull_request_of_its_own(team: Repository) -> None:
    """The model is the same to the bit, so is its version: the first one's was merged, or is open
    and closed now. The same once more is not opened again.
    """
    entry = "environments:\n  dev:\n    version: 4\n    deployment_digest: {}\n"
    leaves(team, promotion(files={RELEASE: entry.format("1" * 64)}))
    team.push(TRAIN, "merge")
    for number in (2, 3):
        leaves(team, promotion(files={RELEASE: entry.format("2" * 64)}))
        team.push({f"{FOLDER}/train.py": f"print({number})\n"}, "merge")
    states = {pull["head"]["ref"]: pull["state"] for pull in promotions(team)}
    other = f"promote/words-dev-4-{'2' * 12}"
    assert states == {"promote/words-dev-4": "closed", other: "open"}


@pytest.mark.attack("A promotion is merged that began before another environment moved on")
@pytest.mark.attack("What a training leaves declares something for another environment")
def test_a_promotion_changes_its_own_entry_alone(team: Repository) -> None:
    """On top of what main declares when the pull request is opened: prod has version 2 by then."""
    team.push({RELEASE: declared(dev="3", prod="1")}, NONE)
    leaves(team, promotion(files={RELEASE: declared(dev="4", prod="4")}))
    now = {RELEASE: declared(dev="3", staging="7", prod="2")}
    team.meanwhile["promotion"] = lambda: team.merged_meanwhile(now)
    assert results(team.push(TRAIN, "merge")) == ["success"] * 4
    text = git(team.origin, "show", f"promote/words-dev-4:{RELEASE}")
    assert text == declared(dev="4", staging="7", prod="2").strip()


def test_what_main_declares_meanwhile_is_not_undone(team: Repository) -> None:
    """Nothing is opened, the run is red and says why, and the next merge trains it again."""
    team.push({RELEASE: declared(dev="3")}, NONE)
    leaves(team, promotion(files={RELEASE: declared(dev="4")}))
    team.meanwhile["promotion"] = lambda: team.merged_meanwhile({RELEASE: declared(dev="5")})
    assert results(team.push(TRAIN, "merge"))[3] == "failure"
    assert team.state.changes == [] == promotions(team)


def test_a_refusal_is_in_the_summary_and_fails_nothing(team: Repository) -> None:
    """The project is trained again when it changes, not by each merge."""
    refused = json.loads(json.dumps(RESULTS[0]["comparison"]))
    refused["decision"]["outcome"] = "rejected"
    leaves(team, promotion(outcome="rejected", files={}, comparison=refused))
    jobs = team.push(TRAIN, "merge")
    assert results(jobs) == ["success"] * 4 and promotions(team) == []
    assert "**Gates: ❌ rejected**" in jobs["evidence"].summary
    assert results(team.push({"README.md": "# words\n"}, "merge")) == [
        *("success", "skipped", "skipped", "skipped")
    ]


@pytest.mark.parametrize(
    "name",
    [
        *("README.md", "infra/Pulumi.prod.yaml", "policies/promotion/gates.yml"),
        *(f"{FOLDER}/release.yml", f"{FOLDER}/evidence/dev.json"),
    ],
)
def test_what_trains_nothing(name: str, team: Repository) -> None:
    """A promotion that is merged does not lead to the next; nor does the organisation's policy,
    which judges the models that there are."""
    assert results(team.push({name: "# words\n"}, "merge")) == ["success"] + ["skipped"] * 3
    assert team.signed_in == []


def test_a_fork_without_a_workspace_trains_nothing(team: Repository) -> None:
    team.variables = {}
    assert results(team.push(TRAIN, "merge"))[1:] == ["skipped"] * 3


@pytest.mark.parametrize("target", ["train", "evidence"])
def test_what_failed_is_done_by_the_next_run(target: str, team: Repository) -> None:
    team.failing = (target,)
    assert "failure" in results(team.push(TRAIN, "merge")) and promotions(team) == []
    team.failing = ()
    assert results(team.push({"README.md": "# words\n"}, "merge")) == ["success"] * 4
    assert len(promotions(team)) == 1


def test_a_training_that_fails_stops_no_other_project(team: Repository) -> None:
    """It hands nothing over, so nothing of it is registered; the next run trains it."""
    other = {name.replace("words", "other"): text for name, text in (FILES | TRAIN).items()}
    team.push({name: text or "1\n" for name, text in other.items()}, NONE)
    team.failing = ("train:other",)
    assert results(team.push(TRAIN, "merge")) == ["success", "failure", "failure", "success"]
    assert team.commands().count("make evidence") == 1
    assert [pull["title"] for pull in promotions(team)] == ["Promote words 4 to dev"]


def test_a_training_that_outlives_its_runner_is_waited_for_by_another_run(
    team: Repository,
) -> None:
    """The run that did not see the end starts the next one, which gets the jobs to follow."""
    team.failing = ("train",)
    team.writes = {**team.writes, "train": {".local/check/train.json": json.dumps([UNFINISHED])}}
    jobs = team.push(TRAIN, "merge")
    assert [job.result for job in jobs.values()][1:3] == ["failure", "success"]
    assert team.state.changes == [DISPATCH] and "make evidence" not in team.commands()
    team.failing = ()
    team.writes = {**team.writes, "train": {".local/check/train.json": json.dumps(RESULTS)}}
    number = team.runs
    assert results(team.scheduled("merge", "workflow_dispatch")) == ["success"] * 4
    (found,) = team.folder.glob(f"{number}-candidate-*/work/.local/check/unfinished.json")
    assert json.loads(found.read_text()) == [UNFINISHED] and len(promotions(team)) == 1


def test_a_continuation_follows_what_has_ended(team: Repository) -> None:
    """Else every other project would train as often as the longest training has runs."""
    team.failing, left = ("train",), [UNFINISHED, *RESULTS]
    team.writes = {**team.writes, "train": {".local/check/train.json": json.dumps(left)}}
    team.push(TRAIN, "merge")
    (inputs,) = team.state.dispatched
    assert inputs == {"run": str(team.runs - 1)}
    for given in (inputs, {}):
        number = team.runs
        team.scheduled("merge", "workflow_dispatch", given)
        (found,) = team.folder.glob(f"{number}-candidate-*/work/.local/check/unfinished.json")
        trainings = json.loads(found.read_text())
        assert UNFINISHED in trainings and (RESULTS[0] in trainings) is bool(given)


@pytest.mark.parametrize(
    ("left", "moves_on"),
    [([{**UNFINISHED, "jobs": {}}], False), ([UNFINISHED], True)],
    ids=["it failed", "the run of a newer commit trains it"],
)
def test_no_other_run_is_started(
    left: list[dict[str, Any]], moves_on: bool, team: Repository
) -> None:
    team.failing = ("train",)
    team.writes = {**team.writes, "train": {".local/check/train.json": json.dumps(left)}}
    if moves_on:
        team.meanwhile["continuation"] = lambda: team.merged_meanwhile({"README.md": "# new\n"})
    assert team.push(TRAIN, "merge")["continuation"].result == "success"
    assert team.state.changes == []


@pytest.mark.attack("A workflow of a branch leaves jobs for main's training to follow")
@pytest.mark.parametrize(
    "run",
    [
        {"path": ".github/workflows/evil.yml"},
        {"event": "pull_request"},
        {"head_branch": "evil"},
        {"head_sha": "0" * 40},
    ],
    ids=str,
)
def test_jobs_of_another_run_are_not_followed(run: dict[str, str], team: Repository) -> None:
    team.failing = ("train",)
    team.writes = {**team.writes, "train": {".local/check/train.json": json.dumps([UNFINISHED])}}
    team.push(TRAIN, "merge")
    team.state.runs[team.runs - 1].update(run)
    team.failing, number = (), team.runs
    team.pushed("merge")
    (found,) = team.folder.glob(f"{number}-candidate-*/work/.local/check/unfinished.json")
    assert json.loads(found.read_text()) == []


@pytest.mark.attack("What a training leaves lies about its promotion")
@pytest.mark.parametrize(
    "changes",
    [
        {"files": {".github/workflows/check.yml": "on: push\n"}},
        {"files": {f"{FOLDER}/../other/release.yml": ""}},
        {"files": {f"{FOLDER}/train.py": ""}},
        {"files": ["release.yml"]},
        {"project": "../words"},
        {"project": "other", "files": {"ml/projects/other/release.yml": ""}},
        {"version": "4; touch pwned"},
        {"environment": "prod/x"},
    ],
    ids=str,
)
def test_a_document_that_lies_opens_nothing(changes: dict[str, object], team: Repository) -> None:
    leaves(team, promotion(**changes))
    assert team.push(TRAIN, "merge")["promotion"].result == "failure"
    assert team.state.changes == []


def test_a_reviewer_who_says_no_registers_nothing(team: Repository) -> None:
    """The candidate is trained and compared; the next merge asks again."""
    team.rejected = ("dev-release",)
    jobs = team.push(TRAIN, "merge")
    assert results(jobs)[:3] == ["success", "success", "failure"] and promotions(team) == []
    assert "train-1 against words 3" in jobs["candidate"].summary
    assert "make evidence" not in team.commands()


# promote.yml


def promote(team: Repository, environment: str = "staging", project: str = "words") -> list[str]:
    inputs = {"project": project, "environment": environment}
    return results(team.scheduled("promote", "workflow_dispatch", inputs))


@pytest.mark.parametrize("environment", ["staging", "prod"])
def test_a_person_asks_for_the_next_environment(environment: str, team: Repository) -> None:
    """Its own reviewers let the gates be asked; asked twice there is one pull request."""
    release = {f"{FOLDER}/release.yml": f"environments:\n  {environment}: {{version: 4}}\n"}
    leaves(team, promotion(environment=environment, files=release))
    assert promote(team, environment) == ["success"] * 2
    assert team.commands() == [
        *("make advisories", "make promote", "make promotion-summary", "make promotion-request")
    ]
    assert team.signed_in == [f"{environment}-release"]
    (pull,) = promotions(team)
    assert pull["title"] == f"Promote words 4 to {environment}" and pull["user"]["login"] == APP
    changes = [*team.state.changes]
    assert promote(team, environment) == ["success"] * 2 and team.state.changes == changes


def test_what_the_next_environment_refuses_has_no_pull_request(team: Repository) -> None:
    leaves(team, promotion(environment="staging", outcome="rejected", files={}))
    assert promote(team) == ["success"] * 2 and promotions(team) == []
    team.rejected = ("staging-release",)
    assert promote(team) == ["failure", "skipped"] and promotions(team) == []


# The whole way.


@pytest.mark.slow
@pytest.mark.attack("A pull request brings code that its training would run beside the sign-in")
def test_a_merge_is_promoted_and_a_pull_request_compared_with_it(
    team: Repository, azure: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command runs; the evidence of the merge passes the gates of dev.

    Once it is the champion, `/train` compares a pull request with it, and runs none of its code
    here.
    """
    work = team.folder / "main"
    git(team.folder, "clone", "-q", str(team.origin), "main")
    tiny.project(work)
    (work / FOLDER / "release.yml").unlink()  # it has no content that could be released
    gates = work / "ml/projects/tiny/gates.yml"
    day = str(datetime.now(UTC).date())
    gates.write_text(gates.read_text() + REVIEWS.replace("DAY", day).replace("FEATURES", "f" * 64))
    release = work / "ml/projects/tiny/release.yml"
    traffic = "requests: [100, 100, 100]\n  prediction: answers/0/score"
    release.write_text(release.read_text().replace("requests: [20, 20, 20]", traffic))
    policy = work / "policies/promotion/gates.yml"
    policy.write_text(
        policy.read_text().replace("your-organisation/your-repository", "team/models")
    )
    declare_endpoint("tiny", work / "infra/Pulumi.dev.yaml")
    git(work, "add", "-A")
    git(work, "commit", "-qm", "a small project")
    git(work, "push", "-q", "origin", "HEAD:main")
    team.deployed(workflow="merge")
    workspace = azure.enter(monkeypatch)
    monkeypatch.setenv("AZUREML_REGISTRY_NAME", f"shared-{workspace}")
    team.azure = {
        **azure.variables,
        "AZUREML_WORKSPACE_NAME": workspace,
        "AZUREML_REGISTRY_NAME": f"shared-{workspace}",
    }
    backend = AzureBackend()
    register_environment(backend.workspace.client, "ml-cpu", "1")
    provision(backend.workspace.client, endpoint := backend.endpoints.name_of("tiny", "dev"))
    (data,) = (each for each in backend.assets.compare(work) if each.spec.name == "tiny")
    backend.assets.create(data)
    advisories(tmp_path / "osv")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.write(tmp_path / "osv/all.json", "all.json")
    team.fake = ("advisories",)
    team.writes = {"advisories": {".local/check/advisories.zip": packed.getvalue()}}
    git(team.folder / "fork", "fetch", "-q")
    git(team.folder / "fork", "reset", "-q", "--hard", "origin/main")
    spec = "ml/projects/tiny/jobs/train.yml"
    jobs = team.push({spec: (work / spec).read_text().replace("skill: 0.8", "skill: 0.9")}, "merge")
    assert results(jobs) == ["success"] * 4
    print(jobs["candidate"].summary)
    (pull,) = promotions(team)
    assert pull["title"] == "Promote tiny 1 to dev"
    assert "**Gates: ✅ pass, approval needed**" in pull["body"]
    kinds = [entry.run.name.rpartition("-")[0] for entry in backend.runs.entries()]
    assert sorted(kinds) == ["evaluate-tiny", "train"]  # each once, though two jobs ask for them
    (version,) = backend.registry.versions("tiny")
    declared = git(team.origin, "show", "promote/tiny-dev-1:ml/projects/tiny/release.yml")
    assert version.digest in declared and version.evidence in declared

    # The promotion is merged, and released by what the run attested; a second time nothing changes.
    team.deployed(workflow="release")
    git(team.origin, "update-ref", "refs/heads/main", "promote/tiny-dev-1")
    jobs = team.pushed("release")
    assert results(jobs) == ["success", "success", "skipped"], jobs["release"].summary
    assert "✅ `tiny` `1` now serves" in jobs["release"].summary
    live, champion = backend.endpoints.live(endpoint), backend.registry.champion("tiny", "dev")
    assert live and champion and live.deployment.digest == champion.digest == version.digest
    azure.requests()
    jobs = team.scheduled("release", "workflow_dispatch")
    assert "✅ `tiny` `1` already serves, as declared" in jobs["release"].summary
    changes = [
        line for line in azure.requests() if re.match("(PUT|DELETE) .*onlineEndpoints", line)
    ]
    assert changes == [] and team.state.issues == []

    # Somebody asks for the next environment, whose workspace has no run: the same evidence counts.
    pwned = tmp_path / "pwned"
    for hostile in (f"$(shell touch {pwned})", f'tiny"; touch {pwned}; "', f"$(touch {pwned})"):
        assert promote(team, "staging", hostile) == ["failure", "skipped"]
    assert not pwned.exists()
    dev, team.azure = team.azure, {**team.azure, "AZUREML_WORKSPACE_NAME": azure.enter(monkeypatch)}
    assert promote(team, "staging", "tiny") == ["success"] * 2
    team.azure = dev
    monkeypatch.setenv("AZUREML_WORKSPACE_NAME", workspace)
    assert promotions(team)[-1]["title"] == "Promote tiny 1 to staging"
    branch = "promote/tiny-staging-1:ml/projects/tiny"
    evidence = git(team.origin, "show", f"{branch}/evidence/staging.json")
    assert evidence == git(team.origin, "show", "main:ml/projects/tiny/evidence/dev.json")

    # A pull request is compared with it.
    git(team.folder / "fork", "pull", "-q", "origin", "main")
    team.state.permissions["ana"] = "write"
    canary = tmp_path / "canary"
    poison = f"open({str(canary)!r}, 'a').write(__file__)\n"
    names = ("sitecustomize", "conftest", "json", "typer", "azure/__init__")
    at_the_root = dict.fromkeys((f"{name}.py" for name in names), poison)
    team.pull_request(at_the_root)
    assert (
        team.comment(f"/train {team.state.pulls[0]['head']['sha']}", "ana")["train"].result
        == "failure"
    )
    score = "ml/projects/tiny/endpoint/score.py"
    team.pull_request(
        {
            spec: (team.folder / "fork" / spec).read_text().replace("skill: 0.9", "skill: 0.97"),
            **dict.fromkeys(at_the_root),
            "ml/core/errors.py": poison,
            score: poison + (work / score).read_text(),
            "Makefile": f"train comment setup:\n\ttouch {canary}\n",
        }
    )
    assert (
        results(team.comment(f"/train {team.state.pulls[0]['head']['sha']}", "ana"))
        == ["success"] * 3
    )
    assert not canary.exists()
    body = team.state.bodies(PULL)[0]
    assert "against tiny 1 for dev" in body
    row = r"\| gain\\_at\\_1 \| test \| 0\.97\d* .* \| 0\.90\d* .* \| \+0\.07.* better \|"
    assert re.search(row, body), body
    assert len(backend.registry.versions("tiny")) == 1

    # A merge declares another digest: nothing is touched, and the run says why.
    git(work, "fetch", "-q")
    git(work, "reset", "-q", "--hard", "origin/main")
    declaration = work / "ml/projects/tiny/release.yml"
    evil = declaration.read_text().replace(version.digest, "sha256:" + "e" * 64)
    assert evil != declaration.read_text()
    declaration.write_text(evil)
    git(work, "commit", "-qam", "another digest")
    git(work, "push", "-q", "origin", "HEAD:main")
    jobs = team.pushed("release")
    assert results(jobs) == ["success", "failure", "success"]
    assert "digest-mismatch" in jobs["release"].summary
    assert backend.endpoints.live(endpoint) == live and team.state.issues == []


@pytest.mark.parametrize("written", [None, "", "{\n", "3", "[3]"])
def test_a_summary_of_a_training_that_wrote_nothing(
    written: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ended before its first result: no traceback, and where to look."""
    path = tmp_path / "train.json"
    if written is not None:
        path.write_text(written)
    assert promotions_main(["summary", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error[no-results]: ") and str(path) in err
    assert "make train" in err and "Traceback" not in err


def test_a_summary_of_a_change_that_trains_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.json"
    path.write_text("[]")
    assert promotions_main(["summary", str(path)]) == 0
    assert capsys.readouterr().out == "The change touches no project that trains.\n"
