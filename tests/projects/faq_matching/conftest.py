"""Fixtures: a small FAQ and a model of it, created once per session."""

from __future__ import annotations

from pathlib import Path

import pytest

from ml.projects.faq_matching.fitting import fit
from ml.projects.faq_matching.loading import DEFAULT_SCHEMA, Faq, read
from ml.projects.faq_matching.model import FaqModel
from ml.projects.faq_matching.settings import Hyperparameters
from ml.projects.faq_matching.splits import TRAIN, Split, split
from tests.projects.faq_matching.generated import small_schema, write_tsv

SMALL = Hyperparameters(trees=30, min_child_samples=10, matches=12)


@pytest.fixture(scope="session")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the project's schema with bounds for small data."""
    return small_schema(DEFAULT_SCHEMA, tmp_path_factory.mktemp("schema") / "small.yml")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a generated FAQ in the TSV layout."""
    return write_tsv(tmp_path_factory.mktemp("faq"))


@pytest.fixture(scope="session")
def faq(folder: Path, schema: Path) -> Faq:
    """Return the generated FAQ."""
    return read(folder, schema)


@pytest.fixture(scope="session")
def parts(faq: Faq) -> Split:
    """Return the split of the generated FAQ."""
    return split(faq)


@pytest.fixture(scope="session")
def model(faq: Faq, parts: Split) -> FaqModel:
    """Return a model trained on the generated FAQ."""
    return fit(faq, parts, parts.rows(TRAIN), SMALL)
