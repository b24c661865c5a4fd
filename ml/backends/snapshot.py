"""Snapshots of `code:`, one for every content: a run never works in the folder that a person edits.

The files are those that azure-ai-ml would upload: it matches each file against the `.amlignore` of
the folder, or else its `.gitignore`; the last pattern that matches decides, and a pattern that
matches a folder matches everything below it. pathspec's pattern of that kind does the same (a
test compares the two); the SDK's own matcher costs the import of the SDK.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from pathspec import PathSpec
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from ml.core import faults, home, trees
from ml.core.errors import Exit, Problem, Refused
from ml.core.repository import shown
from ml.specs.plan.plans import AutoMLPlan, PipelinePlan, Plan, SweepPlan, commands

# A file name that no pattern spells: it stands for any file of a folder.
_ANY = "\x00"
# Lines that match no file for the SDK, and every folder for pathspec: `/`, `/**/`.
_NO_PATTERN = re.compile(r"!?/(\*\*/)*")
_WILDCARD = re.compile(r"[*?\[\\]")
_WORD = re.compile(r"\w+")


class IgnoreFile:
    """The ignore file of a folder; without one, every file is included."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        candidates = [folder / name for name in (".amlignore", ".gitignore")]
        self.file = next((path for path in candidates if path.is_file()), None)
        text = self.file.read_text(encoding="utf-8-sig") if self.file else ""
        lines = [line.strip() for line in text.splitlines()]
        lines = [line for line in lines if not _NO_PATTERN.fullmatch(line)]
        self._spec = PathSpec.from_lines(GitIgnoreSpecPattern, lines)
        self._included = [_anchor(line) for line in lines if line.startswith("!")]

    def excludes(self, path: str) -> bool:
        """Whether the file at `path` (relative to the folder, with `/`) is left out."""
        return self._spec.match_file(path)

    def files(self, besides: Collection[Path] = ()) -> Iterator[tuple[str, Path]]:
        """Every included file as (relative path, path), sorted; links are followed.

        The folders `besides` are never entered: the home of the runs may be inside `code:`.
        """
        yield from self._below(self.folder, "", besides, frozenset({self.folder.resolve()}))

    def _below(
        self, folder: Path, prefix: str, besides: Collection[Path], above: frozenset[Path]
    ) -> Iterator[tuple[str, Path]]:
        with os.scandir(folder) as scanned:
            entries = sorted(scanned, key=lambda entry: entry.name)
        for entry in entries:
            relative, path = f"{prefix}{entry.name}", Path(entry.path)
            if entry.is_dir():
                real = path.resolve()
                # A link to a folder above would never end.
                if path not in besides and real not in above and not self._prunes(relative):
                    yield from self._below(path, f"{relative}/", besides, above | {real})
            elif entry.is_file() and not self.excludes(relative):
                yield relative, path

    def _prunes(self, folder: str) -> bool:
        """Whether no file below the folder can be included, so that `.venv` is never opened."""
        parts = folder.split("/")
        may_include = any(
            all(mine == theirs for mine, theirs in zip(anchor, parts, strict=False))
            for anchor in self._included
        )
        return not may_include and self.excludes(f"{folder}/{_ANY}")


def _anchor(pattern: str) -> list[str]:
    """The leading segments of a `!pattern` without a wildcard; none when it matches anywhere."""
    segments = pattern.removeprefix("!").rstrip("/").split("/")
    if len(segments) == 1:
        return []
    segments = segments[1:] if not segments[0] else segments
    wild = (number for number, part in enumerate(segments) if _WILDCARD.search(part))
    return segments[: next(wild, len(segments))]


@dataclass(frozen=True)
class Snapshot:
    """The files of `code:` as they were when the run was planned; `digest` is `sha256:<hex>`."""

    folder: Path
    digest: str


def take(code: Path | None, besides: Collection[Path] = ()) -> Snapshot | None:
    """The snapshot of `code` (a folder or one file), copied unless its content is there already.

    The folders `besides` are left out.

    Two runs that take the same snapshot at the same moment both copy; the first to finish renames
    its copy into place and the other throws its own away. Raises OSError when the disk is full, and
    Refused (snapshot-changed) when the copy is not what its name says.
    """
    if code is None:
        return None
    if code.is_file():
        files = [(code.name, code)]
    else:
        files = list(IgnoreFile(code).files({home.home(), *besides}))
    digest = trees.digest(files)
    try:
        # When it was last taken: cleaning leaves what a run may be about to work with.
        os.utime(_place(digest))
    except FileNotFoundError:
        digest = _copy(files)
    snapshot = Snapshot(_place(digest), digest)
    if not is_whole(snapshot):
        raise Refused(
            Problem(
                "snapshot-changed",
                f"the copy of {shown(code)} was changed: {shown(snapshot.folder)}",
                f"files with the digest {digest[:19]}…, after which it is named",
                f"find out who changed it; then `rm -r {shown(snapshot.folder)}`: "
                "the next run copies the code again",
            ),
            exit_code=Exit.GATE_SAID_NO,
        )
    return snapshot


