"""`make init`: turn a clone of the template into a team's own repository.

A thin fork keeps the files that a team edits and those that jobs need on a node. It installs the
framework as one wheel, locked by its hash. FULL=1 keeps the framework's source instead. `make init`
writes names, regions and owners into stack files, limits.yml, gates.yml and CODEOWNERS; rerun it
with one variable to change that value. On a terminal it prompts for missing values; elsewhere they
are an error. No placeholder of the template remains.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
import pathspec
import yaml
from jinja2.sandbox import SandboxedEnvironment

from infra.settings import loader
from ml.core import git, repository
from ml.core.azure import PLACEHOLDERS
from ml.core.errors import Exit, Place, Problem, UserError, as_program
from ml.repository.forks import wheel
from ml.repository.forks.merge import ANSWERS

HEAD_OF_ANSWERS = (
    "# Written by make init and make update: the template and the version merged last.\n"
)
WHEELS = Path("wheels")
# Files that `make init` writes for a thin fork and `make update` never changes.
OWN = ("README.md", "pyproject.toml")
EXAMPLES = "ml/projects"
OWNERS, LIMITS = Path(".github/CODEOWNERS"), Path("policies/infra/limits.yml")
_GUID = r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_HTTPS = re.compile(r"https?://\S+")
# The address of a wheel in a GitHub release. The workflow wheel.yml attests these wheels.
_RELEASE = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+)/releases/download/\S+")


@dataclass(frozen=True)
class Question:
    """A value that the team has to provide.

    An answer is one value, or a value for each stack: `dev=westeurope prod=northeurope`.
    """

    name: str
    text: str
    pattern: str
    key: str = ""  # the value's key in a stack file; "" if it has none

    @property
    def variable(self) -> str:
        """Return the name of the make variable with the answer."""
        return self.name.upper()


# Name of a question → the list in limits.yml that contains its answer.
LISTED = {
    "name": "registries",
    "repository": "repositories",
    "team": "reviewers",
    "owner": "hosts",
    "subscription": "subscriptions",
    "tenant": "tenants",
}
TEAM = Question("team", "who reviews: ORGANISATION/TEAM on GitHub", r"[\w-]+/[\w.-]+")
QUESTIONS = (
    Question(
        "name",
        "short name of the platform, a part of every name: 2 to 8 letters and digits",
        r"[a-z][a-z0-9]{1,7}",
        "platform:name",
    ),
    Question(
        "repository",
        "this repository on GitHub: OWNER/NAME",
        r"[\w@-]+/[\w.@-]+",
        "platform:repository",
    ),
    TEAM,
    Question("owner", "address for alerts and budgets", r"[^\s@]+@[^\s@]+", "platform:owner"),
    Question("region", "region of Azure", r"[a-z0-9]+", "azure-native:location"),
    Question(
        "subscription",
        "id of the subscription: az account show --query id",
        _GUID,
        "azure-native:subscriptionId",
    ),
    Question(
        "tenant",
        "id of the tenant: az account show --query tenantId",
        _GUID,
        "azure-native:tenantId",
    ),
)
Ask = Callable[[str], str]


def init(root: Path, options: Mapping[str, str], ask: Ask | None) -> list[str]:
    """Create the fork, or change its values; return sentences that say what was done.

    `options` maps the make variables, in lower case, to their values. `ask` prompts for a missing
    value; None makes it an error. Raises UserError, with no file changed, for missing or malformed
    values.
    """
    is_new = not (root / ANSWERS).exists()
    if not is_new and {"full", "keep", "wheel", "template", "from"} & options.keys():
        expected = "FULL, KEEP, WHEEL, TEMPLATE and FROM only at the first `make init`"
        hint = "git rm -r a project that is not needed; make update for another wheel"
        raise wrong_call("already-a-fork", f"{ANSWERS} exists", expected, hint)
    values = _values(root, options, ask)
    texts = _filled(root, values)
    if problems := [*_problems(root, texts)]:
        raise UserError(*problems)
    fork = _fork(root, {**options, **values}, ask) if is_new else None
    for file, text in texts.items():
        file.write_text(text)
    done = [_remove_unused_files(root, fork, values["repository"])] if fork else []
    return [*done, f"{values['repository']}: names, regions and owners are written"]


def _problems(root: Path, texts: Mapping[Path, str]) -> Iterator[Problem]:
    """Yield the problems of the new `texts` of files: invalid stack files, placeholders."""
    with tempfile.TemporaryDirectory() as folder:
        infra = Path(folder) / "infra"
        infra.mkdir()
        for stack in _stacks(root):
            file = _stack_file(root, stack)
            (infra / file.name).write_text(texts[file])
        for stack in _stacks(root):
            try:
                loader.load(stack, infra)
            except UserError as refused:
                yield from refused.problems
    for file, text in texts.items():
        for number, line in enumerate(text.splitlines(), start=1):
            if any(word in line for word in PLACEHOLDERS):
                place = Place(file.relative_to(root).as_posix(), number)
                hint = "make init, with the variable of that value"
                yield Problem("placeholder", line.strip(), "your own value", hint, place)


# Values.


def _values(root: Path, options: Mapping[str, str], ask: Ask | None) -> dict[str, str]:
    """Return the answer to each question by its name.

    Sources, in order: the make variable, the stack files, `az` (subscription and tenant), a prompt.
    Raises UserError for missing and malformed answers.
    """
    current = _current(root)
    values: dict[str, str] = {}
    problems = []
    for question in QUESTIONS:
        value = options.get(question.name) or current.get(question.name) or ""
        if not value and question.name in {"subscription", "tenant"}:
            value = _signed_in({"subscription": "id", "tenant": "tenantId"}[question.name])
        if not value and ask:
            value = ask(f"{question.text}: ").strip()
        if not value or not all(re.fullmatch(question.pattern, part) for part in _values_in(value)):
            actual = f"{question.variable}={value}" if value else f"no {question.variable}"
            hint = f"make init {question.variable}=…"
            problems.append(Problem("init-value", actual, question.text, hint))
        values[question.name] = value
    if problems:
        raise UserError(*problems, exit_code=Exit.WRONG_CALL)
    return values


def _values_in(value: str) -> list[str]:
    """Return the values in an answer, without stack names: `dev=x prod=y` → [x, y]; `x` → [x]."""
    return [word.partition("=")[2] if "=" in word else word for word in value.split()]


def _value_for_stack(value: str, stack: str) -> str:
    """Return an answer's value for one stack; its first value if it does not name the stack."""
    named = dict(word.split("=", 1) for word in value.split() if "=" in word)
    return named.get(stack) or _values_in(value)[0]


