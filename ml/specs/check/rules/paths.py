"""Checks local paths: they exist inside the repository, and their files are valid."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from ml.core import repository
from ml.core.documents import Key, read, strings, walk
from ml.core.errors import Severity, UserError
from ml.specs.assets import assets, packages
from ml.specs.check.nodes import FAMILIES, WITH_NODES, environments
from ml.specs.check.rules.rule import Finding, Subject, rule
from ml.specs.sdk.load import Spec
from ml.specs.yaml_node import YamlNode

# Keys whose value is always a path, and keys whose value may be a path or an asset.
_PATHS = frozenset({"code", "path", "conda_file", "local_path", "training_data"})
_MAY_BE_PATHS = FAMILIES.keys()
_LOOKS_LOCAL = ("./", "../", "/", "file:", "~")
_WAYS = frozenset({"file", "folder", "pattern"})
_LISTED = "`paths:`, a list of mappings with one of file, folder, pattern"
_PARTITION = "extract_columns_from_partition_format"
# Transformation → the regular expression of `str(value)`.
_STEPS = {
    **dict.fromkeys(("read_delimited", "read_parquet", "read_json_lines"), r"None|\{.*"),
    **dict.fromkeys(("read_delta_lake", "take_random_sample", "sample"), r"\{.*"),
    **dict.fromkeys(("take", "skip"), r"\d+"),
    **dict.fromkeys(("drop_columns", "keep_columns", "filter"), r"\[.+|.*[^\W\d].*"),
    **dict.fromkeys(("select_partitions", _PARTITION), r".+"),
    "convert_column_types": r"\[.*'column_type'.*",
}
_VALUES = {
    **_STEPS,
    **dict.fromkeys(("support_multi_line", "empty_as_string", "include_path_column"), "True|False"),
    "type": "mltable",
    "transformations": r"\[.*",
    "encoding": "utf8|iso88591|latin1|ascii|utf16|utf32|utf8bom|windows1252",
    "header": "no_header|from_first_file|all_files_(different|same)_headers",
    "invalid_lines": "error|drop",
    "probability": r"0|1|[01]\.\d+|\de-\d+",
    "column_type": r"int|float|string|boolean|stream_info|\{'(boolean|datetime': \{.*'formats').*",
}
_MAX_LINES = 200_000
_SOURCE = "a job's snapshot and data come from the repository"


def local_paths(spec: Spec) -> Iterator[tuple[tuple[Key, ...], str, Path]]:
    """Yield (keys, text as written, path) of each local path in a spec."""
    for keys, text in strings(spec.document.data):
        # Paths from the command line are not restricted.
        if not _is_path(keys, text) or "${{" in text or spec.document.change(*keys):
            continue
        path = assets.local_path(text, spec.folder)
        if path is not None:
            yield keys, text, path


def _is_path(keys: tuple[Key, ...], text: str) -> bool:
    if not text or "\n" in text or not keys:
        return False
    key = keys[-1]
    if "environment_variables" in keys[:-1] or "tags" in keys[:-1] or "properties" in keys[:-1]:
        return False
    if "inference_config" in keys[:-1]:  # URL paths of a container's routes
        return False
    if keys[-2:] == ("source", "path"):  # of a data import: a path in the connection's store
        return False
    if key in _PATHS:
        return True
    is_context = keys[-2:] == ("build", "path")
    return is_context or (key in _MAY_BE_PATHS and text.startswith(_LOOKS_LOCAL))


@rule("path-escape", scope="spec", source=_SOURCE)
def path_escape(subject: Subject) -> Iterator[Finding]:
    """A path does not leave the repository by `..` or by a symbolic link."""
    spec = subject.spec
    for keys, text, _ in local_paths(spec):
        written = Path(text.removeprefix("file://").removeprefix("file:"))
        real = subject.links.escape(written, spec.folder, spec.boundary)
        if real is not None:
            yield Finding(
                keys,
                f"`{text}` leaves the repository for {real}",
                f"a path below {repository.shown(spec.boundary or spec.folder)}",
                "register the data as an asset, or give the path with `--set` when you run it",
            )


@rule("link-escape", scope="spec", source=_SOURCE)
def link_escape(subject: Subject) -> Iterator[Finding]:
    """No link in a folder that would be uploaded leads out of the repository."""
    spec = subject.spec
    for keys, text, path in local_paths(spec):
        if keys[-1] not in {"code", "path"} or not path.is_dir():
            continue
        if subject.links.escape(Path(text), spec.folder, spec.boundary) is not None:
            continue
        for link, real in subject.links.escapes_inside(path, spec.folder, spec.boundary):
            display_path = repository.shown(link)
            yield Finding(
                keys,
                f"`{text}` contains the link {display_path} with the target {real}",
                "links that stay in the repository",
                "replace the link by its target, or exclude it in .amlignore",
            )


@rule(
    "missing-file",
    scope="spec",
    severity="warning",
    source="azure-ai-ml uploads local paths when a job is submitted, and fails without them",
)
def missing_file(subject: Subject) -> Iterator[Finding]:
    """A local path exists; a missing path is an error only in an asset of this repository.

    Otherwise it is a warning: a job's data may be created before submission, and another repository
    may be checked out in part. `plan` refuses missing data of any job.
    """
    spec = subject.spec
    at_home = spec.boundary is not None and spec.boundary == repository.boundary(Path.cwd())
    severity: Severity = "error" if at_home and spec.kind.family not in WITH_NODES else "warning"
    for keys, text, path in local_paths(spec):
        if keys[-1] not in {"path", "code"} or "outputs" in keys or _exists(path, text):
            continue
        if spec.kind.family == "datastore" or "environment" in keys[:-1] or "paths" in keys[:-1]:
            continue
        yield Finding(
            keys,
            f"`{text}` does not exist",
            "a file or folder",
            "create it before the job is submitted, or correct the path",
            severity,
        )


@rule("bad-conda-file", scope="spec", source="conda's environment.yml: the build fails without")
def bad_conda_file(subject: Subject) -> Iterator[Finding]:
    """A `conda_file`, a path or inline, is valid for conda.

    The SDK only checks that it is YAML, so the build of the image would fail in Azure ML.
    """
    for node in environments(subject.spec):
        written = node.get("conda_file")
        path = assets.local_path(written, node.folder) if isinstance(written, str) else None
        if path is None and isinstance(written, dict | list):
            contents = packages.conda_of_node(node.child("conda_file"))
        elif path is None or not path.is_file():
            continue
        else:
            contents = packages.conda_file(path)
        for problem in contents.problems:
            # The SDK itself refuses a file that is not YAML.
            if problem.code != "unreadable-yaml":
                yield Finding(
                    (), problem.actual, problem.expected, problem.hint, None, problem.place
                )


@rule("bad-mltable", scope="spec", source="reference-yaml-mltable")
def bad_mltable(subject: Subject) -> Iterator[Finding]:
    """Data of type mltable is a folder with a file `MLTable`, which lists its paths."""
    spec = subject.spec
    for keys, text, folder in local_paths(spec):
        kind = spec.get(*keys[:-1], "type")
        if keys[-1] != "path" or kind != "mltable" or "outputs" in keys or not folder.is_dir():
            continue
        file, example = folder / "MLTable", "for example: paths: [{file: ./train.csv}]"
        if not file.is_file():
            message, hint = f"`{text}` contains no file `MLTable`", "or make it a uri_folder"
            yield Finding(keys, message, f"a file with `paths:`, {example}", hint)
            continue
        try:
            table = YamlNode(read(file), file)
        except UserError as refused:
            first = refused.problems[0]
            yield Finding(keys, first.actual, first.expected, first.hint, place=first.place)
            continue
        faults = list(_table_faults(table))
        for below, actual, expected in faults:
            yield Finding(keys, actual, expected, example, place=table.place(*below))
        if not faults and (options := _line_by_line(table)):
            for number, entry in enumerate(table.get("paths")):
                if name := _multi_line(folder, entry, str(options.get("delimiter") or ",")):
                    yield Finding(
                        keys,
                        f"a text in {name} has several lines, which Azure ML reads as several rows",
                        "`support_multi_line: true` in `read_delimited`",
                        "reference-yaml-mltable, read_delimited: every line break ends a record",
                        place=table.place("paths", number),
                    )


def _table_faults(table: YamlNode) -> Iterator[tuple[tuple[Key, ...], str, str]]:
    """Yield (keys, actual, expected) of each error in an MLTable file."""
    paths, steps = table.get("paths"), table.get("transformations")
    if not isinstance(paths, list) or not paths:
        yield ("paths",), "no list `paths`", _LISTED
    for number, entry in enumerate(paths if isinstance(paths, list) else ()):
        ways = _WAYS & entry.keys() if isinstance(entry, dict) else set()
        text = entry[min(ways)] if len(ways) == 1 else None
        path = assets.local_path(text, table.folder) if isinstance(text, str) else None
        if not isinstance(text, str):
            yield ("paths", number), f"a path is {entry!r}", _LISTED
        elif path and not any(table.folder.glob(text) if "pattern" in ways else [path.exists()]):
            yield ("paths", number), f"`{text}` does not exist", "data next to the table"
    for number, step in enumerate(steps if isinstance(steps, list) else ()):
        named = [step] if isinstance(step, str) else [*step] if isinstance(step, dict) else []
        if len(named) != 1 or named[0] not in _STEPS:
            expected = f"one of {', '.join(_STEPS)}"
            yield ("transformations", number), f"a transformation is {step!r}", expected
    reads = (
        [step for step in steps or () if "read_" in str(step)] if isinstance(steps, list) else []
    )
    if len(reads) > 1:
        yield ("transformations",), f"{len(reads)} transformations read the paths", "one"
    for keys, value in walk(table.mapping()):
        pattern = _VALUES.get(str(keys[-1]), "") if keys and _PARTITION not in keys[:-1] else ""
        if pattern and not re.fullmatch(pattern, str(value), re.DOTALL):
            yield keys, f"`{keys[-1]}` is {value!r}", f"a value of the form `{pattern}`"


def _line_by_line(table: YamlNode) -> Mapping[str, Any]:
    """Return the options of `read_delimited` if it reads each line as a row; else {}."""
    for step in table.get("transformations") or ():
        if step == "read_delimited" or (isinstance(step, dict) and "read_delimited" in step):
            options = (step.get("read_delimited") if isinstance(step, dict) else None) or {}
            is_wide = str(options.get("encoding")).startswith(("utf16", "utf32"))
            if options.get("support_multi_line") is not True and not is_wide:
                return {"delimiter": ",", **options}
    return {}


def _multi_line(folder: Path, entry: Mapping[str, str], delimiter: str) -> str:
    """Return the first local file of a path with a line break inside quotes; "" if none.

    Only the first `_MAX_LINES` lines of each file are read.
    """
    ((way, text),) = ((way, text) for way, text in entry.items() if way in _WAYS)
    path = assets.local_path(text, folder)
    if path is None:
        return ""
    pattern = folder.glob(text.removeprefix("./")) if way == "pattern" else [path]
    for file in sorted(path.rglob("*") if way == "folder" else pattern):
        try:
            with file.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
                rows = csv.reader(islice(lines, _MAX_LINES), delimiter=delimiter)
                if any("\n" in field for row in rows for field in row):
                    return repository.shown(file)
        except (OSError, csv.Error, TypeError):
            continue  # a folder, unreadable, or not CSV
    return ""


def _exists(path: Path, text: str) -> bool:
    """Return True if `path` or `text` exists, or if the text has wildcards.

    azure-ai-ml 1.35 resolves AutoML's paths from the working directory, as for `text`.
    """
    try:
        return path.exists() or Path(text).exists() or any(char in text for char in "*?")
    except OSError:
        return False


@rule(
    "duplicate-declaration",
    scope=(*assets.ASSET_FAMILIES, "online_endpoint"),
    root_only=True,
    source="two files with one name are ambiguous",
)
def declared_twice(subject: Subject) -> Iterator[Finding]:
    """Only one file declares a version of an asset, or the name of an endpoint.

    Otherwise a project's file could replace another project's data or endpoint, or a shared
    environment.
    """
    spec, root = subject.spec, repository.root(subject.spec.file)
    family, name = spec.kind.family, str(spec.get("name"))
    version = "1" if spec.get("version") is None else str(spec.get("version"))
    if family in assets.ASSET_FAMILIES:
        same = (family, name, version)
        specs = assets.definitions(root)
        others = [asset.file for asset in specs if (asset.kind, asset.name, asset.version) == same]
        if spec.file.resolve() not in {file.resolve() for file in others}:
            return  # a fixture or example, not an asset of the repository
        what = f"{family} {name}:{version}"
    elif spec.file.match("ml/projects/*/endpoint/endpoint.yml"):
        every = sorted(root.glob("ml/projects/*/endpoint/endpoint.yml"))
        parts = ((file, assets.read_referenced(str(file), root)) for file in every)
        others = [file for file, part in parts if part and part.get("name") == name]
        what = f"endpoint {name}"
    else:
        return
    if file := next((path for path in others if path.resolve() != spec.file.resolve()), None):
        yield Finding(
            ("name",),
            f"the {what} is declared in {repository.shown(file)} too",
            "one file for each",
            "take another name or version",
        )
