"""Runs a workflow's commands in the order and under the conditions of an event, on this machine.

A runner of our own, small: jobs by `needs` and `if`, expressions, outputs, environment variables,
the exit code of each `run`. Checkout, Python and artifacts are done here; any other action is an
error. A run is of the commit of its event, whatever is merged while it lasts: so are its checkouts
without a `ref`, while one of a branch has that branch's newest commit. `az`, `gh` and `pulumi` are
programs that write down how they were called and fail, and so is `make` for the targets that a test
names, `train` or `train:PROJECT`.
"""

from __future__ import annotations

import compileall
import io
import json
import os
import py_compile
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from fnmatch import fnmatch
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from ml.backends.attestation import PREDICATE_TYPE, Statement
from ml.core import imports
from ml.core.documents import LOADER
from tests.conftest import ROOT
from tests.release.authority import TRUSTED, Authority, Workflow
from tests.stand_ins.github import State, now
from tests.test_fork import GIT, tracked

PULL, RUN = 12, 1000
# A merge of which no workflow is run.
NONE = ""
PACKAGES = ("ml", "policies", "infra")
# Of the template: what is cloned, and the files that a clone begins with.
ORIGIN, TREE = "origin", "tree"
# The GitHub environment that holds the key of the team's app.
BOT_ENVIRONMENT = "bot"
TOKEN = re.compile(r"\s*('(?:[^']|'')*'|\d+|[A-Za-z_][\w.-]*(?:\(\))?|==|!=|&&|\|\||[!(),])")
_ONE_TARGET = re.compile(r"make -f Makefile [^;&|\n]*")
STATUS = re.compile(r"\b(always|cancelled|success|failure)\(\)")
RECORDER = """#!/usr/bin/env bash
name="$(basename "$0")"
file=()
if [ "$name $1 $2" = "make -f Makefile" ]; then file=(-f Makefile); shift 2; fi
for target in $FAKE_MAKE; do
  if [ "$name" = make ] && [ "$target" = "$1" ]; then
    echo "make $*" >> "$RECORD"
    case " $FAILING " in *" $1 "*|*" $1:$NAME "*) exit 2;; esac
    exit 0
  fi
done
echo "$name $*" >> "$RECORD"
if [ "$name" = make ]; then exec "$REAL_MAKE" "${file[@]}" "$@"; fi
case " $WORKING " in *" $name "*) exit 0;; esac
exit 1
"""


# What mypy keeps of one job for the next, in the folder of the team.
MYPY_CACHE = ".mypy_cache"


