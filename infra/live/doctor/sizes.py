"""Sizes that Azure will not have for ever: told from the day on which it is announced."""

from __future__ import annotations

from collections.abc import Iterator

from infra.live.doctor.check import Check
from infra.settings import Settings
from infra.sizes import retirement


def lasting(settings: Settings) -> Iterator[Check]:
    """A warning for each size whose end is announced; the settings refuse one that is gone."""
    ending = {size: found for size in settings.sizes if (found := retirement(size))}
    for size, one in sorted(ending.items()):
        said = f"the {one.family} series ends on {one.day}"
        yield Check(f"size {size}", "warning", said, f"use {one.instead}")
    if not ending:
        yield Check("sizes", "ok", "of none is an end announced")
