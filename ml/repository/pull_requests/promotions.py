"""What a merge trains again, and the pull requests that promote the result.

It needs no installed package. The command `projects` lists what to train, `summary` shows what the
gates decided, `open` keeps a pull request for each version that passed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ml.core import repository
from ml.core.errors import Exit, Problem, Refused
from ml.reports import comment
from ml.reports.json_values import Value
from ml.reports.markdown import code, text
from ml.repository.affected import affected
from ml.repository.github import GitHub
from ml.repository.pull_requests.posting import read_artifacts
from ml.repository.stacks import deployed

# What a promotion and a way back change: they train nothing.
DECLARATIONS = ("ml/projects/*/release.yml", "ml/projects/*/evidence/*")
# What a project has that can be trained, judged and promoted.
NEEDED = ("jobs/train.yml", "jobs/evaluate.yml", "gates.yml", "release.yml")
ARTIFACT, _DOCUMENT = "promotion-", re.compile(r"(promotion)\.json")
_NAME = re.compile(r"[A-Za-z0-9][\w-]{0,60}", re.ASCII)
_ENVIRONMENT, _VERSION = re.compile(r"[a-z]{1,20}"), re.compile(r"\d{1,9}", re.ASCII)


def projects(root: Path, since: str = "") -> list[str]:
    """The projects to train again for what changed since a commit; all of them without one."""
    folder = root / "ml" / "projects"
    names = sorted(path.parent.name for path in folder.glob("*/gates.yml"))
    if since:
        touched = affected(root, since, besides=DECLARATIONS).projects
        names = [name for name in names if name in touched]
    return [name for name in names if all((folder / name / file).is_file() for file in NEEDED)]


def summary(documents: Sequence[Mapping[str, Any]]) -> str:
    """Each candidate beside the champion, with what the gates decided, as Markdown."""
    return "\n\n".join(_section(Value(document)) for document in documents)


def _section(document: Value) -> str:
    compared = document["comparison"]
    if not compared:
        return f"### {document['project'].code()} failed\n\n{document['error'].text(2000)}"
    return comment.fit([comment.title(compared), *comment.sections(compared)])


def keep(github: GitHub, document: Mapping[str, Any]) -> str:
    """Open the pull request of a promotion, and close those of earlier versions; what was done.

    Where the version has one, open or closed, nothing changes. Raises Refused for a document that
    is not of a promotion.
    """
    project, environment, version = _checked(document)
    compared = Value(document["comparison"])
    prefix = f"promote/{project}-{environment}-"
    owner = github.repository.partition("/")[0]
    for pull in github.pages("pulls", state="all", head=f"{owner}:{prefix}{version}"):
        return f"pull request {pull['number']} is about it already"
    title = f"Promote {project} {version} to {environment}"
    merging = (
        f"Merging this declares version {code(version)} of {text(project)} for "
        f"{code(environment)}; `release.yml` then applies it, with the gates asked again and a "
        "canary. The evidence was made and attested on main."
    )
    first, *others = comment.sections(compared, f"https://github.com/{github.repository}")
    body = comment.fit([comment.title(compared), first, merging, *others])
    done = github.keep_pull_request(prefix + version, title, body, document["files"])[1]
    for pull in [*github.pages("pulls", state="open")]:
        branch = str(pull["head"].get("ref") or "")
        earlier = branch.removeprefix(prefix) if branch.startswith(prefix) else ""
        ours = (pull["head"].get("repo") or {}).get("full_name") == github.repository
        if ours and _VERSION.fullmatch(earlier) and int(earlier) < int(version):
            github.send("PATCH", f"pulls/{pull['number']}", {"state": "closed"})
            done += f"; {pull['number']}, of version {earlier}, is closed"
    return done


def _checked(document: Mapping[str, Any]) -> tuple[str, str, str]:
    """Project, environment and version, once every name and path of it is one that may be."""
    names = [str(document.get(key)) for key in ("project", "environment", "version")]
    project, environment, version = names
    patterns = (_NAME, _ENVIRONMENT, _VERSION)
    folder = f"ml/projects/{project}"
    evidence = f"{folder}/evidence/{environment}"
    allowed = {f"{folder}/release.yml", f"{evidence}.json", f"{evidence}.attestation.json"}
    files = document.get("files")
    fits = all(pattern.fullmatch(name) for pattern, name in zip(patterns, names, strict=True))
    if not fits or not isinstance(files, dict) or not files or not {*files} <= allowed:
        found = f"{project} {version} for {environment} with {', '.join(map(str, files or ()))}"
        expected = f"{folder}/release.yml and its evidence"
        raise Refused(Problem("no-promotion", found[:300], expected))
    return project, environment, version


def _open(names: Sequence[str]) -> None:
    """Keep the pull requests of what the jobs of this run promote, one for each project."""
    app = GitHub.of_workflow()
    own = replace(app, token=os.environ.get("RUN_TOKEN", app.token))
    run = int(os.environ["GITHUB_RUN_ID"])
    for name in names:
        documents, unread = read_artifacts(own, run, (f"{ARTIFACT}{name}",), _DOCUMENT)
        if unread:
            raise Refused(Problem("no-promotion", "; ".join(unread), "what `make promote` wrote"))
        document: Any = documents.get("promotion")
        if document is None:
            print(f"{name}: nothing to promote")
        elif document.get("project") != name:
            raise Refused(Problem("no-promotion", f"{name}'s is of another project", name))
        elif not document.get("files"):
            print(f"{name}: {document.get('outcome')}, no pull request")
        else:
            print(f"{name}: {keep(app, document)}")


def _names(words: str) -> list[str]:
    return list(json.loads(words)) if words.startswith("[") else [words]


def main(argv: Sequence[str] | None = None) -> int:
    """The commands of merge.yml and promote.yml."""
    parser = argparse.ArgumentParser(prog="promotions")
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("projects")
    listing.add_argument("--not-trained-by", help="Since this workflow's last success.")
    shown = commands.add_parser("summary")
    shown.add_argument("document", type=Path)
    opening = commands.add_parser("open")
    opening.add_argument("--projects", type=_names, required=True, help="One, or a JSON list.")
    options = parser.parse_args(argv)
    try:
        if options.command == "summary":
            document = json.loads(options.document.read_text(encoding="utf-8"))
            print(summary(document if isinstance(document, list) else [document]))
        elif options.command == "open":
            _open(options.projects)
        else:
            workflow = options.not_trained_by
            since = deployed(GitHub.of_workflow(), workflow) if workflow else ""
            names = json.dumps(projects(repository.root(), since))
            print(names)
            if path := os.environ.get("GITHUB_OUTPUT"):
                with Path(path).open("a", encoding="utf-8") as outputs:
                    outputs.write(f"projects={names}\n")
    except Refused as refused:
        sys.stderr.write(f"{refused}\n")
        return int(refused.exit_code)
    return int(Exit.DONE)


if __name__ == "__main__":
    sys.exit(main())
