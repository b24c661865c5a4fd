"""Chooses a backend by its name; nothing else outside this folder knows an implementation."""

from __future__ import annotations

from ml.backends.base import Backend, Options
from ml.core.errors import Exit, Problem, Refused

NAMES = ("local",)


def open_backend(name: str = "local", options: Options | None = None) -> Backend:
    """The backend that `--on` names.

    Raises Refused for an unknown name, and with exit code 33 for one that is not built yet.
    """
    if name == "local":
        from ml.backends.local.backend import LocalBackend

        return LocalBackend(options or Options())
    if name == "azure":
        raise Refused(
            Problem(
                "not-built-yet",
                "--on azure: jobs cannot be sent to Azure ML from here yet",
                "--on local",
                "az ml job create -f takes the same file, as it is",
            ),
            exit_code=Exit.CANNOT_HONOUR,
        )
    raise Refused(Problem("unknown-place", f"--on {name}", " or ".join(NAMES), "leave it out"))
