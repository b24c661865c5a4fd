"""Fixtures of the tiny project, from the release tests."""

from __future__ import annotations

from tests.release.conftest import copied, declared, promoted, trained

__all__ = ["copied", "declared", "promoted", "trained"]
