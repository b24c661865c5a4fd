"""Cleaning, and above all the leak of the original's title into its duplicate."""

from __future__ import annotations

import pytest

from ml.projects.faq_matching.text import clean, normalise

LEAK = "how do closures work inside loops"
BODY = "my handler always prints three"


@pytest.mark.parametrize(
    "raw",
    [
        f"<blockquote>\n<p><strong>Possible Duplicate:</strong><br>\n<a href='/q/1'>{LEAK}</a></p>"
        f"\n</blockquote>\n<p>{BODY}</p>",
        f"<blockquote><p><b>Possible Duplicates:</b><br><a href='x'>{LEAK}</a><br>"
        f"<a href='y'>another {LEAK}</a></p></blockquote>{BODY}",
        f"<div class='notice'><p>This question already has an answer here:</p><ul><li>"
        f"<a href='x'>{LEAK}</a> (4 answers)</li></ul></div><p>{BODY}</p>",
        f"<p>This question already has answers here:</p><ul><li><a href='x'>{LEAK}</a></li></ul>"
        f"{BODY}",
        f"Possible Duplicate: <a href='x'>{LEAK}</a> <p>{BODY}</p>",
        f"Possible Duplicate: {LEAK}\n{BODY}",
        f"POSSIBLE DUPLICATE OF: {LEAK}\n{BODY}",
        f"> **Possible Duplicate:** {LEAK}\n\n{BODY}",
    ],
)
def test_the_title_of_the_original_is_gone(raw: str):
    """Every known form of the notice goes, the question itself stays."""
    assert clean(raw) == BODY


def test_the_mark_of_a_duplicate_is_gone():
    """The end of a closed question's title."""
    assert clean(f"{BODY} [duplicate]") == BODY


@pytest.mark.parametrize(
    "text",
    [
        "why is my row refused as a duplicate of another id",
        "what happens to the 'possible duplicate:' line in stack overflow text",
        "somebody already has an endpoint of that name",
    ],
)
def test_speaking_of_duplicates_is_no_leak(text: str):
    """A sentence about duplicates is text like any other."""
    assert clean(text) == text


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("<p>Use <code>x = 1</code> here</p>", "use here"),
        ("<pre><code>a\nb</code></pre>After", "after"),
        (
            "See <a href='http://a.b'>http://a.b</a> or <a href='c'>the manual</a>",
            "see or the manual",
        ),
        ("a &lt; b &amp;&amp; c", "a < b && c"),
        ("set --name <name> in <MY_FOLDER>", "set --name <name> in <my_folder>"),
        ("  Two\n\tLines ", "two lines"),
        ("<p></p>", ""),
    ],
)
def test_markup_goes_and_text_stays(raw: str, text: str):
    """Tags, code and links go; placeholders in angle brackets are no tags."""
    assert clean(raw) == text


def test_normalising_ignores_case_accents_and_punctuation():
    """What a person would call the same text."""
    assert normalise("Où  est-ce?!") == normalise("ou EST ce")