def git(folder: Path, *words: str) -> str:
    done = subprocess.run([*GIT, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@dataclass
class Repository:
    """The team's repository, a pull request to it, and what GitHub knows.

    The pull request is from the fork of its `owner`, or of a branch of the team's own.
    """

    folder: Path
    origin: Path
    state: State
    template: Path
    branch: str = "change"
    owner: str = "stranger"
    title: str = "a change"
    runs: int = RUN
    fake: Sequence[str] = ("lint", "smoke", "preview", "affected-tests", "test")
    failing: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    # Programs that end with 0, GitHub environments whose reviewers said no, and the files that a
    # target of make writes: {"drift": {".local/check/drift.json": "[]"}}.
    working: Sequence[str] = ()
    rejected: Sequence[str] = ()
    writes: Mapping[str, Mapping[str, str | bytes]] = field(default_factory=dict)
    # The variables that lead to a stand-in for Azure, for the jobs that signed in.
    azure: Mapping[str, str] = field(default_factory=dict)
    # Who signs what actions/attest is asked to.
    authority: Authority | None = None
    # A comment is about the jobs of another workflow's run.
    lists_jobs: bool = True
    # What GitHub's own scanners were started for.
    reviewed: list[str] = field(default_factory=list)
    # What happens just before a job of that name begins, once.
    meanwhile: dict[str, Callable[[], object]] = field(default_factory=dict)
    # The commit and the depth of each job's checkout that nothing has read yet.
    checkouts: dict[Path, tuple[str, str]] = field(default_factory=dict)
    # The GitHub environment of each job that signed in to Azure.
    signed_in: list[str] = field(default_factory=list)

    @property
    def record(self) -> Path:
        """The commands that ran, one a line."""
        return self.folder / "record"

    def pull_request(self, changes: Mapping[str, str | None]) -> None:
        """A new commit of the pull request, merged into main as GitHub does."""
        work = self.folder / "fork"
        if not work.exists():
            _clone(self.origin, work)
            git(work, "switch", "-qc", self.branch)
        _write(work, changes)
        git(work, "commit", "-qm", "a change")
        head = git(work, "rev-parse", "HEAD")
        # Main is behind it: merged they have its files.
        git(work, "merge-base", "--is-ancestor", "origin/main", head)
        parents = ("-p", "origin/main", "-p", head)
        merge = git(work, "commit-tree", *parents, "-m", "merge", f"{head}^{{tree}}")
        places = (f"{merge}:refs/pull/{PULL}/merge", f"{head}:refs/pull/{PULL}/head")
        git(work, "push", "-qf", "origin", *places)
        self.state.changed[PULL] = changed_files(work)
        others = [pull for pull in self.state.pulls if pull["number"] != PULL]
        self.state.pulls[:] = [
            {
                "number": PULL,
                "state": "open",
                "title": self.title,
                "base": {"ref": "main"},
                "head": {
                    "sha": head,
                    "label": f"{self.owner}:{self.branch}",
                    "repo": {"full_name": f"{self.owner}/models"},
                },
            },
            *others,
        ]

    def push(self, changes: Mapping[str, str | None], workflow: str = "infra") -> dict[str, Job]:
        """The change is merged: the workflow runs on main, if it is about these files."""
        self.pull_request(changes)
        git(self.folder / "fork", "push", "-qf", "origin", f"{self.branch}:main")
        if workflow == NONE:
            return {}
        text = git(self.origin, "show", f"main:.github/workflows/{workflow}.yml")
        patterns = (yaml.load(text, LOADER)[True]["push"] or {}).get("paths") or ["*"]
        if not any(fnmatch(name, pattern) for name in changes for pattern in patterns):
            return {}
        return self.pushed(workflow)

    def merged_meanwhile(self, changes: Mapping[str, str | None]) -> None:
        """Somebody else's commit is on main."""
        work = self.folder / "colleague"
        if not work.exists():
            _clone(self.origin, work)
        git(work, "pull", "-q", "origin", "main")
        _write(work, changes)
        git(work, "commit", "-qm", "meanwhile")
        git(work, "push", "-q", "origin", "HEAD:main")

    def pushed(
        self, workflow: str, ref: str = "refs/heads/main", commit: str = ""
    ) -> dict[str, Job]:
        """The workflow runs at the commit that main has now, or again at an earlier one."""
        name = ref.rpartition("/")[2]
        commit = commit or git(self.origin, "rev-parse", f"{ref}^{{commit}}")
        github = {"event_name": "push", "ref": ref, "ref_name": name, "sha": commit, "event": {}}
        return self._ended_with(workflow, self.run(workflow, ref, github, trusted=True), commit)

    def deployed(self, succeeded: bool = True, workflow: str = "infra", commit: str = "") -> None:
        """A run of a workflow has ended at a commit, by default the one that main has now."""
        self._ended_with(workflow, {"": Job("success" if succeeded else "failure")}, commit)

    def _ended_with(
        self, workflow: str, jobs: dict[str, Job], commit: str, event: str = "push"
    ) -> dict[str, Job]:
        fine = all(job.result in {"success", "skipped"} for job in jobs.values())
        self.state.runs[self.runs] = {
            "id": self.runs,
            "path": f".github/workflows/{workflow}.yml",
            "event": event,
            "conclusion": "success" if fine else "failure",
            "head_branch": "main",
            "head_sha": commit or git(self.origin, "rev-parse", "main"),
        }
        self.runs += 1
        return jobs

    def scheduled(
        self, workflow: str, event: str = "schedule", inputs: Mapping[str, str] | None = None
    ) -> dict[str, Job]:
        """A time has come, or a person starts it, with inputs where the workflow asks for them."""
        github = {"event_name": event, "ref": "refs/heads/main", "event": {"inputs": inputs or {}}}
        jobs = self.run(workflow, "refs/heads/main", github, trusted=True)
        return self._ended_with(workflow, jobs, "", event)

    def check(self, event: str = "pull_request") -> dict[str, Job]:
        """The event happens: check.yml runs, and then what follows it."""
        self.runs += 1
        ref = "refs/heads/main" if event == "push" else f"refs/pull/{PULL}/merge"
        github: dict[str, Any] = {"event_name": event, "ref": ref, "event": {}}
        if event == "merge_group":
            github["event"] = {"merge_group": {"base_sha": git(self.origin, "rev-parse", "main")}}
        if event == "pull_request":
            base = {"sha": git(self.origin, "rev-parse", "main"), "ref": "main"}
            about = {"title": self.title, "number": PULL, "base": base}
            github["event"] = {"pull_request": about}
        jobs = self.run("check", ref, github, trusted=event == "push")
        failed = any(job.result == "failure" for job in jobs.values())
        fork = {"full_name": f"{self.owner}/models", "owner": {"login": self.owner}}
        self.state.runs[self.runs] = {
            "id": self.runs,
            "path": ".github/workflows/check.yml",
            "event": event,
            "conclusion": "failure" if failed else "success",
            "head_sha": self.state.pulls[0]["head"]["sha"],
            "head_branch": self.branch,
            "head_repository": fork,
            "repository": {"full_name": self.state.repository},
            "html_url": f"https://github.com/team/models/actions/runs/{self.runs}",
        }
        return jobs

    def comment(self, body: str, login: str) -> dict[str, Job]:
        """Somebody comments on the pull request: train.yml runs, as it is on main."""
        self.runs += 1
        self.state.runs[self.runs] = {
            "id": self.runs,
            "path": ".github/workflows/train.yml",
            "event": "issue_comment",
            "conclusion": None,
            "head_sha": git(self.origin, "rev-parse", "main"),
            "head_branch": "main",
            "repository": {"full_name": self.state.repository},
            "html_url": f"https://github.com/team/models/actions/runs/{self.runs}",
        }
        event = {
            "issue": {"number": PULL, "pull_request": {"url": "set"}},
            "comment": {"id": self.runs, "body": body, "user": {"login": login}},
            "repository": {"default_branch": "main"},
        }
        github = {"event_name": "issue_comment", "ref": "refs/heads/main", "event": event}
        return self.run("train", "refs/heads/main", github, trusted=True)

    def follow(self) -> dict[str, Job]:
        """The run is completed: comment.yml runs, as it is on main."""
        run = self.state.runs[self.runs]
        event = {"workflow_run": run, "repository": {"default_branch": "main"}}
        github = {"event_name": "workflow_run", "ref": "refs/heads/main", "event": event}
        return self.run("comment", "refs/heads/main", github, trusted=True)

    def run(
        self, workflow: str, ref: str, github: Mapping[str, Any], *, trusted: bool
    ) -> dict[str, Job]:
        """Each job of a workflow in turn; the file is that of the event's commit."""
        github = {"sha": git(self.origin, "rev-parse", f"{ref}^{{commit}}"), **github}
        text = git(self.origin, "show", f"{github['sha']}:.github/workflows/{workflow}.yml")
        self.lists_jobs = workflow != "comment"
        if workflow in ("check", "train", "infra"):
            self.state.jobs[self.runs] = []
        jobs: dict[str, Job] = {}
        waiting = dict(yaml.load(text, LOADER)["jobs"])
        while waiting:
            key = next(key for key, job in waiting.items() if {*_needs(job)} <= {*jobs})
            self.meanwhile.pop(key, lambda: None)()
            jobs[key] = self._combinations(key, waiting.pop(key), jobs, github, trusted)
        return jobs

    def _combinations(
        self,
        key: str,
        job: Mapping[str, Any],
        others: Mapping[str, Job],
        github: Mapping[str, Any],
        trusted: bool,
    ) -> Job:
        """The jobs of a matrix one after the other; after a failure no other one starts, unless the
        matrix says so.
        """
        strategy = job.get("strategy") or {}
        needs = {name: {"outputs": others[name].outputs} for name in _needs(job)}
        (name, listed), *more = (strategy.get("matrix") or {"": "['']"}).items()
        assert not more, "a matrix of one name"
        context = {"needs": needs}
        listed = json.dumps(listed) if isinstance(listed, list) else listed
        listed = re.sub(r"fromJSON\((.*?)\)", r"\1", str(listed))
        values = [""] if not name else json.loads(str(_filled(listed, context) or "[]"))
        fails_fast = strategy.get("fail-fast", True)
        result = Job("success" if values else "skipped")
        for value in values:
            matrix = {name: value} if name else {}
            started = now()
            one = self._job(key, job, others, {**github, "matrix": matrix}, trusted)
            # As GitHub lists the jobs of a run, this one of a matrix among them.
            named = {"inputs": github["event"].get("inputs") or {}, "matrix": matrix}
            shown = str(_filled(job.get("name", ""), named))
            shown = shown or (f"{key} ({value})" if name else key)
            if self.lists_jobs:
                self._ended(shown, one, started)
            worse = one.result != "success" and result.result != "failure"
            result = Job(
                one.result if worse else result.result,
                one.outputs,
                [*result.steps, *one.steps],
                result.summary + one.summary,
            )
            if one.result == "failure" and fails_fast:
                break
        return result

    def _ended(self, name: str, job: Job, started: str) -> None:
        """A job of the run has ended, by one more attempt where the run had it before."""
        listed = self.state.jobs.setdefault(self.runs, [])
        attempt = 1 + sum(earlier["name"] == name for earlier in listed)
        times = {"started_at": started, "completed_at": now(), "run_attempt": attempt}
        listed.append({"name": name, "conclusion": job.result, "steps": job.steps, **times})

    def _job(
        self,
        key: str,
        job: Mapping[str, Any],
        others: Mapping[str, Job],
        github: Mapping[str, Any],
        trusted: bool,
    ) -> Job:
        needs = {name: others[name] for name in _needs(job)}
        token = f"token-{self.runs}-{key}"
        # A pull request of a fork gets a token that reads, whatever its workflow asks for.
        rights = dict(job.get("permissions") or {})
        self.state.tokens[token] = rights if trusted else dict.fromkeys(rights, "read")
        matrix = github.get("matrix") or {}
        inputs = github["event"].get("inputs") or {}
        chosen = {"matrix": matrix, "inputs": inputs}
        environment = str(_filled(job.get("environment") or "", chosen))
        context: dict[str, Any] = {
            "github": {**github, "token": token, "run_id": self.runs},
            **chosen,
            "vars": {**self.variables, **_variables(environment, self.azure)},
            "secrets": {"APP_PRIVATE_KEY": "key"} if environment == BOT_ENVIRONMENT else {},
            "steps": {},
            "needs": {
                name: {"result": need.result, "outputs": need.outputs}
                for name, need in needs.items()
            },
        }
        fine = all(need.result == "success" for need in needs.values())
        if not _holds(job.get("if"), context, fine):
            return Job("skipped")
        if environment in self.rejected:
            return Job("failure")
        result = Job("success")
        home = Path(tempfile.mkdtemp(prefix=f"{self.runs}-{key}-", dir=self.folder))
        for step in job["steps"]:
            if not _holds(step.get("if"), context, result.result == "success"):
                continue
            name = str(step.get("name") or step.get("uses"))
            if "uses" in step:
                self._action(step, home, context)
                if str(step["uses"]).startswith("azure/login@"):
                    assert rights["id-token"] == "write" and environment and trusted
                    assert context["vars"]["AZURE_CLIENT_ID"] == f"client of {environment}"
                    self.signed_in.append(environment)
                    context["azure"] = self.azure
                continue
            code, outputs = self._command(step, home, context)
            context["steps"][step.get("id", name)] = {"outputs": outputs}
            result.steps.append({"name": name, "conclusion": "failure" if code else "success"})
            result.result = "failure" if code else result.result
        wanted = job.get("outputs") or {}
        result.outputs = {name: str(_filled(text, context)) for name, text in wanted.items()}
        summary = home / "summary"
        result.summary = summary.read_text() if summary.exists() else ""
        return result

    def _action(self, step: Mapping[str, Any], home: Path, context: dict[str, Any]) -> None:
        action, options = str(step["uses"]).partition("@")[0], step.get("with") or {}
        if action == "actions/checkout":
            # A `ref` that is empty is none.
            wanted = str(_filled(options.get("ref", ""), context)) or context["github"]["sha"]
            commit = git(self.origin, "rev-parse", f"{wanted}^{{commit}}")
            self.checkouts[home] = (commit, str(options.get("fetch-depth", 1)))
        elif action == "actions/upload-artifact":
            content = io.BytesIO()
            with zipfile.ZipFile(content, "w") as packed:
                found = [(home / "work").glob(pattern) for pattern in options["path"].split()]
                for file in sorted({*chain(*found)}):
                    packed.write(file, file.name)
            name = str(_filled(options["name"], context))
            self.state.artifact(self.runs, name, content.getvalue())
        elif action == "actions/setup-python":
            assert options["python-version"] == "3.11"
        elif action == "actions/dependency-review-action":
            self.reviewed.append("dependencies")
        elif action.startswith("github/codeql-action/"):
            self.reviewed.append(f"{action.rpartition('/')[2]} {context['matrix']['language']}")
        elif action == "actions/attest-build-provenance":
            self.reviewed += [path.name for path in self._work(home).glob(options["subject-path"])]
        elif action == "actions/attest-sbom":
            assert any(self._work(home).glob(options["subject-path"]))
            bill = json.loads((self._work(home) / options["sbom-path"]).read_text())
            self.reviewed.append(f"a bill of {len(bill['components'])} packages")
        elif action == "azure/login":
            names = ("client-id", "tenant-id", "subscription-id")
            assert all(_filled(options[name], context) for name in names)
        elif action == "actions/create-github-app-token":
            self._app_token(step["id"], options, context)
        elif action == "actions/attest":
            self._attest(step["id"], options, home, context)
        elif action == "pulumi/actions":
            lock = (self._work(home) / "requirements/infra.lock").read_text()
            assert f"pulumi=={options['pulumi-version']} " in lock
        else:
            raise AssertionError(f"this runner does not know {action}")

    def _work(self, home: Path) -> Path:
        """The checkout of a job, made once something reads it; a fake target does not."""
        if home in self.checkouts:
            commit, depth = self.checkouts.pop(home)
            checkout(self.template, self.origin, home / "work", commit, depth)
        return home / "work"

    def _app_token(self, step: str, options: Mapping[str, Any], context: dict[str, Any]) -> None:
        """A token of the app, with the permissions that the step asks for and no others."""
        assert _filled(options["private-key"], context) == "key"
        assert _filled(options["app-id"], context) == "7"
        rights = {
            name.removeprefix("permission-"): level
            for name, level in options.items()
            if name.startswith("permission-")
        }
        token = f"app-{self.runs}-{step}"
        self.state.tokens[token] = rights
        self.state.apps.add(token)
        context["steps"][step] = {"outputs": {"token": token}}

    def _attest(
        self, step: str, options: Mapping[str, Any], home: Path, context: dict[str, Any]
    ) -> None:
        """A bundle by the tests' own authority, which `gh` of this runner believes."""
        assert self.authority is not None and options["predicate-type"] == PREDICATE_TYPE
        text = (self._work(home) / options["subject-checksums"]).read_text()
        digests = {name: digest for digest, name in map(str.split, text.splitlines())}
        said = json.loads((self._work(home) / options["predicate-path"]).read_text())
        statement = Statement(
            digests["evidence.json"],
            f"sha256:{digests['model']}",
            said["commit"],
            said["evaluation"],
            datetime.fromisoformat(said["created"]),
        )
        commit = context["github"]["sha"]
        identity = replace(TRUSTED, repository=self.state.repository)
        bundle = home / "bundle.json"
        bundle.write_bytes(Workflow(self.authority, identity, commit)(statement))
        context["steps"][step] = {"outputs": {"bundle-path": str(bundle)}}

    def _command(
        self, step: Mapping[str, Any], home: Path, context: Mapping[str, Any]
    ) -> tuple[int, dict[str, str]]:
        programs = self.folder / "programs"
        if not programs.exists():
            programs.mkdir()
            for name in ("az", "gh", "make", "pulumi"):
                (programs / name).write_text(RECORDER)
                (programs / name).chmod(0o755)
            # The interpreter itself, where the one on the path is a script that looks for it.
            real = Path(sys.base_prefix) / "bin" / "python3.11"
            (programs / "python3.11").symlink_to(real)
            if self.authority is not None:
                self.authority.program(programs)
        target = str(step["run"]).removeprefix("make -f Makefile ").split()[0]
        is_fake = target in {*self.fake} - {*self.writes} and _ONE_TARGET.fullmatch(step["run"])
        work = home / "work" if is_fake else self._work(home)
        outputs = home / "outputs"
        outputs.write_text("")
        variables = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HOME": str(home),
            "CI": "true",
            "GITHUB_ACTIONS": "true",
            "GITHUB_API_URL": self.state.api,
            "GITHUB_REPOSITORY": self.state.repository,
            "GITHUB_RUN_ID": str(self.runs),
            "GITHUB_SHA": str(context["github"]["sha"]),
            "GITHUB_ACTOR": "merger",
            "GITHUB_EVENT_PATH": str(home / "event.json"),
            "GITHUB_OUTPUT": str(outputs),
            "GITHUB_STEP_SUMMARY": str(home / "summary"),
            "PYTHONPATH": str(work),
            "MYPY_CACHE_DIR": str(self.folder / MYPY_CACHE),
            "RECORD": str(self.record),
            "REAL_MAKE": str(shutil.which("make")),
            "FAKE_MAKE": " ".join(self.fake),
            "FAILING": " ".join(self.failing),
            "WORKING": " ".join(self.working),
            # `make test` runs every test of a project, and here one file has to do.
            "PYTEST_ADDOPTS": "-k test_text",
            "PYTEST_XDIST_AUTO_NUM_WORKERS": "1",
            **context.get("azure", {}),
            **{name: str(_filled(text, context)) for name, text in (step.get("env") or {}).items()},
        }
        (home / "event.json").write_text(json.dumps(context.get("github", {}).get("event", {})))
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=work if work.exists() else home,
            env=variables,
            capture_output=True,
            text=True,
        )
        print(f"{step['run']}: {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        stack = str(context.get("matrix", {}).get("stack", ""))
        for name, content in self.writes.get(target, {}).items():
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, str):
                content = content.replace("{stack}", stack).encode()
            (work / name).write_bytes(content)
        lines = (line.partition("=") for line in outputs.read_text().splitlines())
        return done.returncode, {name: value for name, _, value in lines}

    def commands(self) -> list[str]:
        """What ran since the last call, without the settings of make."""
        if not self.record.exists():
            return []
        lines = self.record.read_text().splitlines()
        self.record.unlink()
        return [re.sub(r" [A-Z]+=\S*", "", line) for line in lines]


