"""Markup that cannot be injected into."""

from __future__ import annotations

import pytest

from ml.reports.markup import Html, join, table, tag, text
from tests.reports.reading import Page


@pytest.mark.parametrize(
    ("given", "safe"),
    [
        ("<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;"),
        ("a & b \"c\" 'd'", "a &amp; b &quot;c&quot; &#x27;d&#x27;"),
        ("red \x1b[31mtext\x1b[0m", "red text"),
        ("null \x00, bell \x07", "null \ufffd, bell \ufffd"),
        ("turned \u202egnp.exe", "turned \ufffdgnp.exe"),
        ("half \ud800 pair", "half ? pair"),
        ("line\nand\ttab", "line\nand\ttab"),
        (0.5, "0.5"),
    ],
)
def test_text(given: object, safe: str) -> None:
    """Escaped, without what a page cannot hold or what would mislead a reader."""
    assert text(given) == safe
    text(given).encode()


def test_markup_is_not_escaped_twice() -> None:
    """What this module made goes into a parent as it is; a plain string never does."""
    inner = tag("b", "1 < 2")
    assert tag("p", inner, "<i>") == "<p><b>1 &lt; 2</b>&lt;i&gt;</p>"
    assert join([inner, None, "x"][::2], ", ") == "<b>1 &lt; 2</b>, x"


def test_attributes() -> None:
    """Quotes cannot be left; None leaves one out; numbers keep a tenth."""
    made = tag("rect", class_='a" onload="x', data_t=3, x=1.2345, y=2.0, title=None)
    assert made == '<rect class="a&quot; onload=&quot;x" data-t="3" x="1.2" y="2"></rect>'
    assert 'title="&lt;b&gt;"' in tag("p", title=Html("<b>"))
    assert tag("meta", charset="utf-8") == '<meta charset="utf-8">'


def test_a_cell_is_escaped_unless_it_is_one() -> None:
    """A text that looks like a cell is a text."""
    page = Page(table(["<h>"], [["<td>no", tag("td", "yes", class_="n")]]))
    assert page.problems == []
    assert page.count("td", "n") == 1
    assert [name for name, _ in page.elements].count("td") == 2
