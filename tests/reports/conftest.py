"""The tiny project of the releases' tests."""

from __future__ import annotations

from tests.release.conftest import copied, declared, promoted, trained

__all__ = ["copied", "declared", "promoted", "trained"]
