"""What a model answered, as a person reads it."""

from __future__ import annotations

import json

import pytest

from ml.cli.commands.serving import answer_texts

ENTRY = {"rank": 1, "score": 0.5, "question": "how?", "answer": "so"}


def test_the_entries_of_a_ranking_are_shown_one_by_one() -> None:
    """Place, question and score, then the answer."""
    assert answer_texts({"answers": [ENTRY, {**ENTRY, "rank": 2, "more": 1}]}) == [
        "1. how?  [0.500]\n   so\n",
        "2. how?  [0.500]\n   so\n",
    ]


@pytest.mark.parametrize(
    "body", [{"left": 0.97}, {"answers": [{"label": "é"}]}, {"answers": ["a"]}, {"answers": 3}]
)
def test_any_other_answer_is_shown_as_it_is(body: dict[str, object]) -> None:
    """A project's answers have the form that it likes."""
    (shown,) = answer_texts(body)
    assert json.loads(shown) == body and "\\u" not in shown
