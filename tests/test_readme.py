"""The README does what it says: its commands run, in order; pages name what is there."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from azure.ai.ml import load_job

from policies.promotion.engine import RULES
from tests.conftest import EXAMPLE, ROOT
from tests.named import spans, wrong
from tests.release import tiny

README = (ROOT / "README.md").read_text()
MAP = (ROOT / "docs/architecture.md").read_text()
# Pages that name commands and files; a project's own is tested with the project.
PAGES = [
    *("docs/architecture.md", "docs/fork.md", "docs/status.md", "docs/workflows.md"),
    *("SECURITY.md", "README.md", "CONTRIBUTING.md", "infra/README.md", "policies/README.md"),
    *("ml/projects/README.md", "ml/release/README.md", "ml/sweeps/README.md"),
    *("ml/backends/local/README.md", "ml/backends/azure/README.md"),
    "ml/toolkit/torch/README.md",
]
# Not run from here: `make test` runs this test.
SKIPPED = {"make test"}
# A gate may say no to four trials after the demo's sixteen; the README says so.
MAY_BE_REFUSED = (".venv/bin/ml release propose", ".venv/bin/ml gate")


def commands(text: str) -> list[str]:
    """Every line of every ```sh block."""
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)
    return [line for block in blocks for line in block.splitlines() if line]


def about(text: str) -> list[pytest.MarkDecorator]:
    """The mark of what names the example project, which a fork may have deleted."""
    return [pytest.mark.example] if re.search("faq[-_]matching", text) else []


@pytest.mark.slow
@pytest.mark.parametrize("text", [pytest.param(README, marks=about(README), id="README.md")])
def test_every_command_of_the_readme_runs(text: str, own_home: object) -> None:
    """In order, as a person types them, in one home of their own."""
    environment = {**os.environ, "MAKEFLAGS": ""}
    try:
        for command in commands(text):
            if command in SKIPPED:
                continue
            done = subprocess.run(
                command, shell=True, cwd=ROOT, env=environment, capture_output=True, text=True
            )
            fine = {0, 3} if command.startswith(MAY_BE_REFUSED) else {0}
            assert done.returncode in fine, f"{command}\n{done.stdout}\n{done.stderr}"
    finally:
        subprocess.run([ROOT / ".venv/bin/ml", "serve", "--stop-all"], cwd=ROOT, env=environment)


def test_the_files_that_the_readme_shows_are_valid(tmp_path: Path) -> None:
    """azure-ai-ml loads the job; the gates and the settings exist."""
    job, gates, stack = re.findall(r"^```yaml\n(.*?)^```", README, re.M | re.S)
    (tmp_path / "train.yml").write_text(job.replace("code: ../../../..", "code: ."))
    assert load_job(tmp_path / "train.yml").environment == "ml-cpu:1"
    assert {*yaml.safe_load(gates)["gates"]} <= {*RULES}
    properties = json.loads((ROOT / "infra/settings.schema.json").read_text())
    known = {*properties["properties"]["config"]["properties"]}
    assert {*yaml.safe_load(stack)["config"]} <= known


def test_the_readme_has_the_two_commands() -> None:
    """The commands that the template promises are among those that run."""
    assert {"make demo", "make test"} <= set(commands(README))


@pytest.mark.parametrize("folder", re.findall(r"^\| `([\w./]+/)` \|", MAP, re.M))
def test_the_map_names_folders_that_exist(folder: str) -> None:
    """No room in the map that is not in the house."""
    assert any((ROOT / folder).iterdir())


@pytest.mark.parametrize(
    ("page", "link"),
    [
        pytest.param(page, link, marks=about(link))
        for page in [*PAGES, "CHANGELOG.md"]
        for link in re.findall(r"\]\(([^)#:]+)[^):]*\)", (ROOT / page).read_text())
    ],
)
def test_the_links_lead_somewhere(page: str, link: str) -> None:
    """Every relative link is a file or folder of the repository."""
    assert ((ROOT / page).parent / link).exists()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_what_is_there(page: str, tmp_path: Path) -> None:
    """Commands with their options, make targets, files: of a project, those of the tests' own."""
    project = tiny.make(tmp_path).folder
    assert [span for span in spans((ROOT / page).read_text()) if wrong(span, project)] == []


def test_nothing_is_skipped_while_the_example_is_there(request: pytest.FixtureRequest) -> None:
    """Of what this session collected, the marked tests are skipped where it was deleted."""
    marked = [one for one in request.session.items if one.get_closest_marker("example")]
    skipped = [one for one in marked if one.get_closest_marker("skip")]
    assert skipped == ([] if EXAMPLE.is_dir() else marked)
