"""MLflow's plugins, imported when they are first called.

MLflow imports every plugin that is installed when it is imported itself. Azure ML's is a fifth of
that time, in each `ml` and in each interpreter of trials, and a store of this machine never calls
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# What is registered here is a function that makes a store or a repository for a URI.
_BUILDERS = frozenset(
    {"mlflow.artifact_repository", "mlflow.model_registry_store", "mlflow.tracking_store"}
)


@contextmanager
def deferred() -> Iterator[None]:
    """Meanwhile MLflow registers, for a plugin's scheme of URIs, what imports the plugin when it is
    called. What is registered for anything else is imported as ever.
    """
    from importlib import metadata  # trials that import no MLflow do not have it either

    class Deferred(metadata.EntryPoint):
        def load(self) -> Callable[..., Any]:
            return lambda *words, **options: metadata.EntryPoint.load(self)(*words, **options)

    entry_points = metadata.entry_points

    def chosen(**parameters: Any) -> Any:
        found: Any = entry_points(**parameters)
        if parameters.get("group") not in _BUILDERS:
            return found
        return metadata.EntryPoints(Deferred(each.name, each.value, each.group) for each in found)

    metadata.entry_points = chosen
    try:
        yield
    finally:
        metadata.entry_points = entry_points
