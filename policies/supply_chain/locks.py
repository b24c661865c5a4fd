"""Prints the packages of lock files, or their advisories; `python -m policies.supply_chain.locks`.

It prints a bill of materials; with `--advisories` a line for each record about a pinned package.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from policies.supply_chain.advisories import Advisories, AdvisoriesError, read
from policies.supply_chain.packages import UNKNOWN, Package, packages, sbom

# Exit codes of `ml`: done, wrong call, refused.
DONE, WRONG_CALL, REFUSED = 0, 2, 3


def pinned(lock: Path) -> tuple[Package, ...]:
    """Return the packages of a lock; a licence is UNKNOWN unless that version is installed."""
    return tuple(
        replace(
            package,
            installed="",
            licence=package.licence if package.installed == package.locked else UNKNOWN,
        )
        for package in packages(lock)
    )


def bill(locks: Iterable[Path]) -> str:
    """Return one bill of materials for several locks; each version of a package is a component."""
    every = {(package.name, package.locked): package for lock in locks for package in pinned(lock)}
    return sbom(tuple(every[key] for key in sorted(every)))


def affected(advisories: Advisories, locks: Iterable[Path]) -> Iterator[str]:
    """Yield `LOCK: ID: NAME VERSION` for each record that affects a pinned package."""
    for lock in locks:
        yield from (f"{lock}: {record}" for record in advisories.affecting(pinned(lock)))


def main(argv: Sequence[str] | None = None) -> int:
    """Print the result; return 3 if an advisory affects a lock, 2 if a file is invalid, else 0."""
    parser = argparse.ArgumentParser(prog="locks", description=(__doc__ or "").split(";")[0])
    parser.add_argument("--advisories", type=Path, help="An export of OSV; without it the bill.")
    parser.add_argument("locks", nargs="+", type=Path, help="Requirements files.")
    options = parser.parse_args(argv)
    locks = dict.fromkeys(options.locks)
    try:
        if options.advisories is None:
            print(bill(locks), end="")
            return DONE
        advisories = read(options.advisories)
        lines = [*affected(advisories, locks)]
    except (AdvisoriesError, OSError, ValueError) as error:
        hint = "make advisories downloads osv.dev's export; make lock writes the locks"
        sys.stderr.write(f"error[cannot-read]: {error}\n  hint: {hint}\n")
        return WRONG_CALL
    for line in lines:
        print(line)
    day = advisories.as_of.date()
    print(f"{len(lines)} of {advisories.count:,} records, as of {day}, affect the locks")
    return REFUSED if lines else DONE


if __name__ == "__main__":
    sys.exit(main())
