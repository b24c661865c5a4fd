"""The backend of this machine, as tests hand it to releases and commands."""

from __future__ import annotations

from ml.backends.local.backend import LocalBackend

BACKEND = LocalBackend()
LOG = BACKEND.audit_log
