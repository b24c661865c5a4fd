"""Write the comment about the checks of a pull request: the verdict first, details collapsed.

The verdict uses only trusted data: GitHub's lists of changed files and jobs, and main's code, which
determines the jobs that these files require. The pull request's own code wrote everything else: the
comment shows it but does not rely on it. This module needs only the standard library.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ml.core.markdown import code, details, link, plain, table, text, truncate
from ml.reports.formatting import count, duration, number
from ml.reports.json_values import Value
from ml.reports.pull_requests.comparison import fit, is_refused, sections, title

MARKER = "<!-- ml-check -->"
# Maximum characters of the comment and of one of its parts; GitHub rejects more than 65,536.
MAX_LENGTH, MAX_PART = 60_000, 14_000
# Maximum rows of a table, failed jobs in the verdict, candidates, projects or stacks, and metrics
# of a run.
ROWS, FAILED, CANDIDATES, PROJECTS, METRICS = 20, 6, 4, 12, 6
# Maximum characters for the names of `self_affecting_files` in RULES, which come first, and of the
# others; maximum depth of a folder to summarize.
RULES_LENGTH, OTHERS_LENGTH, DEPTH = 8_000, 4_000, 8
RULES = (
    *(".github/", ".ci/", "Makefile", "framework.mk", "policies/", "ml/repository/", "ml/reports/"),
    # In a thin fork, these files are the framework.
    *("requirements/framework.lock", "wheels/"),
)
# The only Mermaid syntax that is shown: nodes, groups and arrows as in infra/preview/diagram.py,
# without directives.
_LABEL = r'"(?:[^"`<>\\\n]|<br/>)*"'
_DIAGRAM = re.compile(
    rf"flowchart LR(?:\n *(?:subgraph g\d+\[{_LABEL}\]|n\d+\[{_LABEL}\]|end"
    rf"|n\d+ -->(?:\|{_LABEL}\|)? n\d+)){{1,300}}"
)


@dataclass(frozen=True)
class Job:
    """A job of a workflow run, with the names of its failed and of its successful steps."""

    name: str
    conclusion: str
    failed: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()


@dataclass(frozen=True)
class PullRequestChange:
    """What a pull request affects, according to main's code and GitHub's list of its files."""

    documents: bool  # whether all changed files are documentation
    needed: tuple[tuple[str, str], ...]  # (job, step): the job must succeed and run the step
    # Changed files that may influence the checks of the pull request.
    self_affecting_files: tuple[str, ...] = ()
    projects: tuple[str, ...] = ()
    stacks: tuple[str, ...] = ()
    # `project NAME`, `stack NAME` … → a changed file that affects it.
    causes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """A run of the checks as GitHub reports it, and the change that it checks."""

    id: int  # increases from run to run; 0 while the checks of `commit` are running
    commit: str
    conclusion: str
    url: str
    jobs: tuple[Job, ...]
    change: PullRequestChange
    required: str = "required"  # the job that aggregates all others

    @property
    def passed(self) -> bool:
        """Whether the run, the job `required`, and all jobs that the change needs succeeded."""
        required = [job.conclusion for job in self.jobs if job.name == self.required]
        return {*required} == {"success"} and self.conclusion == "success" and not self.missed

    @property
    def missed(self) -> tuple[tuple[str, str], ...]:
        """Return the needed (job, step) pairs that did not run; step "" means the whole job."""
        missed = []
        for name, step in self.change.needed if self.id else ():
            jobs = [job for job in self.jobs if job.name == name]
            succeeded = jobs and all(job.conclusion == "success" for job in jobs)
            if succeeded and not all(step in job.passed for job in jobs):
                missed.append((name, step))
            elif not succeeded and not any(job in self.failed for job in jobs):
                missed.append((name, ""))
        return tuple(dict.fromkeys(missed))

    @property
    def failed(self) -> tuple[Job, ...]:
        """Return the failed and unfinished jobs, except the job `required`."""
        fine = ("success", "skipped", "neutral")
        return tuple(
            job for job in self.jobs if job.conclusion not in fine and job.name != self.required
        )


@dataclass(frozen=True)
class Training:
    """A run of train.yml, as reported by GitHub and main's code."""

    id: int
    commit: str  # the commit that was trained
    conclusion: str  # conclusion of the training job
    url: str


def state(run: Run, training: Training | None) -> str:
    """Return the comment's second line: an HTML comment with the commit and the ids of the runs."""
    trained = f" train: {training.id}" if training else ""
    return f"<!-- commit: {run.commit} run: {run.id}{trained} -->"


def shown_runs(body: str) -> tuple[int, int]:
    """Return the ids of the checks run and the training run in a comment; 0 for none."""
    number = r"(\d{1,18})"
    line = rf"<!-- commit: [0-9a-f]+ run: {number}(?: train: {number})? -->"
    match = re.match(rf"{re.escape(MARKER)}\s*\n{line}", body)
    return (int(match[1]), int(match[2] or 0)) if match else (0, 0)


