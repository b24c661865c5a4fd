"""security.yml as events start it: what is known about the locks, and the signed bill of them."""

from __future__ import annotations

import io
import json
import zipfile
from datetime import UTC, datetime
from pathlib import Path

from policies.supply_chain.packages import packages
from tests.conftest import ROOT
from tests.github.events import Repository
from tests.github.test_check import team, template

__all__ = ["team", "template"]
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))


def export(*affected: str) -> bytes:
    """A zip as osv.dev publishes it; these packages are affected in every version."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for number, name in enumerate(("left-pad", *affected)):
            package = {"package": {"ecosystem": "PyPI", "name": name}}
            record = {"id": f"PYSEC-{number}", "modified": datetime.now(UTC).isoformat()}
            archive.writestr(f"{number}.json", json.dumps({**record, "affected": [package]}))
    return content.getvalue()


def offered(team: Repository, *affected: str) -> None:
    """`make advisories` downloads this export."""
    team.fake = ("advisories",)
    team.writes = {"advisories": {".local/check/advisories.zip": export(*affected)}}


def test_the_locks_are_compared_with_the_advisories_of_the_day(team: Repository) -> None:
    """The run fails while one is affected, and its summary names it."""
    offered(team)
    jobs = team.scheduled("security")
    assert (jobs["vulnerabilities"].result, jobs["sbom"].result) == ("success", "skipped")
    assert jobs["vulnerabilities"].summary.startswith("0 of 1 records, as of ")
    offered(team, "numpy")
    job = team.scheduled("security")["vulnerabilities"]
    assert job.result == "failure" and "requirements/main.lock: PYSEC-1: numpy " in job.summary


def test_a_bill_of_every_lock_is_signed_on_main(team: Repository) -> None:
    """By a job that signs in nowhere, and keeps it with the run."""
    offered(team)
    jobs = team.pushed("security")
    assert jobs["sbom"].result == "success" and team.signed_in == []
    pinned = {(each.name, each.locked) for lock in LOCKS for each in packages(lock)}
    assert team.reviewed == [f"a bill of {len(pinned)} packages"]
    (artifact,) = (each for every in team.state.artifacts.values() for each in every)
    with zipfile.ZipFile(io.BytesIO(team.state.files[artifact["id"]])) as content:
        assert [Path(name).name for name in content.namelist()] == ["sbom.json"]
