"""The workflow's own commands, in a clone as a pull request is checked out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT
from tests.test_fork import GIT, tracked

JOBS = yaml.safe_load((ROOT / ".github/workflows/check.yml").read_text())["jobs"]
PROD = Path("infra/Pulumi.prod.yaml")


def steps(job: str) -> list[str]:
    """The commands of a job, in order."""
    return [step["run"] for step in JOBS[job]["steps"] if "run" in step]


def merged(folder: Path, old: str, new: str) -> Path:
    """A checkout, two commits deep, of a merge that changes one text in Pulumi.prod.yaml."""
    origin, clone = folder / "origin", folder / "clone"
    for name in tracked(ROOT):
        (origin / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, origin / name)

    def git(*words: str) -> None:
        subprocess.run([*GIT, *words], cwd=origin, check=True, capture_output=True)

    git("init", "-q", "-b", "main")
    git("add", "-A")
    git("commit", "-qm", "main")
    git("checkout", "-qb", "change")
    before = (origin / PROD).read_text()
    assert before.count(old) == 1
    (origin / PROD).write_text(before.replace(old, new))
    git("commit", "-qam", "change")
    git("checkout", "-q", "main")
    git("merge", "-q", "--no-ff", "-m", "merge", "change")
    subprocess.run(["git", "clone", "-q", "--depth", "2", origin.as_uri(), str(clone)], check=True)
    (clone / ".venv").symlink_to(Path(sys.executable).parent.parent)
    return clone


def previewed(clone: Path) -> tuple[int, str]:
    """The exit code of the step that previews, and the page that it wrote."""
    page = clone.parent / "summary.md"
    (preview,) = [one for one in steps("infra") if "infra preview" in one]
    environment = {**os.environ, "PYTHONPATH": str(clone), "GITHUB_STEP_SUMMARY": str(page)}
    done = subprocess.run(["bash", "-e", "-c", preview], cwd=clone, env=environment)
    return done.returncode, page.read_text()


@pytest.mark.slow
def test_a_reviewer_sees_exactly_what_a_merge_changes(tmp_path: Path) -> None:
    code, page = previewed(merged(tmp_path, "max_nodes: 2\n", "max_nodes: 3\n"))
    assert code == 0
    (dev,) = [line for line in page.splitlines() if line.startswith("| **dev** | ✅ ")]
    assert "| no changes |" in dev
    changed = [line for line in page.splitlines() if "maxNodeCount" in line]
    assert len(changed) == 1 and "gpu-large" in changed[0]


@pytest.mark.slow
def test_a_policy_refusal_fails_the_check_and_is_on_the_page(tmp_path: Path) -> None:
    code, page = previewed(merged(tmp_path, "redundancy: GZRS", "redundancy: LRS"))
    assert code == 3
    assert "storage-redundancy" in page


@pytest.mark.parametrize(
    ("test", "infra", "passes"),
    [
        ("success", "success", True),
        ("success", "skipped", True),
        ("success", "failure", False),
        ("success", "cancelled", False),
        ("failure", "success", False),
        ("skipped", "success", False),
        ("cancelled", "skipped", False),
    ],
)
def test_the_required_check_passes_with_every_job(test: str, infra: str, passes: bool) -> None:
    """The preview counts before a merge; on main there is none."""
    assert {*JOBS["required"]["needs"]} == {*JOBS} - {"required"}
    (script,) = steps("required")
    environment = {**os.environ, "TEST": test, "INFRA": infra}
    done = subprocess.run(["bash", "-e", "-c", script], env=environment)
    assert (done.returncode == 0) is passes
