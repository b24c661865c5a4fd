"""The disk limit: checked before a run and after every command that ran jobs.

A removal prints one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from ml.backends.base import Backend
from ml.backends.storage import Storage, Usage
from ml.cli.render import units
from ml.core import faults
from ml.core.errors import Refused

NAMED = 3


def enforce(backend: Backend, say: Callable[[str], None], reads: Iterable[Path] = ()) -> None:
    """Remove outputs if the limit is exceeded; one line names them, or why none was removed.

    An unreadable registry does not stop a run. Nothing is removed then, because any output may
    still be needed.
    """
    storage = backend.storage
    measured = storage.usage()
    if not measured.is_over:
        return
    from ml.release.versions import find_in_use

    try:
        with faults.as_refusals():
            eviction = storage.eviction(measured, find_in_use(backend.registry), reads)
            # Outputs that became needed in between stay.
            current = storage.eviction(measured, find_in_use(backend.registry), reads)
            freed, failures = storage.evict(eviction, current)
    except Refused as refused:
        why = refused.problems[0].found
        say(f"disk: {_usage_text(storage, measured)}, and nothing may go: {why}")
        return
    say(_eviction_text(storage, eviction, freed))
    for failure in failures:
        say(f"disk: {failure}")


def usage_text(storage: Storage) -> str:
    """The disk space in use, and the limit."""
    return f"on the disk: {_usage_text(storage, storage.usage())}"


def _usage_text(storage: Storage, usage: Usage) -> str:
    if usage.limit is None:
        return f"{units.size(usage.taken)}, without a bound"
    return (
        f"{units.size(usage.taken)} of at most {units.size(usage.limit)} ({storage.limit_variable})"
    )


def _eviction_text(storage: Storage, eviction: Usage, freed: int) -> str:
    runs = [item.name for item in eviction.cleaning.items if item.kind == "outputs"]
    others = len(eviction.cleaning.items) - len(runs)
    removed = []
    if runs:
        more = f" and {len(runs) - NAMED} more" if len(runs) > NAMED else ""
        removed.append(f"the outputs of {', '.join(runs[:NAMED])}{more}")
    if others:
        removed.append(f"{others} cop{'ies' if others > 1 else 'y'} that nothing uses")
    line = f"disk: {_usage_text(storage, eviction)}; "
    line += f"{' and '.join(removed)} went, {units.size(freed)}" if removed else "nothing may go"
    if eviction.limit is not None and eviction.taken - freed > eviction.limit:
        return f"{line}; what is left is needed or kept: {storage.limit_variable} raises the bound"
    return f"{line}; ml runs keep RUN protects one"