@dataclass
class Job:
    """What came of a job."""

    result: str
    outputs: dict[str, str] = field(default_factory=dict)
    steps: list[dict[str, str]] = field(default_factory=list)
    summary: str = ""


def changed_files(work: Path) -> list[dict[str, str]]:
    """What differs from main, as GitHub lists it: a renamed file once, with both names."""
    files = []
    kinds = {"A": "added", "D": "removed", "M": "modified", "R": "renamed", "T": "changed"}
    for line in git(work, "diff", "--name-status", "-M", "origin/main", "HEAD").splitlines():
        kind, *names = line.split("\t")
        file = {"filename": names[-1], "status": kinds[kind[0]]}
        files.append({**file, **({"previous_filename": names[0]} if len(names) > 1 else {})})
    return files


def _clone(origin: Path, work: Path) -> None:
    """A clone of no files but those that are written in it: for git the others stay as they are."""
    git(origin, "clone", "-q", "--shared", "--no-checkout", str(origin), str(work))
    git(work, "read-tree", "HEAD")


def _write(work: Path, changes: Mapping[str, str | None]) -> None:
    for name, text in changes.items():
        path = work / name
        if text is None:
            path.unlink(missing_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    git(work, "add", "-A", "--", *changes)


def checkout(template: Path, origin: Path, work: Path, commit: str, depth: str) -> None:
    """As actions/checkout leaves it, with this environment's packages.

    It is `depth` commits deep; 0 is all of them. Its files are copies of the template's, which git
    takes for what it wrote itself; it writes those that differ.
    """
    ends = [commit] if depth == "1" else git(origin, "rev-parse", f"{commit}^@").splitlines()
    alike = ("-c", "core.checkStat=minimal", "-c", "core.trustCtime=false")
    git(origin, "clone", "-q", "--shared", "--no-checkout", *alike, str(origin), str(work))
    subprocess.run(["tar", "-xf", template / f"{TREE}.tar", "-C", work], check=True)
    if depth != "0":
        (work / ".git/shallow").write_text("".join(f"{end}\n" for end in ends))
    git(work, "checkout", "-qf", "--detach", commit)
    for name in imports.PROGRAMS:
        program = work / ".venv/bin" / name
        program.write_text(program.read_text().replace(str(template / TREE), str(work)))


def _link_environment(work: Path) -> None:
    """This environment's packages, with programs that are of this work tree."""
    environment = Path(sys.executable).parent.parent
    programs = work / ".venv/bin"
    programs.mkdir(parents=True)
    for folder in (environment, environment / "bin"):
        for entry in folder.iterdir():
            if entry.name != "bin":
                (work / ".venv" / entry.relative_to(environment)).symlink_to(entry)
    write = "import sys; sys.path.append('.'); from ml.core import imports; imports.main()"
    subprocess.run([programs / "python", "-P", "-c", write], cwd=work, check=True)


def template_in(folder: Path) -> None:
    """A repository whose main is this tree, and the files that its clones begin with.

    With what Python compiled of them, so that no job compiles it again; it looks whether the source
    is the same. Nothing that is installed is newer than they are, so it is not installed again.
    """
    origin, tree = folder / ORIGIN, folder / TREE
    for name in tracked(ROOT):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
        os.utime(tree / name, (0, 0))
    git(folder, "init", "-q", "-b", "main", f"--separate-git-dir={origin}", tree.name)
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "the template")
    git(tree, "repack", "-adq")
    (tree / ".git").unlink()
    (tree / ".git").mkdir()
    (origin / "index").rename(tree / ".git/index")
    for package in PACKAGES:
        checked = py_compile.PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(tree / package, quiet=2, invalidation_mode=checked)
    _link_environment(tree)
    shutil.make_archive(str(tree), "tar", tree)


