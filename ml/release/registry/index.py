"""The registry read straight from MLflow's SQLite file: without `import mlflow`, in milliseconds.

The tables are MLflow 3.15's, which is pinned; a test compares with the Registry.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from ml.core import faults
from ml.core.home import database
from ml.release.registry.registry import DIGEST, EVIDENCE, PROJECT, Version

_DELETED = "Deleted_Internal"


def versions() -> Sequence[Version]:
    """Every registered version of every model; none before the first run made the store.

    Raises Refused when the store is there and cannot be read.
    """
    tags: dict[tuple[str, int], dict[str, str]] = {}
    for model, number, key, value in _rows(
        "SELECT name, version, key, value FROM model_version_tags"
    ):
        tags.setdefault((model, number), {})[key] = value
    found = []
    for model, number, run, _ in _registered():
        own = tags.get((model, number), {})
        found.append(
            Version(
                model=model,
                version=str(number),
                digest=own.get(DIGEST, ""),
                project=own.get(PROJECT, ""),
                run=run or "",
                evidence=own.get(EVIDENCE, ""),
            )
        )
    return found


def sources() -> Sequence[tuple[str, str]]:
    """(model and version, where its files were when somebody registered it); raises as `versions`.

    The Registry's own lie in its store; MLflow lets a person register any folder.
    """
    return [
        (f"{model} {number}", source.removeprefix("file://"))
        for model, number, _, source in _registered()
        if source
    ]


def champions() -> Sequence[tuple[str, str, str]]:
    """(environment, model, version) of every alias; raises as `versions`."""
    return [
        (alias, model, str(number))
        for alias, model, number in _rows(
            "SELECT alias, name, version FROM registered_model_aliases ORDER BY name, alias"
        )
    ]


def _registered() -> list[Any]:
    """Model, version, run id and source of what nobody has deleted."""
    return _rows(
        "SELECT name, version, run_id, source FROM model_versions WHERE current_stage IS NOT ?"
        " ORDER BY name, version",
        _DELETED,
    )


def _rows(statement: str, *values: str) -> list[Any]:
    if not database().is_file():
        return []
    uri = f"file:{database()}?mode=ro"
    with faults.as_refusals(), closing(sqlite3.connect(uri, uri=True, timeout=10)) as connection:
        return connection.execute(statement, values).fetchall()
