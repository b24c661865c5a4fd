"""What a change touches: projects, stacks, policies, environments, source packages and tests.

`python -m ml.repository.affected.projects` needs no package besides PyYAML: a workflow asks it
before it installs anything else. Imports are followed, and so are the paths and the assets
(`azureml:NAME:1`) that specs name. A file of which nothing is known is the framework's.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import posixpath
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from unicodedata import normalize

import yaml

from ml.core import documents, git, repository
from ml.core.errors import Problem, UserError, as_program
from ml.repository.github.api import GitHub, write_outputs

PROJECTS, TESTS, WORKFLOWS = "ml/projects", "tests", ".github"
ENVIRONMENTS = "ml/environments/"
EVERY_PROJECT = f"{TESTS}/projects/test_every_project.py"
SOURCES = ("ml", "infra", "policies")
# Attempts at listing the files of a pull request while no commit is pushed.
_LOOKS = 3
# Files that no program reads. Texts inside a project are code (they may be data or prompts) except
# its README, and so are texts beside a Dockerfile or a lock, which may be installed.
DOCUMENTS = ("*.md", "LICENSE")
PICTURES = "docs/images/"
NO_DOCUMENTS = (f"{PROJECTS}/*/*/*", f"{TESTS}/*", "ml/environments/*", "requirements/*")
# Installed packages: stacks and the framework run with them. Jobs use only JOB_PACKAGES: a thin
# fork's wheel evaluates the results of a node, which itself runs the fork's own files.
JOB_PACKAGES = ("requirements/main.lock",)
PACKAGES = (*JOB_PACKAGES, "pyproject.toml", "requirements/framework.lock")
# The Pulumi program of the stacks, its settings and its costs.
STACK_PARTS = ("infra/__main__.py", "infra/program/", "infra/settings/", "infra/cost/")
# A project's own files, which can influence only that project's checks; gates.yml is not one.
OWN = re.compile(rf"({PROJECTS}|{TESTS}/projects)/[^/]+/(?!gates\.yml$).+", re.S)
BAD_NAME = "bad-name"
# The most files that GitHub lists for a pull request.
LISTED = 3000
# Paths of the framework, except those of TEAM: a team's own settings, projects and their tests.
FRAMEWORK = (*(f"{source}/" for source in SOURCES), f"{TESTS}/", "benchmarks/", "requirements/")
TEAM = (f"{PROJECTS}/", f"{TESTS}/projects/", ENVIRONMENTS)
SETTINGS = ("infra/Pulumi*.yaml", "policies/*/*.yml", ".gitignore", ".amlignore")
# Packages that the main job does not install → the make target that does.
EXTRAS = {
    "pytorch": "torch",  # conda's: pytorch-cpu
    "torch": "torch",
    "torchvision": "images",
}
_PACKAGE = re.compile(r"[a-z]+\b")
# Names of projects, stacks and environments become parts of commands and workflow matrices.
_NAME = re.compile(r"[A-Za-z0-9][\w-]*", re.ASCII)
_WORD = re.compile(r"""[^\s'",\[\]{}()]+""")
_ASSET = re.compile(r"azureml:([^:@/]+)")
# Git's name of the tree without files.
_EMPTY = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
_MODULE = re.compile(rf"(?:{'|'.join(SOURCES)})(?:\.\w+)+")
# A module, or a function of one, as `importlib` and entry points take it.
_QUOTED = re.compile(rf"""["']({_MODULE.pattern})(?::[^"'\n]*)?["']""")


@dataclass(frozen=True)
class Affected:
    """What a change affects; names are sorted."""

    base: str  # the revision, or `pull request N`
    files: int  # number of changed files
    documents: bool  # all changed files are documentation
    framework: bool  # the framework's tests must run
    projects: tuple[str, ...] = ()
    stacks: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()
    source_packages: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()  # paths for pytest
    # Make targets that install packages of the projects' environments that the main job lacks.
    extras: tuple[str, ...] = ()
    # `project NAME`, `stack NAME` … or `framework` → a changed file that affects it.
    causes: Mapping[str, str] = field(default_factory=dict)
    # Files by which a change may influence its own checks: all but documentation and a project's
    # own.
    self_affecting_files: tuple[str, ...] = ()


def affected(
    root: Path, base: str, ignore: Sequence[str] = (), *, include_reverted: bool = False
) -> Affected:
    """Return what the changes of the work tree since the merge base with `base` affect.

    Files that match `ignore` count as unchanged. `include_reverted` adds changes that a later
    commit reverted: they may have been applied meanwhile. Raises UserError for an unknown revision,
    outside of git, and for a name that no command accepts.
    """
    commit = _merge_base(root, base)
    words = ("--name-only", "--no-renames", "-z")
    names = git.run(root, "diff", *words, commit, "--").split("\0")
    if include_reverted:
        log = ("log", "--first-parent", "-m", "--format=", *words, f"{commit}..HEAD", "--")
        names += (name.strip("\n") for name in git.run(root, *log).split("\0"))
    names += git.run(root, "ls-files", "--others", "--exclude-standard", "-z").split("\0")
    files = frozenset(name for name in names if name and not _matches(name, ignore))
    removed = frozenset(file for file in files if not os.path.lexists(root / file))
    return _affected(root, base, commit, files, removed)


def of_pull_request(root: Path, github: GitHub, number: int) -> tuple[Affected, str]:
    """Return what a pull request affects in `root`, the tree it is merged into, and its commit.

    A renamed file counts under both names. If GitHub lists fewer files than were changed,
    everything is affected. Raises UserError as `affected`, if GitHub does not respond, and if
    commits are pushed each time that the files are listed.
    """
    for _ in range(_LOOKS):
        pull = github.get(f"pulls/{number}")
        listed = [*github.pages(f"pulls/{number}/files")]
        head, now = (str(state["head"]["sha"]) for state in (pull, github.get(f"pulls/{number}")))
        if now == head:
            break
    else:
        actual = f"pull request {number} got the new commit {now[:12]} while its files were listed"
        raise UserError(Problem("commit-changed", actual, head[:12], "see the new commit's checks"))
    names = {str(file["filename"]) for file in listed}
    before = {str(file.get("previous_filename") or file["filename"]) for file in listed}
    gone = {str(file["filename"]) for file in listed if file["status"] == "removed"}
    files, removed = frozenset(names | before), frozenset((before - names) | gone)
    all_of_it = int(pull["changed_files"]) == len(listed) < LISTED
    result = _affected(root, f"pull request {number}", "HEAD", files, removed, all_of_it)
    return result, head


def _affected(
    root: Path,
    base: str,
    commit: str,
    files: frozenset[str],
    removed: frozenset[str],
    complete: bool = True,
) -> Affected:
    """Return what these files affect; everything if the list is incomplete."""
    code = frozenset(file for file in files if not is_document(file))
    if complete and not code:
        return Affected(base, len(files), bool(files), False)
    change = _Change(root, commit, code, files - removed, removed)
    return change.affected(base, len(files)) if complete else change.everything(base, len(files))


@dataclass(frozen=True)
class _Change:
    """The changed files of a repository."""

    root: Path
    commit: str  # the commit before the change
    files: frozenset[str]  # changed files except documentation
    # Changed files that exist after the change, with documentation.
    there: frozenset[str] = frozenset()
    # Changed files that are gone after the change, with documentation.
    removed: frozenset[str] = frozenset()

    def everything(self, base: str, count: int) -> Affected:
        """Return everything as affected: more has changed than the listed files."""
        cause = f"more than {count} files"
        projects, stacks = sorted(self.projects), sorted(self.stacks)
        return Affected(
            base=base,
            files=count,
            documents=False,
            framework=True,
            projects=tuple(projects),
            stacks=tuple(stacks),
            tests=(TESTS,),
            extras=tuple(sorted(self._extras(projects))),
            causes={"framework": cause},
            self_affecting_files=(cause,),
        )

    def affected(self, base: str, count: int) -> Affected:
        """Return the affected names, each with a changed file as its cause."""
        projects = self._caused(self.projects, self._project_cause)
        stacks = self._caused(self.stacks, self._stack_cause)
        policies = self._caused(_folders("policies", self.tree | self.files), self._policy_cause)
        environments = self._caused(
            _folders(ENVIRONMENTS[:-1], self.tree | self.files),
            lambda name: self._below(f"{ENVIRONMENTS}{name}/"),
        )
        source_packages = self._source_packages()
        framework = min(filter(self._is_framework, self.files), default="")
        causes = {
            f"{kind} {name}": cause
            for kind, caused in (
                ("project", projects),
                ("stack", stacks),
                ("policy", policies),
                ("environment", environments),
                ("package", source_packages),
            )
            for name, cause in caused.items()
        }
        return Affected(
            base,
            count,
            documents=False,
            framework=bool(framework),
            projects=tuple(projects),
            stacks=tuple(stacks),
            policies=tuple(policies),
            environments=tuple(environments),
            source_packages=tuple(source_packages),
            tests=(TESTS,) if framework else tuple(sorted(self._tests(projects, policies))),
            extras=tuple(sorted(self._extras(projects))),
            causes={**causes, **({"framework": framework} if framework else {})},
            self_affecting_files=tuple(
                sorted(file for file in self.files if not OWN.fullmatch(file))
            ),
        )

    def _caused(self, names: Iterable[str], cause: Callable[[str], str]) -> dict[str, str]:
        causes = {name: cause(name) for name in sorted(names)}
        return {name: file for name, file in causes.items() if file}

    # Names, with those that the change removes: a removed stack is affected.

    @cached_property
    def tree(self) -> frozenset[str]:
        """Return every tracked or untracked, not ignored file that exists after the change."""
        words = ("ls-files", "--cached", "--others", "--exclude-standard", "-z")
        names = {name for name in git.run(self.root, *words).split("\0") if name}
        here = frozenset(name for name in names if os.path.lexists(self.root / name))
        return (here | self.there) - self.removed

    def _under(self, prefix: str) -> list[str]:
        return [file for file in self.tree | self.files if file.startswith(prefix)]

    @cached_property
    def projects(self) -> frozenset[str]:
        """Return the folders under ml/projects after the change, without removed projects."""
        return frozenset(_folders(PROJECTS, self.tree))

    @cached_property
    def stacks(self) -> frozenset[str]:
        """Return the environments with a stack file before or after the change."""
        files = (re.fullmatch(r"infra/Pulumi\.(.+)\.yaml", file) for file in self._under("infra/"))
        return frozenset(checked(match[1]) for match in files if match)

    # Imports.

    @cached_property
    def modules(self) -> dict[str, str]:
        """Return each Python file of the packages in SOURCES, with its text."""
        return {
            file: self._text(file)
            for file in self.tree
            if file.endswith(".py") and file.startswith(tuple(f"{source}/" for source in SOURCES))
        }

    @cached_property
    def affected_modules(self) -> dict[str, str]:
        """Return each module that the change reaches → the changed file.

        A file that is no module counts for the modules of its folder, or else of a folder above;
        a team's settings do not.
        """
        causes: dict[str, str] = {}
        for file in sorted(self.files):
            if not file.startswith(tuple(f"{source}/" for source in SOURCES)):
                continue
            if file.endswith(".py"):
                causes.setdefault(file, file)
            elif not file.startswith(TEAM) and not _matches(file, SETTINGS):
                causes.update(dict.fromkeys(self._beside(file) - {*causes}, file))
        # Python normalizes identifiers to NFKC, so imports may be spelled with other characters.
        named = {file: f"{file}\n{normalize('NFKC', text)}" for file, text in self.modules.items()}
        imported: dict[str, frozenset[str]] = {}
        waiting = list(causes)
        while waiting:
            name = waiting.pop()
            parts = name.removesuffix("/__init__.py").removesuffix(".py").split("/")[::-1]
            for file, text in self.modules.items():
                # Parsing is slow: skip files whose path and text lack a part of the module's name.
                if file in causes or not all(part in named[file] for part in parts):
                    continue
                if file not in imported:
                    imported[file] = frozenset(_imported(file, text))
                if name in imported[file]:
                    causes[file] = causes[name]
                    waiting.append(file)
        return causes

    def _beside(self, file: str) -> set[str]:
        folder = posixpath.dirname(file)
        while folder:
            if modules := {name for name in self.modules if posixpath.dirname(name) == folder}:
                return modules
            folder = posixpath.dirname(folder)
        return set()

    # Projects.

    def _project_cause(self, name: str) -> str:
        shared = self._changed(*JOB_PACKAGES, ".amlignore", f"{PROJECTS}/*", deep=False)
        return shared or min(self.dependencies[name], default="")

    @cached_property
    def dependencies(self) -> dict[str, set[str]]:
        """Return each project → the changed files that it contains or depends on."""
        return {name: set(self._reached(f"{PROJECTS}/{name}")) for name in self.projects}

    def _reached(self, project: str) -> Iterator[str]:
        yield from (file for file in self.files if file.startswith(f"{project}/"))
        waiting = self._under(f"{project}/")
        seen = set(waiting)
        while waiting:
            file = waiting.pop()
            if file in self.affected_modules:
                yield self.affected_modules[file]
            for target in self._named(file, project) - seen:
                seen.add(target)
                yield from (file for file in self.files if _is_at(file, target))
                if target in self.tree:
                    waiting.append(target)
                elif target in self.folders:
                    inside = {file for file in self.tree if _is_at(file, target)} - seen
                    waiting += inside
                    seen |= inside

    @cached_property
    def folders(self) -> frozenset[str]:
        """Return every folder with a file in it or below."""
        return frozenset(
            file[: slash.start()] for file in self.tree for slash in re.finditer("/", file)
        )

    def _named(self, file: str, project: str) -> set[str]:
        """Return the paths and modules of the repository that a spec of a project names.

        A folder above the project, such as the root in `code:`, is not followed: imports say which
        of its modules are used, and `affected_modules` which of them the change reaches.
        """
        names: set[str] = set()
        words = self._words(file) if _is_yaml(file) or file.endswith("/MLTable") else []
        for word in words:
            if match := _ASSET.match(word):
                names |= self.assets.get(match[1], set())
            elif _MODULE.fullmatch(word):
                names |= {*_files_of(word), f"{word.replace('.', '/')}/__main__.py"}
            else:
                word = word.removeprefix("file://").removeprefix("file:")
                if "*" in word:  # a pattern: use its folder
                    word = word.partition("*")[0].rpartition("/")[0] or word
                path = posixpath.normpath(posixpath.join(posixpath.dirname(file), word))
                if not path.startswith("../") and not _is_at(project, path):
                    names.add(path)
        if "code" in words:  # program paths are relative to `code`: a folder above
            above = ("", *(file[: match.end()] for match in re.finditer("/", file)))
            programs = [word.removeprefix("./") for word in words if word.endswith(".py")]
            paths = {f"{folder}{program}" for folder in above for program in programs}
            names |= paths & (self.tree | self.files)
        return names

    def _words(self, file: str) -> list[str]:
        """Return the keys and values of a spec, and their words.

        Both, since a path may contain spaces and commas.
        """
        values = _scalars(self._text(file))
        return [*values, *(word for value in values for word in _WORD.findall(value))]

    @cached_property
    def assets(self) -> dict[str, set[str]]:
        """Return the name of each data set, environment, component and model → its specs.

        A changed spec also counts under its former name.
        """
        named: dict[str, set[str]] = {}
        for file in filter(_is_yaml, self.tree | self.files):
            if file.startswith(repository.ASSETS) and "/." not in file:
                texts = [self._text(file), self._former(file) if file in self.files else ""]
                for name in filter(None, map(_asset_name, texts)):
                    named.setdefault(name, set()).add(file)
        return named

    def _extras(self, projects: Iterable[str]) -> set[str]:
        """Return the make targets for extra packages of these projects' environments."""
        specs = [file for name in projects for file in self._under(f"{PROJECTS}/{name}/")]
        words = {word for file in specs if _is_yaml(file) for word in self._words(file)}
        assets = {match[1] for word in words if (match := _ASSET.match(word))}
        named = {file for name in assets for file in self.assets.get(name, ())}
        folders = {posixpath.dirname(file) for file in named if file.startswith(ENVIRONMENTS)}
        files = [file for folder in folders for file in self._under(f"{folder}/")]
        lines = [
            line.strip()
            for file in files
            for line in (
                _scalars(self._text(file)) if _is_yaml(file) else self._text(file).splitlines()
            )
        ]
        packages = {match[0] for line in lines if (match := _PACKAGE.match(line))}
        return {extra for package, extra in EXTRAS.items() if package in packages}

    # Stacks, policies, source packages.

    def _stack_cause(self, name: str) -> str:
        config = self._changed(f"infra/Pulumi.{name}.yaml", "infra/Pulumi.yaml")
        packages = self._changed(*PACKAGES, "requirements/infra.lock")
        rules = "policies/infra/", "policies/own/"
        parts = (*STACK_PARTS, *rules)
        program = (cause for file, cause in self.affected_modules.items() if file.startswith(parts))
        return config or packages or self._below(*rules) or next(program, "")

    def _policy_cause(self, name: str) -> str:
        folder = f"policies/{name}/"
        reached = (
            cause for file, cause in self.affected_modules.items() if file.startswith(folder)
        )
        return self._below(folder) or next(reached, "")

    def _source_packages(self) -> dict[str, str]:
        source_packages: dict[str, str] = {}
        for file, cause in sorted(self.affected_modules.items()):
            if not file.startswith(f"{PROJECTS}/"):
                source_packages.setdefault(
                    "/".join(file.split("/")[: 2 if file.count("/") > 1 else 1]), cause
                )
        return dict(sorted(source_packages.items()))

    def _is_framework(self, file: str) -> bool:
        """Return whether a file is the framework's: not a team's, and not named by a project."""
        if file.startswith((*TEAM, f"{WORKFLOWS}/", f"{TESTS}/github/")):
            return False
        if _matches(file, SETTINGS):
            return False
        named = any(file in files for files in self.dependencies.values())
        # Some programs read files at the root, and in folders that begin with a dot, by name.
        return file.startswith((*FRAMEWORK, ".")) or "/" not in file or not named

    def _tests(self, projects: Iterable[str], policies: Iterable[str]) -> Iterator[str]:
        """Yield the tests to run for a change that does not affect the framework."""
        folder = f"{TESTS}/projects"
        paths = {f"{folder}/{name}" for name in (*projects, *_folders(folder, self.files))}
        if projects:
            paths.add(EVERY_PROJECT)
        if self._changed(f"{folder}/*", deep=False):
            paths.add(folder)
        if policies:
            paths.add(f"{TESTS}/policies")
        if self._below(f"{WORKFLOWS}/") or self._below(f"{TESTS}/github/"):
            paths.add(f"{TESTS}/github")
        return (path for path in paths if path in self.tree | self.folders)

    # Files.

    def _below(self, *folders: str) -> str:
        """Return the first changed file in one of the folders; "" without one."""
        return min((file for file in self.files if file.startswith(folders)), default="")

    def _changed(self, *patterns: str, deep: bool = True) -> str:
        """Return the first changed file that matches; unless `deep`, `*` does not cross folders."""
        return next(
            (
                file
                for pattern in patterns
                for file in sorted(self.files)
                if fnmatch(file, pattern) and (deep or file.count("/") == pattern.count("/"))
            ),
            "",
        )

    def _text(self, file: str) -> str:
        path = self.root / file
        if path.is_symlink() or not path.is_file():
            return ""
        return path.read_text(encoding="utf-8-sig", errors="replace")

    def _former(self, file: str) -> str:
        try:
            return git.run(self.root, "show", f"{self.commit}:{file}")
        except UserError:
            return ""  # it is new


def is_document(file: str) -> bool:
    """Return whether the file is a document, which no program reads."""
    if _matches(file, (f"{PROJECTS}/*/*",)) and posixpath.basename(file) != "README.md":
        return False
    if file.startswith(PICTURES):
        return True
    return _matches(posixpath.basename(file), DOCUMENTS) and not _matches(file, NO_DOCUMENTS)


def _is_yaml(file: str) -> bool:
    return file.endswith((".yml", ".yaml"))


def _scalars(text: str) -> list[str]:
    """Return every key and value of a YAML file in order; the lines if it is not valid YAML."""
    try:
        events = [*yaml.parse(text, documents.LOADER)]
    except yaml.YAMLError:
        return text.splitlines()
    return [event.value for event in events if isinstance(event, yaml.ScalarEvent)]


def _asset_name(text: str) -> str:
    """Return the `name` of an asset's spec; "" without one."""
    try:
        return str(documents.parse(text, "").get("name") or "")
    except UserError:
        return ""


def _matches(file: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch(file, pattern) for pattern in patterns)


def _is_at(file: str, path: str) -> bool:
    """Return whether a file is at that path, or below it."""
    return file == path or file.startswith(f"{path}/")


def _folders(parent: str, files: Iterable[str]) -> set[str]:
    """Return the names of the subfolders of a folder."""
    inside = (file.removeprefix(f"{parent}/") for file in files if _is_at(file, parent))
    return {checked(file.partition("/")[0]) for file in inside if "/" in file}


def checked(name: str) -> str:
    """Return the name of a folder or stack; raise UserError if it is unsafe in commands."""
    if not _NAME.fullmatch(name):
        actual = f"{name!r} is the name of a folder or a stack"
        hint = "rename it: commands and workflow matrices contain it"
        raise UserError(Problem(BAD_NAME, actual, "letters, digits, `_` and `-`", hint))
    return name


def _imported(file: str, text: str) -> Iterator[str]:
    """Yield the files that a module's imports may refer to, whether they exist or not.

    Quoted dotted names count too, because `importlib` accepts them.
    """
    package = posixpath.dirname(file).split("/")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return  # its own checks report it
    for name in _QUOTED.findall(text):
        yield from _files_of(name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files_of(alias.name)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            yield from _files_of(source)
            for alias in node.names:
                yield from _files_of(f"{source}.{alias.name}")


def _files_of(module: str) -> Iterator[str]:
    """Yield the files of a module: `a.b` → `a/b.py`, `a/b/__init__.py`, `a/__init__.py`.

    Parents are included since importing a module runs them.
    """
    parts = module.split(".")
    if parts[0] in SOURCES:
        yield f"{'/'.join(parts)}.py"
        yield from (f"{'/'.join(parts[:end])}/__init__.py" for end in range(1, len(parts) + 1))


def _merge_base(root: Path, base: str) -> str:
    """Return the commit to compare with; the empty tree for the parent of the first commit."""
    resolved = git.commit(root, base)
    if resolved is None:
        if base in {"HEAD^", "HEAD^1", "HEAD~1"} and _is_first(root):
            return _EMPTY
        actual, expected = f"no revision `{base}` in git", "a branch, a tag or a commit"
        hint = "git fetch origin, then --base origin/main"
        if git.ask(root, "remote", "get-url", "origin") is None:
            hint = "no remote `origin`: git remote add origin URL, or compare with the commit "
            hint += "before: make smoke BASE=HEAD^, or --base HEAD^"
        raise UserError(Problem("unknown-revision", actual, expected, hint))
    try:
        return git.run(root, "merge-base", "HEAD", resolved).strip()
    except UserError:
        return resolved  # a shallow clone has the commit alone


def _is_first(root: Path) -> bool:
    """Return whether HEAD has no parent, as in a repository just made from a template.

    A parent that a shallow clone lacks counts.
    """
    header = git.run(root, "cat-file", "commit", "HEAD").partition("\n\n")[0]
    return "\nparent " not in header


def as_text(result: Affected) -> str:
    """Return the affected names as lines, each with the file that is its cause."""
    head = f"{result.files} changed files against {result.base}"
    if not result.causes:
        return f"{head}: {'documents alone' if result.documents else 'nothing to check'}"
    width = max(len(name) for name in result.causes)
    lines = [f"{name:<{width}}  {file}" for name, file in result.causes.items()]
    return "\n".join(
        [head, *lines, *([f"tests: {' '.join(result.tests)}"] if result.tests else [])]
    )


@as_program
def main(argv: Sequence[str] | None = None) -> None:
    """`python -m ml.repository.affected.projects`, which needs no package besides PyYAML."""
    parser = argparse.ArgumentParser(prog="affected", description=(__doc__ or "").split("\n")[0])
    compared = parser.add_mutually_exclusive_group(required=True)
    compared.add_argument("--base", help="A revision, such as origin/main.")
    compared.add_argument("--pull", type=int, help="Number of a pull request on GitHub.")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="Print JSON.")
    form.add_argument("--tests", action="store_true", help="Print the paths for pytest.")
    form.add_argument("--extras", action="store_true", help="Print what make is to install too.")
    options = parser.parse_args(argv)
    if options.pull is None:
        result = affected(repository.root(), options.base)
    else:
        result, _ = of_pull_request(repository.root(), GitHub.of_workflow(), options.pull)
    left_out = {"causes", "base", "self_affecting_files"}
    write_outputs({name: value for name, value in asdict(result).items() if name not in left_out})
    lists = {"tests": result.tests, "extras": result.extras}
    if requested := [names for form, names in lists.items() if getattr(options, form)]:
        print(" ".join(requested[0]))
    else:
        print(json.dumps(asdict(result), indent=1) if options.json else as_text(result))


if __name__ == "__main__":
    sys.exit(main())
