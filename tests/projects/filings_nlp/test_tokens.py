"""Texts become numbers: the same in training and serving, of a bounded size, whatever they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml.projects.filings_nlp import tokens
from ml.projects.filings_nlp.tokens import PADDING, RESERVED, SECTIONS, UNKNOWN, Vocabulary, stack

VOCABULARY = Vocabulary((*RESERVED, "the", "lenders", "waived", "it"))


def test_sentences_and_words() -> None:
    """In lower case, numbers alike, a decimal point ends no sentence, a line does."""
    text = "The Lenders waived it. Sales were 1,234.5 million!\nNote 3\n\n— —"
    assert tokens.sentences(text) == [
        ["the", "lenders", "waived", "it"],
        ["sales", "were", "<number>", "million"],
        ["note", "<number>"],
    ]


def test_other_scripts_have_words() -> None:
    """They are unknown, and read."""
    assert tokens.sentences("Größere Verträge. 我们支付了供应商。第二句。") == [
        ["größere", "verträge"],
        ["我们支付了供应商"],
        ["第二句"],
    ]
    (sections,) = [VOCABULARY.encode({"notes": "Größere Verträge."})]
    assert sections[SECTIONS.index("notes")] == [(UNKNOWN, UNKNOWN)]


def test_what_is_read_is_bounded() -> None:
    """Long sentences are cut, and what comes after the last sentence is not read."""
    endless = " ".join(["word"] * 100)
    assert [len(of) for of in tokens.sentences(endless)] == [48, 48, 4]
    assert len(tokens.sentences("A b. " * 1000)) == tokens.MOST_SENTENCES
    assert len(tokens.sentences("word " * tokens.MOST_CHARACTERS)) == tokens.MOST_SENTENCES


def test_a_vocabulary_is_what_several_filings_have(tmp_path: Path) -> None:
    """The most frequent first; a word of a few stays unknown; its file brings it back."""
    document = dict.fromkeys(SECTIONS, "")
    documents = [{**document, "mdna": "Cash rose. Cash fell."} for _ in range(tokens.SEEN_IN)]
    documents += [{**document, "mdna": "Rare cash."}]
    learnt = Vocabulary.learn(documents)
    assert learnt.words == (*RESERVED, "cash", "fell", "rose")
    learnt.save(tmp_path)
    assert Vocabulary.load(tmp_path) == learnt
    assert learnt.encode({"mdna": "Rare cash."})[3] == [(UNKNOWN, 3)]


def test_a_sentence_that_stands_twice_is_read_once() -> None:
    """In one section, another one and another document."""
    batch = stack([VOCABULARY.encode({"mdna": "It. It. The.", "notes": "It."})] * 2)
    assert batch.sentences.tolist() == [[PADDING], [6], [3]]
    assert batch.places[0].tolist() == [[0, 0, 0]] * 3 + [[1, 1, 2], [1, 0, 0]]
    assert np.array_equal(batch.places[0], batch.places[1])


@pytest.mark.parametrize("document", [{}, {"notes": ""}, {"notes": " \n—"}])
def test_nothing_is_a_batch_too(document: dict[str, str]) -> None:
    """One place and one word, both empty."""
    batch = stack([VOCABULARY.encode(document)])
    assert batch.sentences.tolist() == [[PADDING]] and not batch.places.any()


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=300))
def test_any_text_has_numbers(text: str) -> None:
    """All of them words of the vocabulary, none padding."""
    for sentence in VOCABULARY.encode({"business": text})[0]:
        assert sentence and all(PADDING < word < len(VOCABULARY) for word in sentence)