def comment_of(
    run: Run,
    documents: Mapping[str, object],
    unread: Sequence[str] = (),
    repository: str = "",
    training: Training | None = None,
) -> str:
    """Return the comment about a run, at most MAX_LENGTH characters for any documents.

    `documents` are the untrusted results by name (smoke, infra, train), `unread` sentences about
    results that could not be read. `training` is the run that wrote the document `train`.
    `repository` is the repository's URL, for links to commits.
    """
    values = {name: Value(document) for name, document in documents.items()}
    stacks, projects = run.change.stacks, run.change.projects
    infra = _of_change(values.get("infra", Value()), "stack", stacks)
    trained = _of_change(values.get("train", Value()), "project", projects) if training else []
    compared = [entry["comparison"] for entry in trained if entry["comparison"]]
    first = f"{MARKER}\n{state(run, training)}\n\n{_verdict(run, infra, trained, training)}"
    parts = [
        *_remarks(run, [*unread, *_unreported(run, values)]),
        *(_trained(trained, training, run) if training else ()),
        _offer(run) if not training and run.change.projects else "",
        *(_candidate(value, repository) for value in compared[:CANDIDATES]),
        _left_out(compared, CANDIDATES),
        _smoke(_of_change(values.get("smoke", Value()), "project", projects)),
        _costs(infra),
        *(_infrastructure(report) for report in infra[:PROJECTS]),
        _jobs(run),
        _touched(run.change),
        _diagrams(infra[:PROJECTS]),
    ]
    return fit([first, *map(_bounded, parts)], MAX_LENGTH)


def _of_change(document: Value, key: str, names: Sequence[str]) -> list[Value]:
    """Return the entries of a document; those whose `key` is in `names` come first.

    Only the first entries are shown, and an untrusted document may have many.
    """
    return sorted(document, key=lambda entry: entry[key].string not in names)


def _left_out(entries: Sequence[Value], limit: int) -> str:
    return f"{len(entries) - limit} more are not shown." if len(entries) > limit else ""


def _bounded(part: str) -> str:
    if len(part) <= MAX_PART:
        return part
    first = next(iter(part.strip("#* \n").splitlines()), "")
    return f"_A part of {len(part):,} characters is not shown: {text(plain(first), 60)}_"


def _verdict(
    run: Run, infra: Sequence[Value], trained: Sequence[Value], training: Training | None
) -> str:
    """Return a heading that states whether the checks passed, and everything that did not."""
    refused = [report["stack"].code() for report in infra if report["refused"]][:PROJECTS]
    compared = [entry["comparison"] for entry in trained]
    gates = [value["candidate"]["name"].text() for value in compared if is_refused(value)]
    failed = [entry["project"].code() for entry in trained if entry["error"]][:PROJECTS]
    reasons = [f"{_name(job)} {_outcome(job)}" for job in run.failed[:FAILED]]
    if len(run.failed) > FAILED:
        reasons.append(f"{len(run.failed) - FAILED} more failed")
    for name, step in run.missed:
        part = f"{code(name)} did not run “{step}”" if step else f"{code(name)} did not run"
        reasons.append(f"{part}, which this change requires")
    if refused:
        reasons.append(f"a policy rejects {', '.join(refused)}")
    if gates:
        reasons.append(f"the gates reject {', '.join(gates[:CANDIDATES])}")
    if failed:
        reasons.append(f"the training of {', '.join(failed)} failed")
    elif training and training.conclusion != "success":
        reasons.append("the training did not succeed")
    if not run.id:
        return f"### ⏳ The checks are still running{''.join(f'; {reason}' for reason in reasons)}"
    if run.change.self_affecting_files and run.passed:
        reasons.insert(0, "this pull request changes its own checks")
    if run.passed and not reasons:
        return "### ✅ Every check passed"
    if run.passed:
        return f"### ⚠️ Every check passed, but {'; '.join(reasons)}"
    return f"### ❌ Not ready to merge: {'; '.join(reasons) or 'a required check did not run'}"


def _name(job: Job) -> str:
    return code(truncate(job.name, 60))


def _outcome(job: Job) -> str:
    words = {"failure": "failed", "timed_out": "timed out", "cancelled": "was cancelled"}
    steps = f" ({', '.join(text(step, 60) for step in job.failed[:3])})" if job.failed else ""
    return words.get(job.conclusion, text(job.conclusion or "has not ended", 30)) + steps


