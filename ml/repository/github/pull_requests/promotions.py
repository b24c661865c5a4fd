"""Select the projects that a merge retrains, and open pull requests that promote the results.

It needs no package besides PyYAML. Commands:

- `projects` lists the projects to train.
- `summary` shows the trainings and the gates' decisions.
- `trained` fetches the result of another job of this workflow run.
- `unfinished` fetches the trainings that earlier runs stopped waiting for.
- `continue` starts another run that waits for this run's unfinished trainings.
- `open` opens or updates a pull request for each version that passed the gates.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ml.core import documents, files, repository
from ml.core.errors import Problem, UserError, as_program
from ml.core.markdown import code, text
from ml.reports.json_values import Value
from ml.reports.pull_requests.comparison import fit, sections, title
from ml.repository.affected.projects import affected, validated_name
from ml.repository.affected.stacks import EVENTS, deployed, is_on_main
from ml.repository.github.api import MAIN, GitHub, for_all, read_results, write_outputs
from ml.repository.github.pull_requests.posting import TRAIN, TRAINED, read_artifact
from ml.repository.github.releases import ENTRIES, FILE, with_entry

# Files that promotions and reverts change: these changes do not trigger a training.
DECLARATIONS = ("ml/projects/*/release.yml", "ml/projects/*/evidence/*")
# Locks of packages for this machine; nodes use the packages of their Azure ML environment.
OFF_NODES = ("requirements/*.lock",)
# The files that a project needs for training, gates and promotion.
NEEDED = ("jobs/train.yml", "jobs/evaluate.yml", "gates.yml", "release.yml")
ARTIFACT, _DOCUMENT = "promotion-", re.compile(r"(promotion)\.json")
_CANDIDATE, _TRAINED = "candidate-", re.compile(r"(train)\.json")
MERGE = ".github/workflows/merge.yml"
# The number of earlier runs that are searched for an unfinished training.
_EARLIER = 10
_NAME = re.compile(r"[A-Za-z0-9][\w-]{0,60}", re.ASCII)
_ENVIRONMENT, _VERSION = re.compile(r"[a-z]{1,20}"), re.compile(r"\d{1,9}", re.ASCII)
# The end of a branch's name: VERSION, or VERSION-DIGEST if VERSION has a pull request already with
# another deployment digest.
_SHORT = 12
_PROPOSAL = re.compile(rf"(\d{{1,9}})(?:-[0-9a-f]{{{_SHORT}}})?", re.ASCII)


def projects(root: Path, since: str = "") -> list[str]:
    """Return the projects to train for the changes since a commit; all projects if it is "".

    Raises UserError as `affected` does, and for a name that is unsafe in a command.
    """
    folder = root / "ml" / "projects"
    names = sorted(validated_name(path.parent.name) for path in folder.glob("*/gates.yml"))
    if since:
        touched = affected(root, since, ignore=(*DECLARATIONS, *OFF_NODES)).projects
        names = [name for name in names if name in touched]
    return [name for name in names if all((folder / name / file).is_file() for file in NEEDED)]


def keep(github: GitHub, root: Path, document: Mapping[str, Any]) -> str:
    """Open the pull request of a promotion and close those of earlier versions.

    It changes one environment's entry in main's current release.yml; `root` has the release.yml
    that the run started from. Does nothing if the same version and serving code already have a pull
    request, open or closed. Returns what was done. Raises UserError if the document is no
    promotion, or if main's entry has changed since the run started.
    """
    project, environment, version = _parse_promotion(document)
    file = f"ml/projects/{project}/{FILE}"
    compared = Value(document["comparison"])
    prefix = f"promote/{project}-{environment}-"
    branch = f"{prefix}{version}"
    deployment_digest = _deployment_digest(document["files"][file], environment)
    for pull in github.pull_requests_of(branch):
        # The same model with other serving code needs its own pull request.
        proposed = _deployment_digest(github.text(file, str(pull["head"]["sha"])), environment)
        if not deployment_digest or deployment_digest == proposed:
            return f"pull request {pull['number']} already promotes this version"
        branch = f"{prefix}{version}-{deployment_digest[:_SHORT]}"
    for pull in github.pull_requests_of(branch):
        return f"pull request {pull['number']} is about it already"
    main = github.head()
    now, seen = github.text(file, main), root / file
    before = seen.read_bytes().decode() if seen.is_file() else ""
    changed = with_entry(environment, before, document["files"][file], now)
    if changed == now:
        return f"{MAIN} declares it already"
    address = f"https://github.com/{github.repository}"
    title, body = _request(project, environment, version, compared, address)
    files = {**document["files"], file: changed}
    done = github.keep_pull_request(branch, title, body, files, main)[1]
    for pull in [*github.pages("pulls", state="open")]:
        ref = str(pull["head"].get("ref") or "")
        earlier = _PROPOSAL.fullmatch(ref.removeprefix(prefix) if ref != branch else "")
        ours = (pull["head"].get("repo") or {}).get("full_name") == github.repository
        if ours and ref.startswith(prefix) and earlier and int(earlier[1]) <= int(version):
            github.send("PATCH", f"pulls/{pull['number']}", {"state": "closed"})
            done += f"; {pull['number']}, of version {earlier[1]}, is closed"
    return done


def _deployment_digest(content: str, environment: str) -> str:
    """Return an environment's `deployment_digest` in the text of a release.yml.

    Returns "" if the entry or the digest is missing, or if the text is not YAML.
    """
    try:
        return str(
            documents.parse(content, FILE).get(ENTRIES, environment, "deployment_digest") or ""
        )
    except UserError:
        return ""


def _parse_promotion(document: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return project, environment and version of a promotion.

    Raises UserError if a name or a path in the document is not allowed.
    """
    names = [str(document.get(key)) for key in ("project", "environment", "version")]
    project, environment, version = names
    patterns = (_NAME, _ENVIRONMENT, _VERSION)
    folder = f"ml/projects/{project}"
    evidence = f"{folder}/evidence/{environment}"
    file = f"{folder}/{FILE}"
    allowed = {file, f"{evidence}.json", f"{evidence}.attestation.json"}
    files = document.get("files")
    fits = all(pattern.fullmatch(name) for pattern, name in zip(patterns, names, strict=True))
    fits = fits and isinstance(files, dict) and {file} <= {*files} <= allowed
    if not fits or not all(isinstance(digest, str) for digest in dict(files or {}).values()):
        actual = f"{project} {version} for {environment} with {', '.join(map(str, files or ()))}"
        expected = f"{file} and its evidence"
        raise UserError(Problem("no-promotion", actual[:300], expected, "re-run the job"))
    return project, environment, version


