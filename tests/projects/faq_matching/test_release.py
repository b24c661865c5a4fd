"""The project's release.yml as it comes with the template."""

from __future__ import annotations

from ml.release.declaration import release_file
from tests.conftest import ROOT

OURS = ROOT / "ml/projects/faq_matching/release.yml"


def test_it_declares_nothing_yet():
    """Its own way for a canary, mirrored in prod."""
    release = release_file.read(OURS)
    assert not any(entry.model for entry in release.entries.values())
    assert release.strategy("local").prediction == "answers/0/entry_id"
    assert (release.strategy("dev").mirror, release.strategy("prod").mirror) == (0, 20)


def test_editors_find_its_schema():
    """The first line names the file."""
    line = OURS.read_text().splitlines()[0]
    (named,) = [word for word in line.split() if word.startswith("$schema=")]
    schema = OURS.parent / named.removeprefix("$schema=")
    assert schema.resolve() == ROOT / "ml/release/declaration/release.schema.json"
