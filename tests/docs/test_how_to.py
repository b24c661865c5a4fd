"""The how-to guides are done in a copy of the repository: their files, diffs and commands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from pydantic import TypeAdapter

from policies.waivers import GateWaiver, InvalidVersion, Review
from tests.conftest import ROOT
from tests.named import wrong
from tests.repository.scaffold import tables
from tests.test_fork import GIT, tracked

FOLDER = ROOT / "docs/how-to"
# A guide that another test does, with a table.
ELSEWHERE = {"add-a-metric", "index"}
PATHS = [page for page in sorted(FOLDER.glob("*.md")) if page.stem not in ELSEWHERE]
# What runs an example project, which a fork may have deleted.
OF_EXAMPLES = re.compile(r"ml/projects/(faq[-_]matching|filings_nlp)/")
GUIDES = [
    pytest.param(
        page.stem,
        marks=[pytest.mark.example] * bool(OF_EXAMPLES.search(page.read_text("utf-8"))),
    )
    for page in PATHS
]
# What a guide's reader has before, with edits that the guide keeps.
BEFORE = {
    "add-a-library": """
.venv/bin/ml new churn --table churn.csv --target Churn
sed -i 's/test.auc: 0.5}/test.auc: 0.55}/' ml/projects/churn/gates.yml
echo 'reviews: [] # our own' >> ml/projects/churn/gates.yml
sed -i 's/max_total_trials: 12/max_total_trials: 24/' ml/projects/churn/jobs/sweep.yml
sed -i 's/    return row$/    return dict(row)/' ml/projects/churn/columns.py
"""
}
AFTER = {
    "add-a-library": """
grep -q 'test.auc: 0.55}' ml/projects/churn/gates.yml
grep -q '# our own' ml/projects/churn/gates.yml
grep -q 'allowed:.*skops' ml/projects/churn/gates.yml
grep -q 'max_total_trials: 24' ml/projects/churn/jobs/sweep.yml
grep -q 'penalty' ml/projects/churn/jobs/sweep.yml
grep -q 'dict(row)' ml/projects/churn/columns.py
grep -q 'one-hot"' ml/projects/churn/columns.py
"""
}
BLOCK = re.compile(r"^```(\{code-block\} )?(\w+)\n(?::caption: ([^\n]+)\n)?(.*?)^```", re.M | re.S)
NEEDS = re.compile("needs (Azure|GitHub|Azure and GitHub)")


def blocks(page: Path) -> Iterator[tuple[str, str, str]]:
    """The language, the caption and the text of each fenced block."""
    for match in BLOCK.finditer(page.read_text(encoding="utf-8")):
        yield match[2], match[3] or "", match[4]


@pytest.fixture(name="copy")
def _copy(tmp_path: Path) -> Path:
    """This repository with commands that import it."""
    copy = tmp_path / "copy"
    for name in tracked(ROOT):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name, follow_symlinks=False)
    (copy / ".venv/bin").mkdir(parents=True)
    for program in (ROOT / ".venv/bin").iterdir():
        if program.name in ("ml", "infra"):
            text = program.read_text().replace(repr(str(ROOT)), repr(str(copy)))
            (copy / ".venv/bin" / program.name).write_text(text)
            (copy / ".venv/bin" / program.name).chmod(0o755)
        else:
            (copy / ".venv/bin" / program.name).symlink_to(program)
    for words in (["init", "-q"], ["add", "--all"], ["commit", "-qm", "copy"]):
        subprocess.run([*GIT, *words], cwd=copy, check=True)
    return copy


@pytest.mark.slow
@pytest.mark.parametrize("guide", GUIDES)
def test_a_guide_can_be_followed(guide: str, copy: Path) -> None:
    """Its diffs apply and its commands end with 0, in their order."""
    environment = {**os.environ, "PYTEST_ADDOPTS": "-n 0 -p no:cacheprovider"}
    tables.churn(copy / "churn.csv")
    before, after = (
        [("sh", "", commands[guide])] if guide in commands else [] for commands in (BEFORE, AFTER)
    )
    for language, caption, text in [*before, *blocks(FOLDER / f"{guide}.md"), *after]:
        if language == "diff":
            command, words = "git apply -C1", text
        elif language == "sh" and not NEEDS.fullmatch(caption):
            command, words = f"set -e\n{text}", ""
        else:
            continue
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=copy,
            env=environment,
            input=words,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/**/*.md")), ids=lambda page: page.stem)
def test_every_block_is_executed_or_says_what_it_needs(page: Path) -> None:
    """Commands that a test cannot type name what is there."""
    for language, caption, text in blocks(page):
        lines = [line for line in text.splitlines() if line.startswith(".venv/bin/")]
        assert [line for line in lines if wrong(line.partition(" > ")[0])] == []
        if language == "sh" and caption:
            assert NEEDS.fullmatch(caption), caption


def test_the_lists_of_a_project_are_as_the_guide_shows_them() -> None:
    """Every block of YAML is one of the three lists, and every list is shown."""
    kinds = {"reviews": Review, "waivers": GateWaiver, "invalid_versions": InvalidVersion}
    shown = {}
    for language, _, text in blocks(FOLDER / "pass-a-gate.md"):
        if language == "yaml":
            shown.update(yaml.safe_load(text.replace("…", "0" * 64)))
    assert shown.keys() == kinds.keys()
    for name, kind in kinds.items():
        assert len(TypeAdapter(list[kind]).validate_python(shown[name])) == 1  # type: ignore[valid-type]