def _open(root: Path, names: Sequence[str]) -> None:
    """Open the promotion pull requests of these projects from the artifacts of this run."""
    app = GitHub.of_workflow()
    reader = replace(app, token=os.environ.get("RUN_TOKEN", app.token))
    for_all(names, lambda name: print(f"{name}: {_kept(app, reader, root, name)}"))


def _kept(app: GitHub, reader: GitHub, root: Path, name: str) -> str:
    """Open a project's promotion pull request from this run's artifact; return what was done.

    `app` writes; `reader` reads the artifact. Raises UserError if the artifact is invalid.
    """
    run = int(os.environ["GITHUB_RUN_ID"])
    job = f"evidence ({name})"
    documents, unread = read_artifact(reader, run, f"{ARTIFACT}{name}", _DOCUMENT, job)
    if unread:
        raise UserError(Problem("no-promotion", "; ".join(unread), hint="re-run the failed jobs"))
    document: Any = documents.get("promotion")
    if document is None:
        return "nothing to promote"
    if document.get("project") != name:
        actual = f"the artifact of {name} has a promotion of another project"
        raise UserError(Problem("no-promotion", actual, f"a promotion of {name}"))
    if not document.get("files"):
        return f"{document.get('outcome')}, no pull request"
    return keep(app, root, document)


def _save_training(project: str, to: Path) -> None:
    """Save the training result from this workflow run's artifact of the project to a file.

    Raises UserError if the artifact is missing or invalid.
    """
    run = int(os.environ["GITHUB_RUN_ID"])
    name = f"{_CANDIDATE}{project}"
    job = f"candidate ({project})"
    documents, unread = read_artifact(GitHub.of_workflow(), run, name, _TRAINED, job)
    if unread or "train" not in documents:
        actual = "; ".join(unread) or f"run {run} has no artifact {name}"
        hint = "start all jobs of the workflow again"
        raise UserError(Problem("not-trained", actual, "the results of `make train`", hint))
    files.replace(to, json.dumps(documents["train"]))


def _training_source(project: str) -> tuple[str, str, str, Sequence[str]]:
    """Return the workflow file, artifact name, job name and events of a project's training on main.

    If `project` is "", return those of trainings of pull requests.
    """
    if not project:
        return TRAIN, TRAINED, "train", ("issue_comment",)
    return MERGE, f"{_CANDIDATE}{project}", f"candidate ({project})", EVENTS


def summary(documents: Sequence[Mapping[str, Any]]) -> str:
    """Return the candidates' comparisons and gate decisions as Markdown."""
    candidates = [_section(Value(document)) for document in documents]
    return "\n\n".join(candidates) or "The change touches no project that trains."


def _section(document: Value) -> str:
    compared = document["comparison"]
    if not compared:
        return f"### {document['project'].code()} failed\n\n{document['error'].text(2000)}"
    return fit([title(compared), *_jobs(document), *sections(compared)])