def _variables(environment: str, azure: Mapping[str, str]) -> dict[str, str]:
    """Those that `infra bootstrap` sets for a GitHub environment."""
    if not environment:
        return {}
    if environment == BOT_ENVIRONMENT:
        return {"APP_ID": "7"}
    names = ("AZURE_TENANT_ID", "AZURE_SUBSCRIPTION_ID", "PULUMI_BACKEND_URL")
    names += ("AZUREML_RESOURCE_GROUP", "AZUREML_WORKSPACE_NAME")
    values = {name: azure.get(name, "set") for name in names}
    registry = {"AZUREML_REGISTRY_NAME": azure.get("AZUREML_REGISTRY_NAME", "")}
    return {"AZURE_CLIENT_ID": f"client of {environment}", **values, **registry}


def _needs(job: Mapping[str, Any]) -> list[str]:
    needs = job.get("needs") or []
    return [needs] if isinstance(needs, str) else list(needs)


def _holds(condition: object, context: Mapping[str, Any], fine: bool) -> bool:
    """Whether a job or step runs; without a function of the status only while all is fine."""
    if condition is None:
        return fine
    text = str(condition).strip().removeprefix("${{").removesuffix("}}")
    value = _evaluated(text, {**context, "fine": fine})
    return bool(value) and (fine or bool(STATUS.search(text)))