def _signed_in(field: str) -> str:
    """Return a field of `az account show`; "" if `az` is missing or not signed in."""
    try:
        words = ["az", "account", "show", "--output", "json"]
        process = subprocess.run(words, capture_output=True, text=True)
        return str(json.loads(process.stdout)[field]) if process.returncode == 0 else ""
    except (OSError, ValueError, KeyError):
        return ""


def _current(root: Path) -> dict[str, str]:
    """Return the answers that the stack files contain, by question; skip placeholders."""
    held = {stack: loader.configuration(stack, root / "infra") for stack in _stacks(root)}
    current = {}
    for question in QUESTIONS:
        by_stack = {stack: value for stack in held if (value := _value(held[stack], question))}
        is_same = len({*by_stack.values()}) == 1
        value = (
            next(iter(by_stack.values()))
            if is_same
            else " ".join(f"{stack}={text}" for stack, text in by_stack.items())
        )
        if value and not any(word in value for word in PLACEHOLDERS):
            current[question.name] = value
    if not (root / ANSWERS).exists():
        current.pop("name", None)  # before the first `make init`, these are the template's
        current.pop("region", None)
    return current


def _value(held: Mapping[str, str], question: Question) -> str:
    """Return the question's value in a stack's settings; "" if absent, the first of many teams."""
    if question == TEAM:
        listed = held.get("platform:reviewers", "")
        return str(json.loads(listed)[0]) if listed.startswith('["') else ""
    return held.get(question.key, "")


