"""Names from the data in a comment are text to a Markdown parser."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from ml.core.markdown import block, code, details, link, table, text

RENDER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
# What GitHub makes of text after rendering (github/cmark-gfm issues 181 and 389).
MENTION = re.compile(r"@[A-Za-z0-9]")
# What stands between the letters that GitHub would link; its pages have no comments.
APART = "<!-- -->"
INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060-\u2064\ufeff]")
HOSTILE = [
    "a | b | c",
    "</td></tr></table><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "@octocat please look",
    "team @org/admins",
    "closes #1, GH-2 and o/r#3",
    "![x](https://evil.example/x.png)",
    "[click](javascript:alert(1))",
    "https://evil.example www.evil.example",
    "`code` ``` fence",
    "**bold** _em_ ~~gone~~ $x^2$",
    "line\nbreak\r\n# heading",
    "- item",
    "1. item",
    "> quote",
    "&lt;b&gt; &amp; &#64;octocat",
    "<!-- ml-compare: other -->",
    ":tada: :+1:",
    "\u202eright to left\u200b\x00\x1b[31m",
    "x" * 5000,
    "back\\slash \\| \\@octocat",
    "<details><summary>",
    "=== ---",
]


def rendered(cell: str) -> str:
    """The cell's HTML, in a table as the comment has it."""
    html = str(RENDER.render(table(["h"], [[cell]])))
    return html.partition("<tbody>")[2].partition("</tbody>")[0]


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.attack("A name injects Markdown into the comment of a pull request")
def test_hostile_text_is_text(hostile: str):
    """One cell of one row, no element in it, and no mention or link that GitHub finds later."""
    html = rendered(text(hostile))
    inner = re.fullmatch(r"\s*<tr>\s*<td>(.*)</td>\s*</tr>\s*", html, re.S)
    assert inner, html
    assert "<" not in inner[1].replace(APART, "") and len(inner[1]) < 1000
    assert not MENTION.search(inner[1])
    assert not re.search(r"#\d|gh-\d|://|www\.|:\w+:", inner[1].replace("&#x27;", ""), re.I)
    # By itself at the start of a line it is a paragraph, and its letters are not styled.
    alone = RENDER.render(text(hostile))
    assert re.fullmatch(r"<p>[^<]*</p>\s*", alone.replace(APART, "")), alone


def test_harmless_text_is_unchanged():
    """Escapes are invisible once rendered."""
    for words in ("gain_at_1", "test_known", "50 % [a]", "C:\\x", "a*b_c"):
        assert words in rendered(text(words)).replace("&amp;", "&")
    assert APART not in text("gain_at_1 0.5 – 0.7 (n=3)")


@pytest.mark.parametrize("words", [*HOSTILE, "recall@10 of champion@prod", "see https://x.example"])
def test_what_a_reader_copies_has_no_hidden_letters(words: str):
    """Comments of HTML keep a mention apart: a terminal shows them, a page leaves them out."""
    assert not INVISIBLE.search(text(words)) and not INVISIBLE.search(block([words]))


def test_names_are_copied_as_they_are():
    """From the page and from a block."""
    name = "recall@10 #3 GH-4 www.x.example"
    assert rendered(text(name)).replace(APART, "").count(name) == 1
    assert name in block([name])


@given(st.text(max_size=80))
def test_any_text_is_one_cell(words: str):
    """For any letters: one row, one cell, no element."""
    html = rendered(text(words))
    assert html.count("<td>") == 1 and html.replace(APART, "").count("<") == 4, html


@pytest.mark.parametrize("hostile", HOSTILE)
def test_code_and_blocks(hostile: str):
    """A code span is for plain names; the content of a block cannot close it."""
    assert "<td>" not in rendered(code(hostile)).replace("<td>", "", 1)
    html = RENDER.render(block([hostile, "next"]))
    assert html.count("<pre>") == 1 and html.endswith("</code></pre>\n")


def test_names_are_code():
    assert code("faq-matching:3") == "`faq-matching:3`"
    assert code("models:/faq/3") == "`models:/faq/3`"
    assert code("a|b") == "a\\|b"
    assert code(" a ") == "`a`"


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "data:image/svg+xml,<svg/>", "https://x y", "https://x)>", ""]
)
@pytest.mark.attack("A link in a report runs a script")
def test_only_web_addresses_are_links(url: str):
    assert link("words", url) == "words"


def test_details():
    html = RENDER.render(details("more", table(["h"], [["x"]])))
    assert "<table>" in html and html.count("<details>") == 1
