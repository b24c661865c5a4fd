"""One pool for several runs of a process: what one of them has warmed starts those after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ml.backends.local.pool.pool import Pool
from ml.backends.local.processes.process import Watchman

_lasting: list[Pool] = []


@contextmanager
def lasting() -> Iterator[None]:
    """Runs that this process begins within share one pool; its interpreters end with the context.

    For a program that carries out several runs of the same scripts.
    """
    watchman = Watchman()
    pool = Pool(watchman, lasts=True)
    _lasting.append(pool)
    try:
        yield
    finally:
        _lasting.remove(pool)
        pool.close()
        watchman.close()


@contextmanager
def of_a_run(watchman: Watchman) -> Iterator[Pool]:
    """The pool that lasts, if there is one, else one that ends with the run."""
    if _lasting:
        pool = _lasting[-1]
        try:
            yield pool.resumed()
        finally:
            pool.rest()
        return
    pool = Pool(watchman)
    try:
        yield pool
    finally:
        pool.close()