def _filled(text: object, context: Mapping[str, Any]) -> object:
    """A value with its expressions replaced."""
    if not isinstance(text, str):
        return text

    def replace(match: re.Match[str]) -> str:
        value = _evaluated(match[1], context)
        return "" if value is None else json.dumps(value) if isinstance(value, bool) else str(value)

    return re.sub(r"\$\{\{(.*?)\}\}", replace, text)


def _evaluated(text: str, context: Mapping[str, Any]) -> Any:
    """The value of an expression: names, texts, numbers, `! == != && ||`, parentheses, status."""
    tokens = TOKEN.findall(text)
    assert "".join(tokens) == re.sub(r"\s+(?=(?:[^']*'[^']*')*[^']*$)", "", text), text
    functions: dict[str, Callable[[], bool]] = {
        "always()": lambda: True,
        "cancelled()": lambda: False,
        "success()": lambda: bool(context.get("fine", True)),
        "failure()": lambda: not context.get("fine", True),
    }

    def atom() -> Any:
        token = tokens.pop(0)
        if token == "!":
            return not atom()
        if token == "(":
            inner = either()
            assert tokens.pop(0) == ")"
            return inner
        if token.startswith("'"):
            return token[1:-1].replace("''", "'")
        if token.isdigit():
            return int(token)
        if token in {"true", "false"}:
            return token == "true"
        if token in functions:
            return functions[token]()
        if token == "startsWith":
            assert tokens.pop(0) == "("
            text = str(either() or "").lower()
            assert tokens.pop(0) == ","
            start = str(either() or "").lower()
            assert tokens.pop(0) == ")"
            return text.startswith(start)
        value: Any = context
        for part in token.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def compared() -> Any:
        value = atom()
        while tokens and tokens[0] in {"==", "!="}:
            wanted = tokens.pop(0) == "=="
            value = (str(value or "") == str(atom() or "")) is wanted
        return value

    def both() -> Any:
        value = compared()
        while tokens and tokens[0] == "&&":
            tokens.pop(0)
            other = compared()
            value = value and other
        return value

    def either() -> Any:
        value = both()
        while tokens and tokens[0] == "||":
            tokens.pop(0)
            other = both()
            value = value or other
        return value

    return either()