def _remarks(run: Run, unread: Sequence[str]) -> Iterator[str]:
    if run.id:
        yield (
            f"Commit {code(run.commit[:12])}, merged into the base branch; "
            f"{link('the run', run.url)}. "
            "The pull request's own code reported the numbers below, without secrets. "
            "Gates and policies are evaluated again after the merge."
        )
    rules = [file for file in run.change.self_affecting_files if _is_rule(file)]
    others = [file for file in run.change.self_affecting_files if not _is_rule(file)]
    if run.change.self_affecting_files:
        names = ", ".join([*_names(rules, RULES_LENGTH), *_names(others, OTHERS_LENGTH)])
        yield (
            f"⚠️ **This pull request changes its own checks: {names}.** The checks ran with "
            "these changes, so a pass proves little. The code owners in "
            "`.github/CODEOWNERS` must review these files first."
        )
    if unread:
        yield "\n".join(f"- {text(sentence, 300)}" for sentence in unread[:ROWS])


def _is_rule(file: str) -> bool:
    return any(file == rule or (rule[-1] == "/" and file.startswith(rule)) for rule in RULES)


def _names(files: Sequence[str], length: int) -> list[str]:
    """Return the names of the files in at most `length` characters.

    If there are too many, the files of the folder with the longest list are replaced by their
    number, and so on. So many files in one folder cannot hide the files of others.
    """
    labels = {tuple(file.split("/")): (text(file, len(file)), 1) for file in sorted(files)}
    while sum(len(words) for words, _ in labels.values()) > length:
        folder, names = _heaviest(labels)
        total = sum(labels.pop(name)[1] for name in names)
        path = "/".join((*folder, ""))
        labels[*folder, ""] = f"{text(path, len(path))} ({count(total, 'file')})".strip(), total
    return [words for words, _ in labels.values()]


