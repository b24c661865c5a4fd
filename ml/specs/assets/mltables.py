"""MLTable files of a spec's data: whether they and their paths exist and can be read.

The format is Azure ML's (reference-yaml-mltable): a folder with a file `MLTable`, whose `paths` is
a list of mappings, each with one of file, folder, pattern.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ml.core.documents import Document, Key, read, walk
from ml.core.errors import Problem, Refused
from ml.specs.assets import assets
from ml.specs.sdk.load import Spec

TYPE = "mltable"
FILE = "MLTable"
_WAYS = ("file", "folder", "pattern")
_SOURCE = "reference-yaml-mltable"


def problems(spec: Spec) -> Iterator[Problem]:
    """The problems of the tables that the spec names by local paths, at their own lines.

    Errors when Azure ML could not read the table, warnings when only data is missing: it may be
    created before the job runs.
    """
    for keys, text in _tables(spec):
        folder = assets.local(text, spec.folder)
        if folder is None or not folder.is_dir() or spec.document.change(*keys):
            continue  # remote, or missing, which another rule reports
        if not (folder / FILE).is_file():
            yield Problem(
                "no-mltable",
                f"`{text}` contains no file `{FILE}`",
                f"a folder with a file `{FILE}`, since its type is {TYPE}",
                f"write one into it, or make it a uri_folder: {_SOURCE}",
                spec.place(*keys),
                source=_SOURCE,
            )
            continue
        yield from _inside(folder / FILE)


def _tables(spec: Spec) -> Iterator[tuple[tuple[Key, ...], str]]:
    """The path of every mapping with `type: mltable`."""
    for keys, value in walk(spec.document.data):
        path = value.get("path") if isinstance(value, dict) else None
        if isinstance(path, str) and value.get("type") == TYPE and "outputs" not in keys:
            yield (*keys, "path"), path


def _inside(file: Path) -> Iterator[Problem]:
    try:
        document = read(file)
    except Refused as refused:
        yield from refused.problems
        return
    paths = document.get("paths")
    if not isinstance(document.data, dict) or not isinstance(paths, list) or not paths:
        yield _wrong(document, "there is no list `paths`", ())
        return
    for index, entry in enumerate(paths):
        ways = [way for way in _WAYS if isinstance(entry, dict) and way in entry]
        if len(ways) != 1 or not isinstance(entry[ways[0]], str):
            yield _wrong(document, f"a path is {entry!r}", ("paths", index))
            continue
        text = entry[ways[0]]
        path = assets.local(text, file.parent)
        if path is not None and not _is_there(path, ways[0], text, file.parent):
            yield Problem(
                "missing-file",
                f"`{ways[0]}: {text}` does not exist on this machine",
                f"a {ways[0]} beside the {FILE} file: its paths are relative to it",
                "create it before the job runs, or correct the path",
                document.place("paths", index, ways[0]),
                severity="warning",
                source=_SOURCE,
            )


def _is_there(path: Path, way: str, text: str, folder: Path) -> bool:
    if way == "pattern":
        return Path(text).is_absolute() or any(folder.glob(text.removeprefix("./")))
    # Public jobs say `file:` of a folder.
    return path.exists() if way == "file" else path.is_dir()


def _wrong(document: Document, found: str, keys: tuple[Key, ...]) -> Problem:
    return Problem(
        "bad-mltable",
        found,
        "`paths:`, a list of mappings with one of file, folder, pattern",
        "for example: paths: [{file: ./train.csv}]",
        document.place(*keys),
        source=_SOURCE,
    )