def _filled(root: Path, values: Mapping[str, str]) -> dict[Path, str]:
    """Return each file that contains answers → its text with the new values."""
    texts = {}
    for stack in _stacks(root):
        file = _stack_file(root, stack)
        text = file.read_text()
        held = loader.configuration(stack, root / "infra")
        if old := held.get("platform:name"):
            text = re.sub(rf"\b{old}-shared\b", f"{values['name']}-shared", text)
            text = re.sub(rf"\brg-{old}-", f"rg-{values['name']}-", text)
        for question in QUESTIONS:
            if question.key:
                line = f"  {question.key}: {_value_for_stack(values[question.name], stack)}"
                text = re.sub(rf"^  {re.escape(question.key)}: .*", line, text, flags=re.M)
        if reviewer := _value(held, TEAM):
            team = _value_for_stack(values["team"], stack)
            text = text.replace(f"    - {reviewer}\n", f"    - {team}\n", 1)
        month = f"budget_from: {datetime.date.today():%Y-%m}"
        texts[file] = re.sub(r"budget_from: \S+ # your first month", month, text)
    texts[root / LIMITS] = _limits(root, values)
    former = _values_in(_current(root).get("team", "your-organisation/ml-platform"))[0]
    owners, gates = root / OWNERS, root / repository.GATES
    name = re.compile(rf"@{re.escape(former)}(?![\w.-])")
    texts[owners] = name.sub(f"@{_values_in(values['team'])[0]}", owners.read_text())
    line_of_gates = re.compile(r"^(  attestation:(?:.*\n)+?    repository:) .*", re.M)
    texts[gates] = line_of_gates.sub(rf"\1 {values['repository']}", gates.read_text(), count=1)
    return texts


def _limits(root: Path, values: Mapping[str, str]) -> str:
    """Return the text of limits.yml with the former answers in its lists replaced by `values`."""
    text = (root / LIMITS).read_text()
    held = {stack: loader.configuration(stack, root / "infra") for stack in _stacks(root)}
    for question in QUESTIONS:
        suffix = "-shared" if question.name == "name" else ""
        former = [_value(configuration, question) for configuration in held.values()]
        new = [_value_for_stack(values[question.name], stack) for stack in held]
        before, after = (
            ", ".join(dict.fromkeys(f"{name}{suffix}" for name in names if name))
            for names in (former, new)
        )
        if before and question.name in LISTED:
            field = rf"(?m)^(  {LISTED[question.name]}: \[(?:.*, )?){re.escape(before)}(?=[],])"
            text = re.sub(field, rf"\g<1>{after}", text)
    return text


def _stacks(root: Path) -> Sequence[str]:
    return loader.stacks(root / "infra")


def _stack_file(root: Path, stack: str) -> Path:
    return root / "infra" / f"Pulumi.{stack}.yaml"


# Files.


@dataclass(frozen=True)
class Fork:
    """A fork's settings."""

    template: str  # address of the template's repository
    revision: str  # tag or commit of the template
    without: tuple[str, ...]  # names of example projects to remove
    lock: str  # content of framework.lock; "" if the fork keeps the framework's source


def _fork(root: Path, options: Mapping[str, str], ask: Ask | None) -> Fork:
    """Return the fork's settings from the make variables.

    Raises UserError for an unknown example project, and for uncommitted changes, since `make init`
    removes most files.
    """
    if git.run(root, "status", "--porcelain").strip():
        raise wrong_call(
            "uncommitted", "files that are not committed", "a clean clone", "git status, git stash"
        )
    examples = sorted(_projects(root))
    keep = options.get("keep")
    chosen = examples if keep is None else keep.replace(",", " ").split()
    if unknown := {*chosen} - {*examples, "none"}:
        actual = f"KEEP={' '.join(sorted(unknown))}"
        raise wrong_call("no-example", actual, f"{' '.join(examples)}, or none", "make init")
    return Fork(
        options.get("template") or _template(root, options["repository"], ask),
        options.get("from") or _revision(root),
        tuple(name for name in examples if name not in chosen),
        "" if options.get("full", "0") != "0" else _lock(root, options.get("wheel", "")),
    )


def _remove_unused_files(root: Path, fork: Fork, name: str) -> str:
    """Remove the files that the fork does not keep; record the template and its version.

    `name` is the fork's repository, OWNER/NAME. Returns a sentence with the number of files left.
    """
    tracked = [file for file in git.run(root, "ls-files", "-z").split("\0") if file]
    holds = _keeps(root, full=not fork.lock)
    gone = {file for file in tracked if not holds(file)}
    for project in fork.without:
        gone |= {*_files_of(root, tracked, project)}
        _without_endpoint(root, project)
    if fork.lock:
        (root / repository.FRAMEWORK_LOCK).write_text(fork.lock)
        for file in OWN:
            text = (root / "ml/repository/forks" / f"{file}.in").read_text()
            text = text.replace("NAME", name.partition("/")[2], 1)
            text = text.replace("REPOSITORY", name).replace("TEMPLATE", fork.template)
            (root / file).write_text(text)
    for file in gone - {*OWN}:
        (root / file).unlink(missing_ok=True)
        folder = remove_empty(root, (root / file).parent)
        shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    if fork.lock:
        _trim(root)
    answers = {"_commit": fork.revision, "_src_path": fork.template, "full": not fork.lock}
    (root / ANSWERS).write_text(HEAD_OF_ANSWERS + yaml.safe_dump(answers))
    return f"{len(tracked) - len(gone)} of the template's {len(tracked)} files are left"


