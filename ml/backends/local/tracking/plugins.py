"""MLflow's plugin for Azure ML, imported when it is first called.

MLflow imports the plugin of every scheme of URIs when it is imported itself. Azure ML's is an
eighth of that time, in each `ml` and in each interpreter of trials, and a store of this machine
never calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

# What it registers for its scheme: functions that make a store or a repository for a URI.
_BUILDERS = frozenset(
    {"mlflow.artifact_repository", "mlflow.model_registry_store", "mlflow.tracking_store"}
)
_PACKAGE = "azureml.mlflow."
_LOCK = RLock()


@contextmanager
def deferred() -> Iterator[None]:
    """Meanwhile MLflow registers what imports the plugin when it is called. Other plugins are
    imported as ever.
    """
    from importlib import metadata  # trials that import no MLflow do not have it either

    class Deferred(metadata.EntryPoint):
        def load(self) -> Callable[..., Any]:
            return lambda *words, **options: metadata.EntryPoint.load(self)(*words, **options)

    def chosen(**parameters: Any) -> Any:
        found: Any = entry_points(**parameters)
        if parameters.get("group") not in _BUILDERS:
            return found
        return metadata.EntryPoints(
            Deferred(each.name, each.value, each.group) if each.value.startswith(_PACKAGE) else each
            for each in found
        )

    with _LOCK:
        entry_points = metadata.entry_points
        metadata.entry_points = chosen
        try:
            yield
        finally:
            metadata.entry_points = entry_points


def mlflow() -> Any:
    """The package, imported so."""
    with deferred():
        import mlflow

        return mlflow
