"""The registry read straight from MLflow's SQLite file: without `import mlflow`, in milliseconds.

The tables are MLflow 3.15's, which is pinned; a test compares with the Registry.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing

from ml.backends.local import faults
from ml.backends.local.home import database
from ml.release.registry import DIGEST, EVIDENCE, PROJECT, Version

_DELETED = "Deleted_Internal"


def versions() -> Sequence[Version]:
    """Every registered version of every model; none before the first run made the store.

    Raises Refused when the store is there and cannot be read.
    """
    if not database().is_file():
        return []
    with faults.told(), closing(_open()) as connection:
        tags: dict[tuple[str, int], dict[str, str]] = {}
        for model, number, key, value in connection.execute(
            "SELECT name, version, key, value FROM model_version_tags"
        ):
            tags.setdefault((model, number), {})[key] = value
        found = connection.execute(
            "SELECT name, version, run_id FROM model_versions WHERE current_stage IS NOT ?"
            " ORDER BY name, version",
            (_DELETED,),
        ).fetchall()
    return [
        Version(
            model=model,
            version=str(number),
            digest=tags.get((model, number), {}).get(DIGEST, ""),
            project=tags.get((model, number), {}).get(PROJECT, ""),
            run=run or "",
            evidence=tags.get((model, number), {}).get(EVIDENCE, ""),
        )
        for model, number, run in found
    ]


def sources() -> Sequence[tuple[str, str]]:
    """(model and version, where its files were when somebody registered it); raises as `versions`.

    The Registry's own lie in its store; MLflow lets a person register any folder.
    """
    if not database().is_file():
        return []
    with faults.told(), closing(_open()) as connection:
        return [
            (f"{model} {number}", source.removeprefix("file://"))
            for model, number, source in connection.execute(
                "SELECT name, version, source FROM model_versions WHERE current_stage IS NOT ?",
                (_DELETED,),
            )
            if source
        ]


def champions() -> Sequence[tuple[str, str, str]]:
    """(environment, model, version) of every alias; raises as `versions`."""
    if not database().is_file():
        return []
    with faults.told(), closing(_open()) as connection:
        return [
            (alias, model, str(number))
            for alias, model, number in connection.execute(
                "SELECT alias, name, version FROM registered_model_aliases ORDER BY name, alias"
            )
        ]


def _open() -> sqlite3.Connection:
    return sqlite3.connect(f"file:{database()}?mode=ro", uri=True, timeout=10)
