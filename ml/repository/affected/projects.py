"""Determine the projects, stacks, policies, environments, packages and tests a change affects.

`python -m ml.repository.affected.projects` needs no package besides PyYAML: a workflow runs it
before it installs anything else. It follows imports, and the paths and assets (`azureml:NAME:1`)
in specs. A changed file that nothing refers to counts as the framework's.
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
# Attempts to list the files of a pull request without a commit being pushed meanwhile.
_LIST_ATTEMPTS = 3
# Documentation, which no program reads. Markdown in a subfolder of a project may be data or a
# prompt, and Markdown beside a Dockerfile or a lock may be installed: those count as code.
DOCUMENTS = ("*.md", "LICENSE")
PICTURES = "docs/images/"
NO_DOCUMENTS = (f"{PROJECTS}/*/*/*", f"{TESTS}/*", "ml/environments/*", "requirements/*")
# Files that pin the installed packages, which affect the stacks and the framework. Only
# JOB_PACKAGES affect projects: nodes run the fork's own files, not the framework's wheel.
JOB_PACKAGES = ("requirements/main.lock",)
PACKAGES = (*JOB_PACKAGES, "pyproject.toml", "requirements/framework.lock")
# The Pulumi program of the stacks, its settings and its costs.
STACK_PARTS = ("infra/__main__.py", "infra/program/", "infra/settings/", "infra/cost/")
# A project's own files except gates.yml: they can influence only that project's checks.
PROJECT_OWN_FILES = re.compile(rf"({PROJECTS}|{TESTS}/projects)/[^/]+/(?!gates\.yml$).+", re.S)
BAD_NAME = "bad-name"
# The most files that GitHub lists for a pull request.
LISTED = 3000
# Paths of the framework, except those below TEAM, which a team owns.
FRAMEWORK = (*(f"{source}/" for source in SOURCES), f"{TESTS}/", "benchmarks/", "requirements/")
TEAM = (f"{PROJECTS}/", f"{TESTS}/projects/", ENVIRONMENTS)
SETTINGS = ("infra/Pulumi*.yaml", "policies/*/*.yml", ".gitignore", ".amlignore")
# Packages that the main job does not install → the make target that does.
EXTRAS = {
    "pytorch": "torch",  # conda's name: pytorch-cpu
    "torch": "torch",
    "torchvision": "images",
}
_PACKAGE = re.compile(r"[a-z]+\b")
# Names of projects, stacks and environments become parts of commands and workflow matrices.
_NAME = re.compile(r"[A-Za-z0-9][\w-]*", re.ASCII)
_WORD = re.compile(r"""[^\s'",\[\]{}()]+""")
_ASSET = re.compile(r"azureml:([^:@/]+)")
# Git's hash of the empty tree.
_EMPTY = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
_MODULE = re.compile(rf"(?:{'|'.join(SOURCES)})(?:\.\w+)+")
# A quoted module name, or `module:function`, as `importlib` and entry points accept it.
_QUOTED = re.compile(rf"""["']({_MODULE.pattern})(?::[^"'\n]*)?["']""")


@dataclass(frozen=True)
class Affected:
    """Everything that a change affects; names are sorted."""

    base: str  # the revision, or `pull request N`
    files: int  # number of changed files
    documents: bool  # whether all changed files are documentation
    framework: bool  # whether the framework's tests must run
    projects: tuple[str, ...] = ()
    stacks: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()
    source_packages: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()  # paths for pytest
    # Make targets to run: they install environments' packages that the main job does not.
    extras: tuple[str, ...] = ()
    # `project NAME`, `stack NAME` … or `framework` → a changed file that affects it.
    causes: Mapping[str, str] = field(default_factory=dict)
    # Changed files that may influence the checks: all but documentation and PROJECT_OWN_FILES.
    self_affecting_files: tuple[str, ...] = ()


def affected(
    root: Path, base: str, ignore: Sequence[str] = (), *, include_reverted: bool = False
) -> Affected:
    """Return everything affected by the work tree's changes since the merge base with `base`.

    Files that match `ignore` count as unchanged. `include_reverted` adds changes that a later
    commit reverted: they may have been deployed meanwhile. Raises UserError for an unknown
    revision, outside of git, and for names that are unsafe in commands.
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
    """Return everything that a pull request affects, and the pull request's last commit.

    `root` is a checkout of its base branch. A renamed file counts under both names. If GitHub lists
    fewer files than were changed, everything is affected. Raises UserError as `affected` does, if
    GitHub does not respond, and if new commits are pushed during every attempt to list the files.
    """
    for _ in range(_LIST_ATTEMPTS):
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
    """Return everything that the files affect; if `complete` is false, everything there is."""
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
    # Changed files that exist after the change, including documentation.
    existing: frozenset[str] = frozenset()
    # Files that the change deletes, including documentation.
    removed: frozenset[str] = frozenset()

    def everything(self, base: str, count: int) -> Affected:
        """Return all projects and stacks as affected, since the list of files is incomplete."""
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
            lambda name: self._changed_under(f"{ENVIRONMENTS}{name}/"),
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
                sorted(file for file in self.files if not PROJECT_OWN_FILES.fullmatch(file))
            ),
        )

    def _caused(self, names: Iterable[str], cause: Callable[[str], str]) -> dict[str, str]:
        causes = {name: cause(name) for name in sorted(names)}
        return {name: file for name, file in causes.items() if file}

    # Names before and after the change: a removed stack is affected, too.

    @cached_property
    def tree(self) -> frozenset[str]:
        """Return the files that exist after the change, tracked or not, without ignored files."""
        words = ("ls-files", "--cached", "--others", "--exclude-standard", "-z")
        names = {name for name in git.run(self.root, *words).split("\0") if name}
        here = frozenset(name for name in names if os.path.lexists(self.root / name))
        return (here | self.existing) - self.removed

    def _under(self, prefix: str) -> list[str]:
        return [file for file in self.tree | self.files if file.startswith(prefix)]

    @cached_property
    def projects(self) -> frozenset[str]:
        """Return the names of the folders in ml/projects after the change."""
        return frozenset(_folders(PROJECTS, self.tree))

    @cached_property
    def stacks(self) -> frozenset[str]:
        """Return the names of the stacks that exist before or after the change."""
        files = (re.fullmatch(r"infra/Pulumi\.(.+)\.yaml", file) for file in self._under("infra/"))
        return frozenset(validated_name(match[1]) for match in files if match)

    # Imports.

    @cached_property
    def modules(self) -> dict[str, str]:
        """Return the path of each Python file of the packages in SOURCES → its text."""
        return {
            file: self._text(file)
            for file in self.tree
            if file.endswith(".py") and file.startswith(tuple(f"{source}/" for source in SOURCES))
        }

    @cached_property
    def affected_modules(self) -> dict[str, str]:
        """Return each module affected by the change → the changed file that affects it.

        A module is affected if it changed or imports an affected module. A changed data file
        affects the modules in its folder, or in the nearest parent folder with modules. SETTINGS
        and files of TEAM affect none.
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
        """Return the name of each project → the changed files that it contains or depends on."""
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
        """Return every folder that contains files, directly or in subfolders."""
        return frozenset(
            file[: slash.start()] for file in self.tree for slash in re.finditer("/", file)
        )

    def _named(self, file: str, project: str) -> set[str]:
        """Return the repository paths that a project's spec refers to; none for other files.

        References are paths, modules, assets, and programs in `code:`. Parent folders of the
        project, such as the root in `code:`, are skipped: `affected_modules` follows the imports.
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
        """Return the keys and values of a spec, whole and split into words.

        Whole values are included since a path may contain spaces and commas.
        """
        values = _scalars(self._text(file))
        return [*values, *(word for value in values for word in _WORD.findall(value))]

    @cached_property
    def assets(self) -> dict[str, set[str]]:
        """Return the name of each data set, environment, component and model → its spec files.

        A changed spec is listed under its name before the change, too.
        """
        named: dict[str, set[str]] = {}
        for file in filter(_is_yaml, self.tree | self.files):
            if file.startswith(repository.ASSETS) and "/." not in file:
                texts = [self._text(file), self._former(file) if file in self.files else ""]
                for name in filter(None, map(_asset_name, texts)):
                    named.setdefault(name, set()).add(file)
        return named

    def _extras(self, projects: Iterable[str]) -> set[str]:
        """Return the make targets that install extra packages of the projects' environments."""
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
        return config or packages or self._changed_under(*rules) or next(program, "")

    def _policy_cause(self, name: str) -> str:
        folder = f"policies/{name}/"
        reached = (
            cause for file, cause in self.affected_modules.items() if file.startswith(folder)
        )
        return self._changed_under(folder) or next(reached, "")

    def _source_packages(self) -> dict[str, str]:
        source_packages: dict[str, str] = {}
        for file, cause in sorted(self.affected_modules.items()):
            if not file.startswith(f"{PROJECTS}/"):
                source_packages.setdefault(
                    "/".join(file.split("/")[: 2 if file.count("/") > 1 else 1]), cause
                )
        return dict(sorted(source_packages.items()))

    def _is_framework(self, file: str) -> bool:
        """Return whether a changed file is the framework's, so that all of its tests must run."""
        if file.startswith((*TEAM, f"{WORKFLOWS}/", f"{TESTS}/github/")):
            return False
        if _matches(file, SETTINGS):
            return False
        named = any(file in files for files in self.dependencies.values())
        # Files at the root and in dot folders are read by name, so no import or spec shows it.
        return file.startswith((*FRAMEWORK, ".")) or "/" not in file or not named

    def _tests(self, projects: Iterable[str], policies: Iterable[str]) -> Iterator[str]:
        """Yield the pytest paths to run for a change that does not affect the framework."""
        folder = f"{TESTS}/projects"
        paths = {f"{folder}/{name}" for name in (*projects, *_folders(folder, self.files))}
        if projects:
            paths.add(EVERY_PROJECT)
        if self._changed(f"{folder}/*", deep=False):
            paths.add(folder)
        if policies:
            paths.add(f"{TESTS}/policies")
        if self._changed_under(f"{WORKFLOWS}/") or self._changed_under(f"{TESTS}/github/"):
            paths.add(f"{TESTS}/github")
        return (path for path in paths if path in self.tree | self.folders)

    # Files.

    def _changed_under(self, *folders: str) -> str:
        """Return the first changed file in or below one of the folders; "" if there is none."""
        return min((file for file in self.files if file.startswith(folders)), default="")

    def _changed(self, *patterns: str, deep: bool = True) -> str:
        """Return the first changed file that matches a pattern; "" if there is none.

        Unless `deep`, `*` does not match slashes.
        """
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
            return ""  # the change adds the file


def is_document(file: str) -> bool:
    """Return whether the file is documentation or a picture of it, which no program reads."""
    if _matches(file, (f"{PROJECTS}/*/*",)) and posixpath.basename(file) != "README.md":
        return False
    if file.startswith(PICTURES):
        return True
    return _matches(posixpath.basename(file), DOCUMENTS) and not _matches(file, NO_DOCUMENTS)


def _is_yaml(file: str) -> bool:
    return file.endswith((".yml", ".yaml"))


def _scalars(text: str) -> list[str]:
    """Return every scalar key and value of a YAML text, in order; its lines if it is invalid."""
    try:
        events = [*yaml.parse(text, documents.LOADER)]
    except yaml.YAMLError:
        return text.splitlines()
    return [event.value for event in events if isinstance(event, yaml.ScalarEvent)]


def _asset_name(text: str) -> str:
    """Return the `name` in an asset's spec; "" if it has none."""
    try:
        return str(documents.parse(text, "").get("name") or "")
    except UserError:
        return ""


def _matches(file: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch(file, pattern) for pattern in patterns)


def _is_at(file: str, path: str) -> bool:
    """Return whether `file` is the path itself or below it."""
    return file == path or file.startswith(f"{path}/")


def _folders(parent: str, files: Iterable[str]) -> set[str]:
    """Return the names of the subfolders of a folder."""
    inside = (file.removeprefix(f"{parent}/") for file in files if _is_at(file, parent))
    return {validated_name(file.partition("/")[0]) for file in inside if "/" in file}


def validated_name(name: str) -> str:
    """Return `name`, of a folder or stack, unchanged; raise UserError if unsafe in commands."""
    if not _NAME.fullmatch(name):
        actual = f"{name!r} is the name of a folder or a stack"
        hint = "rename it: commands and workflow matrices contain it"
        raise UserError(Problem(BAD_NAME, actual, "letters, digits, `_` and `-`", hint))
    return name


def _imported(file: str, text: str) -> Iterator[str]:
    """Yield the paths that a module's imports may refer to; not all of them exist.

    `file` is the module, `text` its source. Quoted module names count, since `importlib` accepts
    them. Yields nothing if the text is not valid Python.
    """
    package = posixpath.dirname(file).split("/")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return  # ruff reports the syntax error
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
    """Yield the possible paths of a module: `a.b` → `a/b.py`, `a/b/__init__.py`, `a/__init__.py`.

    Parent packages are included since importing a module runs them.
    """
    parts = module.split(".")
    if parts[0] in SOURCES:
        yield f"{'/'.join(parts)}.py"
        yield from (f"{'/'.join(parts[:end])}/__init__.py" for end in range(1, len(parts) + 1))


def _merge_base(root: Path, base: str) -> str:
    """Return the merge base of HEAD and `base`; the empty tree if HEAD is the first commit.

    Raises UserError if `base` is unknown.
    """
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
        return resolved  # a shallow clone lacks the commits between


def _is_first(root: Path) -> bool:
    """Return whether HEAD has no parent, as in a repository just made from a template.

    In a shallow clone, a parent that was not fetched counts as a parent.
    """
    header = git.run(root, "cat-file", "commit", "HEAD").partition("\n\n")[0]
    return "\nparent " not in header


def as_text(result: Affected) -> str:
    """Return the affected names as lines of text, each with the changed file that affects it."""
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
    """Print everything that the changes affect, as text or JSON."""
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
