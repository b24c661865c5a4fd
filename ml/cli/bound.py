"""The disk bound: looked at before a run and after every command that ran any, said when
something goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from ml.backends.choice import open_backend
from ml.backends.storage import Usage
from ml.cli.render import spans
from ml.core import faults
from ml.core.errors import Refused

NAMED = 3


def hold(say: Callable[[str], None], reads: Iterable[Path] = ()) -> None:
    """Make room if more is taken than may be; one line says what went, or why nothing could.

    A registry that cannot be read stops no run: then nothing goes, since nothing is known to be
    free to.
    """
    backend = open_backend()
    storage, registry = backend.storage, backend.registry
    measured = storage.usage()
    if not measured.is_over:
        return
    from ml.release.registry.retention import needed

    try:
        with faults.as_refusals():
            found = storage.eviction(measured, needed(registry), reads)
            freed, wrong = storage.evict(found, storage.eviction(measured, needed(registry), reads))
    except Refused as refused:
        say(f"disk: {_of(measured)}, and nothing may go: {refused.problems[0].found}")
        return
    say(_said(found, freed))
    for one in wrong:
        say(f"disk: {one}")


def shown() -> str:
    """What is taken and what may be."""
    return f"on the disk: {_of(open_backend().storage.usage())}"


def _of(bound: Usage) -> str:
    if bound.limit is None:
        return f"{spans.size(bound.taken)}, without a bound"
    variable = open_backend().storage.limit_variable
    return f"{spans.size(bound.taken)} of at most {spans.size(bound.limit)} ({variable})"


def _said(found: Usage, freed: int) -> str:
    runs = [item.name for item in found.cleaning.items if item.kind == "outputs"]
    others = len(found.cleaning.items) - len(runs)
    went = []
    if runs:
        more = f" and {len(runs) - NAMED} more" if len(runs) > NAMED else ""
        went.append(f"the outputs of {', '.join(runs[:NAMED])}{more}")
    if others:
        went.append(f"{others} cop{'ies' if others > 1 else 'y'} that nothing uses")
    line = f"disk: {_of(found)}; "
    line += f"{' and '.join(went)} went, {spans.size(freed)}" if went else "nothing may go"
    if found.limit is not None and found.taken - freed > found.limit:
        variable = open_backend().storage.limit_variable
        return f"{line}; what is left is needed or kept: {variable} raises the bound"
    return f"{line}; ml runs keep RUN protects one"
