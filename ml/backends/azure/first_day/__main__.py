"""Compare a workspace's responses with the expected ones: `make azure-first-day`.

All requests are read-only. Only Azure's responses are recorded, not those of a stand-in.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

from ml.backends.azure.errors import as_user_errors
from ml.backends.azure.first_day.rows import Row, form_of, load
from ml.backends.azure.workspace import Workspace, configured
from ml.core.errors import Exit, UserError, as_program

# The domains of Azure Resource Manager: azure-ai-ml's `_azure_environments`.
AZURE = ("azure.com", "usgovcloudapi.net", "chinacloudapi.cn")


@as_program
def main(argv: Sequence[str] | None = None) -> int:
    """Print each row with its expected and its actual answer; exit 1 if one differs."""
    parser = argparse.ArgumentParser(prog="make azure-first-day", description=__doc__)
    parser.add_argument("--record", type=Path, required=True, help="folder for recorded answers")
    folder: Path = parser.parse_args(argv).record
    workspace = configured()
    with as_user_errors():
        is_azure = workspace.address in {f"https://management.{domain}" for domain in AZURE}
    names = {"workspace": workspace.id, "subscription": f"/subscriptions/{workspace.subscription}"}
    names["hour"] = (datetime.now(UTC) - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ/PT1H")
    differing = []
    for row in load():
        print(f"\n{row.name}: {row.command}")
        missing = [name for name in re.findall(r"{(\w+)}", row.request) if name not in names]
        if not row.request:
            who = f"you decide: {row.decision}" if row.decision else "run with ENV=STACK"
            print(f"  {who}; expected: {row.expected}\n  source: {row.source}")
        elif missing:
            print(f"  not compared: no {missing[0]} exists with the expected fields")
        elif not _compare(workspace, row, names, folder if is_azure else None):
            print(f"  source: {row.source}\n  next: {row.remedy}")
            differing.append(row.name)
    print(f"\n{workspace.address} differs in: {', '.join(differing) or 'nothing'}")
    print(f"Recorded in {folder}." if is_azure else "It is a stand-in: nothing is recorded.")
    return Exit.RUN_FAILED if differing else Exit.DONE


def _compare(workspace: Workspace, row: Row, names: dict[str, str], folder: Path | None) -> bool:
    """Send the row's request and return whether the answer is as expected.

    Values that the row keeps are added to `names`, for the paths of later requests.
    """
    plane, method, path = row.request.split()
    try:
        with as_user_errors(), workspace.quiet():
            status, answer = workspace.answer(plane, method, path.format(**names), row.body)
    except UserError as refused:
        if "location" not in names:  # nobody is signed in, or there is no network
            raise
        print(refused)
        return False
    form = form_of(row.shape, answer)
    is_right, facts = row.compare(status, form)
    print(f"  expected: {'; '.join(row.facts)}\n  actual:   {'; '.join(facts)}")
    if row.keep and is_right:
        for item in answer.get("value", [{"name": answer.get("location")}])[:1]:
            names[row.keep] = quote(item["name"], safe="")
    if folder is not None and status == row.status:
        folder.mkdir(parents=True, exist_ok=True)
        content = json.dumps({"status": status, "answer": form}, indent=1)
        (folder / f"{row.name}.json").write_text(f"{content}\n")
    return is_right


if __name__ == "__main__":
    raise SystemExit(main())