def _jobs(document: Value) -> list[str]:
    """Return a Markdown table of the jobs and outputs that may be registered; [] without any."""
    candidate = document["comparison"]["candidate"]
    rows = [
        f"| {job['run'].code()} | {text(name)} | {digest.code()} |"
        for _, job in document["jobs"].fields()
        for name, digest in job["outputs"].fields()
    ]
    if not rows:
        return []
    head = f"Model {candidate['digest'].code()}, the output of exactly these jobs:"
    return ["\n".join([head, "", "| job | output | content |", "|---|---|---|", *rows])]


def _request(
    project: str, environment: str, version: str, compared: Value, address: str
) -> tuple[str, str]:
    """Return title and body of the pull request; `address` is the repository's URL."""
    merging = (
        f"Merging this declares version {code(version)} of {text(project)} for "
        f"{code(environment)}; `release.yml` then evaluates the gates again and applies it "
        "through a canary. The evidence was collected and attested on main."
    )
    first, *others = sections(compared, address)
    body = fit([title(compared), first, merging, *others])
    return f"Promote {project} {version} to {environment}", body


def unfinished(github: GitHub, root: Path, project: str) -> list[dict[str, Any]]:
    """Return the trainings that recent workflow runs on main did not wait for, newest first.

    They come from the artifacts of the runs' training jobs. For the run that this run continues
    (environment variable CONTINUES), ended trainings are included, so that they are reused.
    """
    continued = os.environ.get("CONTINUES", "")
    workflow, name, _, events = _training_source(project)
    listed = github.pages("actions/artifacts", "artifacts", name=name)
    runs = {int(artifact["workflow_run"]["id"]) for artifact in listed if not artifact["expired"]}
    results: list[dict[str, Any]] = []
    for number in sorted(runs, reverse=True)[:_EARLIER]:
        run = github.get(f"actions/runs/{number}")
        is_its = str(run["path"]).partition("@")[0] == workflow and run["event"] in events
        if is_its and is_on_main(root, run):
            results += _unfinished_in(github, number, project, ended=str(number) == continued)
    return results


def _unfinished_in(
    github: GitHub, run: int, project: str, *, ended: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield the trainings that had not ended when a run did; with `ended`, yield all of them."""
    _, name, job, _ = _training_source(project)
    documents, _ = read_artifact(github, run, name, _TRAINED, job, failed_too=True)
    results: Any = documents.get("train") or ()
    yield from (result for result in results if (ended or result["error"]) and result.get("jobs"))


def _continue(projects: Sequence[str]) -> None:
    """Start another run of merge.yml if trainings of this run have not ended.

    Does nothing if main has a newer commit, whose run trains these projects, too.
    """
    github = GitHub.of_workflow()
    run = int(os.environ["GITHUB_RUN_ID"])
    waiting = [name for name in projects if any(_unfinished_in(github, run, name))]
    if waiting and github.head() == os.environ["GITHUB_SHA"]:
        path = f"actions/workflows/{MERGE.rpartition('/')[2]}/dispatches"
        github.send("POST", path, {"ref": MAIN, "inputs": {"run": str(run)}})
    print(f"not ended: {', '.join(waiting) or 'none'}")


def _names(words: str) -> list[str]:
    return list(json.loads(words)) if words.startswith("[") else [words]


@as_program
def main(argv: Sequence[str] | None = None) -> None:
    """Run a command of the workflows merge.yml and promote.yml."""
    parser = argparse.ArgumentParser(prog="promotions")
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("projects")
    listing.add_argument("--not-trained-by", help="Since this workflow's last success.")
    show = commands.add_parser("summary")
    show.add_argument("document", type=Path)
    opening = commands.add_parser("open")
    opening.add_argument("--projects", type=_names, required=True, help="One, or a JSON list.")
    going_on = commands.add_parser("continue")
    going_on.add_argument("--projects", type=_names, required=True, help="One, or a JSON list.")
    for name in ("trained", "unfinished"):
        bringing = commands.add_parser(name)
        bringing.add_argument("--project", required=name == "trained", default="")
        bringing.add_argument("--save", required=True, type=Path, help="A file for it.")
    options, root = parser.parse_args(argv), repository.root()
    if options.command == "trained":
        _save_training(options.project, options.save)
    elif options.command == "unfinished":
        results = unfinished(GitHub.of_workflow(), root, options.project)
        files.replace(options.save, json.dumps(results))
        print(f"not ended: {', '.join(str(result['project']) for result in results) or 'none'}")
    elif options.command == "continue":
        _continue(options.projects)
    elif options.command == "summary":
        command = f"make {options.document.stem}"
        print(summary(read_results(options.document, command)))
    elif options.command == "open":
        _open(root, options.projects)
    else:
        workflow = options.not_trained_by
        since = deployed(GitHub.of_workflow(), root, workflow) if workflow else ""
        names = projects(root, since)
        print(json.dumps(names))
        write_outputs({"projects": names})


if __name__ == "__main__":
    sys.exit(main())
