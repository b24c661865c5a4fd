"""The disk bound: looked at before a run and after every command that ran any, said when
something goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from ml.backends.base import Backend, Storage
from ml.backends.storage import Usage
from ml.cli.render import spans
from ml.core import faults
from ml.core.errors import Refused

NAMED = 3


def hold(backend: Backend, say: Callable[[str], None], reads: Iterable[Path] = ()) -> None:
    """Make room if more is taken than may be; one line says what went, or why nothing could.

    A registry that cannot be read stops no run: then nothing goes, since nothing is known to be
    free to.
    """
    storage = backend.storage
    measured = storage.usage()
    if not measured.is_over:
        return
    from ml.release.registry.retention import find_in_use

    try:
        with faults.as_refusals():
            found = storage.eviction(measured, find_in_use(backend.registry), reads)
            # What became needed in between stays.
            current = storage.eviction(measured, find_in_use(backend.registry), reads)
            freed, wrong = storage.evict(found, current)
    except Refused as refused:
        say(f"disk: {_of(storage, measured)}, and nothing may go: {refused.problems[0].found}")
        return
    say(_said(storage, found, freed))
    for one in wrong:
        say(f"disk: {one}")


def shown(storage: Storage) -> str:
    """What is taken and what may be."""
    return f"on the disk: {_of(storage, storage.usage())}"


def _of(storage: Storage, bound: Usage) -> str:
    if bound.limit is None:
        return f"{spans.size(bound.taken)}, without a bound"
    return (
        f"{spans.size(bound.taken)} of at most {spans.size(bound.limit)} ({storage.limit_variable})"
    )


def _said(storage: Storage, found: Usage, freed: int) -> str:
    runs = [item.name for item in found.cleaning.items if item.kind == "outputs"]
    others = len(found.cleaning.items) - len(runs)
    went = []
    if runs:
        more = f" and {len(runs) - NAMED} more" if len(runs) > NAMED else ""
        went.append(f"the outputs of {', '.join(runs[:NAMED])}{more}")
    if others:
        went.append(f"{others} cop{'ies' if others > 1 else 'y'} that nothing uses")
    line = f"disk: {_of(storage, found)}; "
    line += f"{' and '.join(went)} went, {spans.size(freed)}" if went else "nothing may go"
    if found.limit is not None and found.taken - freed > found.limit:
        return f"{line}; what is left is needed or kept: {storage.limit_variable} raises the bound"
    return f"{line}; ml runs keep RUN protects one"