def copy(code: Path, besides: Collection[Path] = ()) -> Path:
    """The folder of the snapshot of `code`, as `take` has it; Refused when the disk is full."""
    with faults.as_refusals():
        snapshot = take(code, besides)
    assert snapshot is not None  # it is None for no code alone
    return snapshot.folder


def of_plan(plan: Plan) -> dict[Path | None, Snapshot | None]:
    """The snapshot of each folder of code in a plan.

    A change of a project that nothing in the plan can import changes no snapshot: projects are left
    out that the plan does not name, as far as each command with that code names one.
    """
    texts = [*_texts(plan)]
    by_code: dict[Path | None, list[str]] = {}
    for command in commands(plan):
        entry = command.parallel.entry_script if command.parallel else ""
        by_code.setdefault(command.code, []).append(f"{command.command} {entry}")
    return {
        code: take(code, unnamed_projects(code, texts, started) if code else ())
        for code, started in by_code.items()
    }


def _texts(plan: Plan) -> Iterator[str]:
    """All in a plan that may name a module: commands, values of inputs and variables, choices."""
    if isinstance(plan, AutoMLPlan):
        return
    if isinstance(plan, SweepPlan):
        yield str(plan.search_space)
        yield from _texts(plan.trial)
        return
    yield from (str(data.value) for data in plan.inputs.values())
    if isinstance(plan, PipelinePlan):
        for step in plan.steps.values():
            yield from _texts(step.plan)
    else:
        yield plan.command
        yield from plan.environment_variables.values()
        yield plan.parallel.entry_script if plan.parallel else ""


def unnamed_projects(
    code: Path, texts: Collection[str], started: Collection[str] = ()
) -> frozenset[Path]:
    """The folders of projects in `code` that the texts do not name, nor the code of those named.

    None of them where one of `started` names no project, or a text or that code looks into
    `ml/projects` without naming one: what it imports there is not known.
    """
    folder = code / "ml" / "projects"
    others = {path.name: path for path in _folders(folder)}
    if not others or not all(others.keys() & _WORD.findall(text) for text in started):
        return frozenset()
    named = rf"(?:\.|/|\s+import\s+\(?\s*)(?:{'|'.join(map(re.escape, others))})\b"
    unknown = re.compile(rf"""(?:\bml[./]|["'])projects\b(?!{named})|\bml import .*\bprojects\b""")
    waiting = [*texts]
    while waiting:
        text = waiting.pop()
        if unknown.search(text):
            return frozenset()
        for name in others.keys() & _WORD.findall(text):
            files = others.pop(name).rglob("*.py")
            waiting += [path.read_text(errors="replace") for path in files]
    return frozenset(others.values())


def _folders(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from (path for path in folder.iterdir() if path.is_dir())


def is_whole(snapshot: Snapshot) -> bool:
    """Whether the copy still has the content that its digest says."""
    return trees.is_content(snapshot.folder, snapshot.digest)


def working_copy(snapshot: Snapshot | None, into: Path) -> Path:
    """A folder for one run to work in, as a node has one.

    Files are copied, not linked: a script that appends to a file of its own code would change
    the snapshot, and with it every later run of the same content, through a hard link.
    """
    if snapshot is None:
        into.mkdir(parents=True)
    else:
        shutil.copytree(snapshot.folder, into)
    return into


def _place(digest: str) -> Path:
    return home.snapshots() / digest.removeprefix("sha256:")


def _copy(files: list[tuple[str, Path]]) -> str:
    """The digest of what was copied: a file may be saved between reading and copying it."""
    home.snapshots().mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=home.snapshots()))
    try:
        for relative, path in files:
            copy = unfinished / relative
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)
        unfinished.chmod(0o755)
        digest = trees.digest([(relative, unfinished / relative) for relative, _ in files])
        try:
            unfinished.rename(_place(digest))
        except OSError:
            # Another run of the same content was faster.
            if not _place(digest).is_dir():
                raise
        return digest
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
