"""ml.measures.reference: what is kept of a column, and what is not."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from ml.measures.reference import (
    CATEGORIES,
    REFERENCE,
    SAMPLE,
    measures,
    summary,
    write_reference,
)


def test_numbers_are_kept_by_their_order() -> None:
    """At most SAMPLE of them, both ends among them; what is no number is missing."""
    reference = summary("numeric", [3.0, math.nan, None, "7", True, 1.0, math.inf, 2])
    assert (reference["sample"], reference["rows"], reference["missing"]) == ([1.0, 2.0, 3.0], 8, 5)
    many = summary("numeric", [float(n) for n in range(50_000)])["sample"]
    assert len(many) == SAMPLE and (many[0], many[-1]) == (0.0, 49_999.0)
    assert many[SAMPLE // 2] == pytest.approx(25_000, abs=60)


def test_categories_are_counted() -> None:
    """The most frequent by name, the others together."""
    values = ["a"] * 5 + [f"c{n}" for n in range(CATEGORIES + 10)]
    reference = summary("categorical", [*values, None, ""])
    assert reference["counts"]["a"] == 5 and len(reference["counts"]) == CATEGORIES
    assert (reference["rest"], reference["missing"]) == (11, 2)


def test_a_word_that_one_text_has_is_not_kept() -> None:
    """It may be a name; and a text is measured beside words that others had."""
    texts = [f"where is my invoice Number{n}x name{chr(97 + n)}" for n in range(20)]
    reference = summary("text", texts)
    assert reference["vocabulary"] == ["invoice", "is", "my", "number", "where", "x"]
    assert len(reference["measures"]["unknown words"]) == 10
    assert set(reference["measures"]["unknown words"]) == {1 / 7}


def test_the_measures_of_a_text() -> None:
    """Characters, words, and the share of words that are unknown: all of a text without words."""
    vocabulary = frozenset({"how"})
    assert measures("How, how? Why!", vocabulary) == (14.0, 3.0, 1 / 3)
    assert measures("12 34", vocabulary) == (5.0, 0.0, 1.0)


def test_a_column_without_values_is_refused(tmp_path: Path) -> None:
    """Nothing could be compared with it; nothing is written."""
    with pytest.raises(ValueError, match="without any value"):
        write_reference(tmp_path, "d", {"q": ("text", ["", None])}, {}, {})
    assert not (tmp_path / REFERENCE).exists()


def test_the_file_says_whose_it_is(tmp_path: Path) -> None:
    """The digest of the model, the columns, and what answers cost."""
    write_reference(
        *(tmp_path, "sha256:d", {"q": ("text", ["a b", "a c"] * 5)}),
        {"answers/0/id": ("categorical", ["x", "y"])},
        {"answers/0/id": [0.0, 1.0, 0.0, 1.0]},
        {"cards": ("2", "ab", {"spent": ("numeric", [1.0, None])})},
    )
    reference = json.loads((tmp_path / REFERENCE).read_text())
    assert reference["digest"] == "sha256:d" and reference["quality"]["answers/0/id"]["mean"] == 0.5
    assert reference["inputs"]["q"]["kind"] == "text"
    cards = reference["features"]["cards"]
    assert (cards["version"], cards["definition"]) == ("2", "ab")
    assert cards["columns"]["spent"]["sample"] == [1.0]
