"""The FAQ's answers name commands, options, targets and files that are there."""

from __future__ import annotations

import pytest

from ml.projects.faq_matching.loading import DEFAULT_SCHEMA, read
from tests.conftest import ROOT
from tests.named import SOURCE, spans, wrong

PROJECT = ROOT / "ml/projects/faq_matching"
# An answer that says so may name what is designed and not here yet.
DESIGNED = "status table"


@SOURCE
def test_what_the_answers_name_is_there():
    """Commands with their options, make targets, files."""
    entries = read(PROJECT / "data/faq", DEFAULT_SCHEMA).entries
    named = [(e.id, s) for e in entries if DESIGNED not in e.answer for s in spans(e.answer)]
    assert sum(span.startswith(("ml ", "infra ", "make ")) for _, span in named) > 50
    assert [pair for pair in named if wrong(pair[1], PROJECT)] == []


@SOURCE
def test_what_its_page_names_is_there():
    """README.md of the project, too."""
    names = spans((PROJECT / "README.md").read_text())
    assert names and [span for span in names if wrong(span, PROJECT)] == []


@pytest.mark.parametrize(
    ("span", "said"),
    [
        ("ml rnu SPEC", "`ml` has no command `rnu`"),
        ("ml ab strat", "`ml` has no command `strat`"),
        ("ml run SPEC --dry", "--dry"),
        ("infra previw", "`infra` has no command `previw`"),
        ("make dmeo", "dmeo"),
        ("jobs/trian.yml", "jobs/trian.yml"),
        ("ml run SPEC --dry-run", ""),
        ("infra drift dev", ""),
        ('make ask Q="how?"', ""),
        ("jobs/train.yml", ""),
    ],
)
def test_what_is_not_there_is_found(span: str, said: str):
    """A wrong name is told, a right one is not."""
    assert wrong(span, PROJECT) == said
