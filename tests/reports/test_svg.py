"""What a page takes of a drawing."""

from __future__ import annotations

import altair as alt
import pytest

from ml.reports.charts import svg
from tests.reports.html_page import Page

HOSTILE = "</title><script>alert(1)</script>\x00\x1b[31m\ud800\u202e&'"


@pytest.mark.attack("A text of a run ends the program that draws it, or becomes markup of the page")
def test_a_hostile_text_is_a_text() -> None:
    """As a title, a value, a category and a tooltip; vl-convert would abort at a zero byte."""
    rows = svg.rows([{"x": HOSTILE, "y": 1, "words": HOSTILE}])
    marks = rows.mark_point(size=9).encode(alt.X("x:N", title=HOSTILE), alt.Y("y:Q", title=HOSTILE))
    text = rows.mark_text().encode(x="x:N", text="words:N")
    page = Page(svg.figure(HOSTILE, alt.layer(svg.pointed(marks), text), 400, 300, HOSTILE))
    assert page.problems == []
    assert page.text.count("</title><script>alert(1)</script>\ufffd") > 4
    assert "script" not in {name for name, _ in page.elements}


@pytest.mark.attack("A drawing brings a reference, a style or a script into the page")
def test_a_drawing_refers_to_nothing() -> None:
    """An image, a link and a style of a chart are left out, the other marks are drawn."""
    rows = svg.rows([{"x": 1, "url": "data:image/png;base64,AAAA", "link": "https://example.org"}])
    linked = rows.mark_point(color="var(--best)").encode(x="x:Q", href="link:N", url="url:N")
    image = rows.mark_image().encode(x="x:Q", url="url:N")
    drawn = svg.drawing(alt.layer(image, linked).properties(width=90, height=90), "linked")
    page = Page(drawn)
    assert page.fetched() == [] and page.problems == []
    assert {name for name, _ in page.elements} <= {"svg", "g", "path", "circle", "line", "text"}
    for _, attributes in page.elements:
        assert not {"style", "id", "href", "xlink:href", "clip-path"} & {*attributes}
    remote = alt.Chart(alt.UrlData("http://127.0.0.1:1/rows.json")).mark_point()
    with pytest.raises(ValueError, match="not allowed"):
        svg.drawing(remote, "remote")


def test_a_mark_is_linked_with_its_trial() -> None:
    """By the words of its tooltip; nothing is said where the chart says nothing."""
    rows = svg.rows({"x": n, "words": f"trial {n}: a\nb"} for n in (3, 14))
    marks = svg.pointed(rows.mark_point(color="var(--best)").encode(x="x:Q"))
    silent = rows.mark_point(color="var(--q1)").encode(x="x:Q")
    page = Page(svg.figure("linked", alt.layer(silent, marks), 200, 100, legend=["best"]))
    assert page.trials("best") == ["3", "14"] and page.trials("q1") == ["", ""]
    assert page.text.count("trial 3: a b") == 1
    assert "best trial" in page.text and "best so far" not in page.text