def _heaviest(
    labels: Mapping[tuple[str, ...], tuple[str, int]],
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the folder with the most characters and its names, which become one entry.

    The names are the files directly in a folder, or all files below it if no subfolder has half of
    the characters. A name that ends in "" stands for files that already are one entry.
    """
    folder: tuple[str, ...] = ()
    names = [*labels]
    while len(folder) < DEPTH:
        groups: dict[str, list[tuple[str, ...]]] = {}
        for name in names:
            groups.setdefault(name[len(folder)] if len(name) > len(folder) + 1 else "", []).append(
                name
            )
        lengths = {part: sum(len(labels[name][0]) for name in groups[part]) for part in groups}
        part = max(lengths, key=lengths.__getitem__)
        is_small = 2 * lengths[part] < sum(lengths.values()) and (folder or len(groups) > ROWS)
        if is_small or groups[part] == [(*folder, *filter(None, [part]), "")]:
            break
        names = groups[part]
        if not part:
            break
        folder = (*folder, part)
    return folder, names


def _unreported(run: Run, values: Mapping[str, Value]) -> Iterator[str]:
    """If the run passed, yield a sentence on changed projects and on stacks without a result."""
    for kind, names, document, key in (
        ("project", run.change.projects, "smoke", "project"),
        ("stack", run.change.stacks, "infra", "stack"),
    ):
        reported = {entry[key].string for entry in values.get(document, Value())}
        missing = [name for name in names if name not in reported][:ROWS]
        if missing and run.passed:
            yield f"the checks reported no result for the {kind} {', '.join(missing)}"


def _trained(trained: Sequence[Value], training: Training, run: Run) -> Iterator[str]:
    """Yield paragraphs on the commit that was trained and on projects whose training failed."""
    yield (
        f"**Trained on Azure**: commit {code(training.commit[:12])}, "
        f"{link('the run', training.url)}. The pull request's own code trained, "
        "evaluated and reported the results; the gates decide on them. Nothing is registered."
    )
    if training.commit != run.commit:
        yield "⚠️ **The pull request has newer commits, which are not trained.**"
    failed = [
        f"- {entry['project'].code()}: {entry['error'].text(600)}"
        for entry in trained
        if entry["error"]
    ]
    if failed:
        yield "\n".join(failed[:PROJECTS])
    if training.conclusion == "success" and not trained:
        yield "The commit touches no project that trains."


def _offer(run: Run) -> str:
    return (
        f"To train the projects on Azure, comment `/train {run.commit}` "
        "(requires write access to the repository)."
    )


def _candidate(compared: Value, repository: str) -> str:
    parts = sections(compared, repository)
    return fit([title(compared), *parts], MAX_PART)


def _smoke(runs: Sequence[Value]) -> str:
    """Return the table of smoke runs with their metrics, except durations."""
    rows = []
    for run in runs[:PROJECTS]:
        metrics = [
            f"{text(name, 40)} {number(value.number)}"
            for name, value in run["metrics"].fields()
            if value.number is not None and not name.endswith(("_seconds", "_ms"))
        ]
        seconds = run["seconds"].number
        rows.append(
            [
                run["project"].code(),
                run["status"].text(30) + (f": {run['error'].text()}" if run["error"] else ""),
                "" if seconds is None or not 0 <= seconds < 1e6 else duration(seconds),
                ", ".join(metrics[:METRICS])
                + (f", and {len(metrics) - METRICS} more" if len(metrics) > METRICS else ""),
            ]
        )
    if not rows:
        return ""
    runs_table = table(["project", "status", "took", "metrics"], rows)
    words = "**Smoke training of this change**, reported by its own code"
    return "\n\n".join(filter(None, [words, runs_table, _left_out(runs, PROJECTS)]))


def _costs(infra: Sequence[Value]) -> str:
    rows = []
    for report in infra[:PROJECTS]:
        mark = "❌ " if report["problems"] or report["refused"] else ""
        now, before = _month(report["cost"]), _month(report["cost_before"])
        cost = f"{before} → **{now}**" if before and before != now else now
        rows.append([f"{mark}{report['stack'].code()}", _counts(report), cost])
    if not rows:
        return ""
    currency = infra[0]["cost"]["currency"].text(8)
    head = ["environment", "changes", f"{currency} a month: idle, typical, worst"]
    words = "**Infrastructure after the merge**, reported by the pull request's own code"
    return "\n\n".join(filter(None, [words, table(head, rows), _left_out(infra, PROJECTS)]))


def _month(cost: Value) -> str:
    month = [cost["month"][key].number for key in ("idle", "typical", "worst")]
    return ", ".join("?" if value is None else f"{value:,.0f}" for value in month) if cost else ""


def _counts(report: Value) -> str:
    if report["removed"]:
        return "its stack file is removed"
    kinds = [change["what"].string for change in report["changes"]]
    counts = {kind: kinds.count(kind) for kind in ("added", "changed", "removed")}
    return ", ".join(f"{n} {kind}" for kind, n in counts.items() if n) or "no changes"


def _infrastructure(report: Value) -> str:
    """Return a stack's problems and violations as a list, and its changes as a collapsed table."""
    stack = report["stack"].text(40)
    lines = [f"- **{stack}**: {problem.text(400)}" for problem in [*report["problems"]][:ROWS]]
    lines += [
        f"- **{stack} violates** {finding['policy'].code()}: {finding['message'].text(400)}"
        for finding in [*report["refused"]][:ROWS]
    ]
    lines += [f"- {stack}, note: {note.text(400)}" for note in [*report["immutable"]][:ROWS]]
    rows = [row for change in [*report["changes"]][:ROWS] for row in _rows(change)][:ROWS]
    parts = ["\n".join(lines)] if lines else []
    if rows:
        head = ["", "resource", "property", "before", "after"]
        parts.append(details(f"{stack}: {_counts(report)}", table(head, rows)))
    return "\n\n".join(parts)


def _rows(change: Value) -> Iterator[list[str]]:
    resource = [change["what"].text(20), f"{change['name'].code()} {change['kind'].text(60)}"]
    properties = [*change["properties"]][:ROWS]
    for difference in properties:
        values = (truncate(plain(difference[key].json), 80) for key in ("before", "after"))
        yield [*resource, difference["path"].code(), *map(text, values)]
    if not properties:
        yield [*resource, "", "", ""]


def _diagrams(infra: Sequence[Value]) -> str:
    """Return the collapsed Mermaid diagrams of the first stack that changes; "" without any."""
    changed = next((report for report in infra if report["changes"]), None)
    if changed is None:
        return ""
    graphs = [
        f"**{diagram['title'].text()}**\n\n```mermaid\n{diagram['mermaid'].string}\n```"
        for diagram in [*changed["diagrams"]][:3]
        if len(diagram["mermaid"].string) < 6000 and _DIAGRAM.fullmatch(diagram["mermaid"].string)
    ]
    summary = f"Diagrams of {changed['stack'].text(40)}"
    return details(summary, "\n\n".join(graphs)) if graphs else ""


def _jobs(run: Run) -> str:
    signs = {"success": "✅", "skipped": "–", "neutral": "–"}
    missed = {name for name, _ in run.missed}
    rows = []
    for job in run.jobs[:ROWS]:
        outcome = _outcome(job) if job in run.failed else text(job.conclusion, 30)
        if job.conclusion == "skipped":
            outcome = "skipped, but required" if job.name in missed else "not required"
        rows.append(
            ["❌" if job.name in missed else signs.get(job.conclusion, "❌"), _name(job), outcome]
        )
    return details("Checks", table(["", "check", ""], rows)) if rows else ""


def _touched(change: PullRequestChange) -> str:
    rows = [[text(name, 60), text(cause, 120)] for name, cause in [*change.causes.items()][:ROWS]]
    if change.documents:
        return "Only documents changed."
    return details("What the change touches", table(["", "cause"], rows)) if rows else ""