def _keeps(root: Path, full: bool) -> Callable[[str], bool]:
    """Return a predicate, from the rules of copier.yml: does the fork keep the file at a path?"""
    left_out, is_own = rules((root / "copier.yml").read_text(), full)
    return lambda name: is_own(name) or not left_out(name) or (full and name in OWN)


def rules(text: str, full: bool) -> tuple[Callable[[str], bool], Callable[[str], bool]]:
    """Return two predicates on paths: is the path excluded from updates; does the fork own it?

    `text` is copier.yml; with `full`, the fork has the framework's source. Raises UserError if
    copier.yml is invalid.
    """
    try:
        settings = yaml.safe_load(text)
        environment = SandboxedEnvironment()
        patterns = [
            environment.from_string(rule).render(full=full) for rule in settings["_exclude"]
        ]
        return _matcher("\n".join(patterns)), _matcher("\n".join(settings["_skip_if_exists"]))
    except (KeyError, TypeError, yaml.YAMLError, jinja2.TemplateError) as error:
        hint = "make update TO=VERSION, with a version that has a valid copier.yml"
        raise wrong_call(
            "no-template",
            f"copier.yml: {error}",
            "a copier.yml with _exclude and _skip_if_exists",
            hint,
        ) from None


def _matcher(patterns: str) -> Callable[[str], bool]:
    return pathspec.PathSpec.from_lines("gitignore", patterns.splitlines()).match_file


def _projects(root: Path) -> Mapping[str, str]:
    """Return the name of each example project's folder → the name of its endpoint."""
    return {
        file.parents[1].name: str(yaml.safe_load(file.read_text())["name"])
        for file in sorted((root / EXAMPLES).glob("*/endpoint/endpoint.yml"))
    }


def _files_of(root: Path, tracked: Sequence[str], project: str) -> Iterator[str]:
    """Yield the tracked files of an example project: its folder, tests and benchmarks."""
    folders = (f"{EXAMPLES}/{project}/", f"tests/projects/{project}/")
    words = (f"projects/{project}", f"projects.{project}")
    for name in tracked:
        if name.startswith(folders):
            yield name
        elif name.startswith("benchmarks/") and name != "benchmarks/__main__.py":
            text = (root / name).read_text()
            if any(word in text for word in words):
                yield name


def _without_endpoint(root: Path, project: str) -> None:
    """Remove an example project's endpoint from the stack files."""
    endpoint = _projects(root)[project]
    for stack in _stacks(root):
        file = _stack_file(root, stack)
        text = file.read_text().replace(f"    - name: {endpoint}\n", "")
        file.write_text(re.sub(r"^  platform:endpoints:\n(?!    )", "", text, flags=re.M))


def remove_empty(root: Path, folder: Path) -> Path:
    """Remove a folder and its parents while they are empty; return the first that remains."""
    while folder != root and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
    return folder


def _trim(root: Path) -> None:
    """Remove dependabot.yml's entries from npm on: a thin fork has no such packages."""
    updates = root / ".github/dependabot.yml"
    text = re.split(r"^  - package-ecosystem: npm\n", updates.read_text(), flags=re.M)[0]
    updates.write_text(text)


def _template(root: Path, name: str, ask: Ask | None) -> str:
    """Return the template's address: the first git remote other than the team's repository `name`.

    Prompts if there is none; raises UserError without an answer.
    """
    for remote in ("upstream", "origin"):
        try:
            url = git.run(root, "remote", "get-url", remote).strip()
        except UserError:
            continue
        if not re.search(rf"[/:]{re.escape(name)}(\.git)?/?$", url):
            return url
    value = ask("address of the template's repository: ").strip() if ask else ""
    if not value:
        actual = "no git remote (upstream, origin) is the template"
        expected = "its address, for `make update`"
        hint = "make init TEMPLATE=https://github.com/OWNER/NAME"
        raise wrong_call("no-template", actual, expected, hint)
    return value


