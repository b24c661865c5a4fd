"""The backend of this machine, as tests hand it to releases and commands."""

from __future__ import annotations

from ml.backends.local.backend import LocalBackend
from ml.core import repository


class _Here(LocalBackend):
    """For the repository that a test changes to."""

    root = property(lambda self: repository.root(), lambda self, root: None)


BACKEND = _Here()
LOG = BACKEND.audit_log
