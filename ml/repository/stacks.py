"""The stacks to deploy, in order; `python -m ml.repository.stacks` needs no installed package."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from ml.core import repository
from ml.core.errors import Refused
from ml.repository.affected import affected

GATES = Path("policies") / "promotion" / "gates.yml"
_ORDER = re.compile(r"^  order:.*?^    environments: \[([^\]]*)\]", re.M | re.S)


def stacks(root: Path, since: str = "") -> list[str]:
    """The stacks that have a file, of those that the change since a revision touches.

    They are in the order in which a release goes through them (the gate `order`), others last.
    Raises Refused as `affected` does.
    """
    files = (root / "infra").glob("Pulumi.*.yaml")
    names = {path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in files}
    if since:
        names &= {*affected(root, since).stacks}
    match = _ORDER.search((root / GATES).read_text(encoding="utf-8"))
    order = re.findall(r"[\w-]+", match[1]) if match else []
    return sorted(names, key=lambda name: (order.index(name) if name in order else 99, name))


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a JSON list, and writes it where a workflow's next job reads it."""
    parser = argparse.ArgumentParser(prog="stacks", description=(__doc__ or "").split(";")[0])
    parser.add_argument("--since", default="", help="Only what the change since it touches.")
    options = parser.parse_args(argv)
    try:
        names = json.dumps(stacks(repository.root(), options.since))
    except Refused as refused:
        sys.stderr.write(f"{refused}\n")
        return int(refused.exit_code)
    print(names)
    if path := os.environ.get("GITHUB_OUTPUT"):
        with Path(path).open("a", encoding="utf-8") as outputs:
            outputs.write(f"stacks={names}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