def _revision(root: Path) -> str:
    """Return the template's version: the tag of HEAD, or its commit if it has no tag."""
    try:
        return git.run(root, "describe", "--tags", "--exact-match", "HEAD").strip()
    except UserError:
        return git.run(root, "rev-parse", "HEAD").strip()


# The wheel.


def _lock(root: Path, source: str) -> str:
    """Return framework.lock's content for a wheel; `source` is a URL, a file, or "" to build HEAD.

    A wheel that is not at a URL is saved in the repository.
    """
    if _HTTPS.fullmatch(source):
        return lock_of(source)[0]
    text, files = lock_of(Path(source) if source else wheel.build(root, root / "dist"))
    shutil.rmtree(root / WHEELS, ignore_errors=True)
    (root / WHEELS).mkdir()
    for name, content in files.items():
        (root / name).write_bytes(content)
    return text


def lock_of(source: str | Path) -> tuple[str, Mapping[str, bytes]]:
    """Return the text of a wheel's lock, and the files to commit with it: path → content.

    `source` is a URL or a path; a URL needs no file. Raises UserError if the wheel cannot be read,
    or is not the framework in the version that its name states. A wheel of a GitHub release must
    also have an attestation by a workflow of its repository (`gh` verifies).
    """
    try:
        if isinstance(source, str):
            with urllib.request.urlopen(source, timeout=60) as answer:
                content, requirement = answer.read(), f"{wheel.NAME} @ {source}"
            files = {}
        else:
            content = source.read_bytes()
            requirement, files = f"./{WHEELS}/{source.name}", {f"{WHEELS}/{source.name}": content}
    except OSError as error:
        raise wrong_call("no-wheel", f"{source}: {error}", "a wheel", "make wheel") from None
    if isinstance(source, str) and (release := _RELEASE.fullmatch(source)):
        _demand_attestation(content, release[1])
    wheel.demand_version(content, str(source))
    digest = hashlib.sha256(content).hexdigest()
    text = f"# The framework; `make update` renews it.\n{requirement} --hash=sha256:{digest}\n"
    return text, files


def _demand_attestation(content: bytes, source: str) -> None:
    with tempfile.NamedTemporaryFile(suffix=".whl") as file:
        file.write(content)
        file.flush()
        try:
            words = ["gh", "attestation", "verify", file.name, "--repo", source]
            process = subprocess.run(words, capture_output=True, text=True)
            reason = "" if process.returncode == 0 else process.stderr.strip() or "no reason given"
        except FileNotFoundError:
            reason = "no program `gh`"
    if reason:
        expected = f"a wheel that a workflow of {source} attested"
        hint = "install gh and sign in, or build the wheel: make wheel, then WHEEL=dist/…"
        raise wrong_call("unattested", reason.splitlines()[-1], expected, hint)


def wrong_call(
    code: str, actual: str, expected: str, hint: str, place: Place | None = None
) -> UserError:
    """Return the error for a wrong call of `make init` or `make update`."""
    return UserError(Problem(code, actual, expected, hint, place), exit_code=Exit.WRONG_CALL)


@as_program
def main(argv: Sequence[str] | None = None) -> None:
    """Run `make init`; print what was done and the next command."""
    parser = argparse.ArgumentParser(prog="init", description=(__doc__ or "").split("\n")[0])
    for question in QUESTIONS:
        parser.add_argument(f"--{question.name}", help=question.text)
    parser.add_argument("--keep", help="The example projects that stay, or none; else all.")
    parser.add_argument("--full", help="1: keep the source of the framework.")
    parser.add_argument("--wheel", help="Its address or file; else it is built of this commit.")
    parser.add_argument("--template", help="The address that updates come from.")
    parser.add_argument("--from", help="The version of the template that this is a copy of.")
    options = {name: value for name, value in vars(parser.parse_args(argv)).items() if value}
    root = repository.root()
    for sentence in init(root, options, input if sys.stdin.isatty() else None):
        print(sentence)
    demonstrated = re.findall(r"(?m)^PROJECT := (.+)$", (root / "Makefile").read_text())
    has_demo = any((root / EXAMPLES / name).is_dir() for name in demonstrated)
    print(f"next: make {'demo' if has_demo else 'setup'}; git add -A; git commit; then README.md")


if __name__ == "__main__":
    sys.exit(main())
