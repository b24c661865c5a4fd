"""Chooses a backend by its name; nothing else outside this folder knows an implementation."""

from __future__ import annotations

from collections.abc import Callable

from ml.backends.base import Backend, Options
from ml.core.errors import Exit, Problem, Refused


def _local(options: Options) -> Backend:
    from ml.backends.local.backend import LocalBackend

    return LocalBackend(options)


def _azure(options: Options) -> Backend:
    raise Refused(
        Problem(
            "not-built-yet",
            "--on azure: jobs cannot be sent to Azure ML from here yet",
            "--on local",
            "az ml job create -f takes the same file, as it is",
        ),
        exit_code=Exit.CANNOT_HONOUR,
    )


# The name that `--on` takes → what makes the backend.
BACKENDS: dict[str, Callable[[Options], Backend]] = {"local": _local, "azure": _azure}
# The backends that this process opened, the latest of each name.
opened: dict[str, Backend] = {}


def open_backend(name: str = "local", options: Options | None = None) -> Backend:
    """The backend that `--on` names.

    Raises Refused for an unknown name, and with exit code 33 for one that is not built yet.
    """
    if name not in BACKENDS:
        raise Refused(
            Problem("unknown-place", f"--on {name}", " or ".join(BACKENDS), "leave it out")
        )
    opened[name] = BACKENDS[name](options or Options())
    return opened[name]
