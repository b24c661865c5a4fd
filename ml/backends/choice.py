"""Open a backend by its name; no code outside this package imports an implementation."""

from __future__ import annotations

from collections.abc import Callable

from ml.backends.base import Backend, Options
from ml.core.errors import Problem, UserError


def _local(options: Options) -> Backend:
    from ml.backends.local.backend import LocalBackend

    return LocalBackend(options)


def _azure(options: Options) -> Backend:
    from ml.backends.azure.backend import AzureBackend
    from ml.backends.local.serving.endpoint import candidate

    return AzureBackend(options, candidate=candidate)


# Value of `--on` → function that creates the backend.
BACKENDS: dict[str, Callable[[Options], Backend]] = {"local": _local, "azure": _azure}


def open_backend(name: str = "local", options: Options | None = None) -> Backend:
    """Return the backend that `--on` names. Raise UserError for an unknown name."""
    if name in BACKENDS:
        return BACKENDS[name](options or Options())
    names = " or ".join(f"--on {name}" for name in BACKENDS)
    hint = "omit --on to run locally"
    raise UserError(Problem("unknown-place", f"--on {name}", names, hint))
