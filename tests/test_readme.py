"""The README does what it says: its commands run, in order, and its map is the tree."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from tests.conftest import ROOT
from tests.named import spans, wrong

README = (ROOT / "README.md").read_text()
# Not run from here: `make test` runs this test.
SKIPPED = {"make test"}
# A gate may say no to four trials after the demo's sixteen; the README says so.
MAY_BE_REFUSED = (".venv/bin/ml release propose", ".venv/bin/ml gate")


def commands(text: str) -> list[str]:
    """Every line of every ```sh block."""
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)
    return [line for block in blocks for line in block.splitlines() if line]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_command_of_the_readme_runs(own_home: object) -> None:
    """In order, as a person types them, in one home of their own."""
    environment = {**os.environ, "USER": os.environ.get("USER", "somebody"), "MAKEFLAGS": ""}
    try:
        for command in commands(README):
            if command in SKIPPED:
                continue
            done = subprocess.run(
                command, shell=True, cwd=ROOT, env=environment, capture_output=True, text=True
            )
            fine = {0, 3} if command.startswith(MAY_BE_REFUSED) else {0}
            assert done.returncode in fine, f"{command}\n{done.stdout}\n{done.stderr}"
    finally:
        subprocess.run([ROOT / ".venv/bin/ml", "serve", "--stop-all"], cwd=ROOT, env=environment)


def test_the_readme_has_the_two_commands() -> None:
    """The commands that the template promises are among those that run."""
    assert {"make demo", "make test"} <= set(commands(README))


@pytest.mark.parametrize("folder", re.findall(r"^\| `([\w./]+/)` \|", README, re.M))
def test_the_map_names_folders_that_exist(folder: str) -> None:
    """No room in the map that is not in the house."""
    assert any((ROOT / folder).iterdir())


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#:]+)\)", README))
def test_the_links_lead_somewhere(link: str) -> None:
    """Every relative link is a file or folder of the repository."""
    assert (ROOT / link).exists()


@pytest.mark.parametrize(
    "page", ["CONTRIBUTING.md", "ml/projects/README.md", "ml/projects/faq_matching/README.md"]
)
def test_a_page_names_what_is_there(page: str) -> None:
    """Commands with their options, make targets, files: of a project, those of `faq_matching`."""
    project = ROOT / "ml" / "projects" / "faq_matching"
    assert [span for span in spans((ROOT / page).read_text()) if wrong(span, project)] == []
