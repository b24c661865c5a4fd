"""A small FAQ and a model of it, made once."""

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
    """Our schema with bounds for small data."""
    return small_schema(DEFAULT_SCHEMA, tmp_path_factory.mktemp("schema") / "small.yml")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generated FAQ in the TSV layout."""
    return write_tsv(tmp_path_factory.mktemp("faq"))


@pytest.fixture(scope="session")
def faq(folder: Path, schema: Path) -> Faq:
    """The generated FAQ."""
    return read(folder, schema)


@pytest.fixture(scope="session")
def parts(faq: Faq) -> Split:
    """Its split."""
    return split(faq)


@pytest.fixture(scope="session")
def model(faq: Faq, parts: Split) -> FaqModel:
    """A model trained on it."""
    return fit(faq, parts, parts.rows(TRAIN), SMALL)
