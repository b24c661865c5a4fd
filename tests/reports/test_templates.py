"""The templates: text of a run cannot become markup, and an installation has them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from jinja2 import UndefinedError
from markupsafe import Markup

from ml.reports.markup import tag
from ml.reports.pages import TEMPLATES, environment
from tests.conftest import ROOT
from tests.reports.html_page import Page

TEXTS = [
    ("<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;"),
    ("a & b \"c\" 'd'", "a &amp; b &#34;c&#34; &#39;d&#39;"),
    ("red \x1b[31mtext\x1b[0m", "red text"),
    ("null \x00, bell \x07", "null \ufffd, bell \ufffd"),
    ("turned \u202egnp.exe", "turned \ufffdgnp.exe"),
    ("half \ud800 pair", "half ? pair"),
    ("line\nand\ttab", "line\nand\ttab"),
]


def render(template: str, **values: object) -> str:
    """The template as a page renders it."""
    return environment().from_string(template).render(**values)


@pytest.mark.parametrize(("text", "safe"), TEXTS)
def test_text(text: str, safe: str) -> None:
    """Escaped, without what a page cannot hold or what would mislead a reader."""
    assert render("<p>{{ text }}</p>", text=text) == f"<p>{safe}</p>"
    assert render('<p title="{{ text }}"></p>', text=text) == f'<p title="{safe}"></p>'
    assert tag("p", text) == f"<p>{safe}</p>"
    assert tag("p", title=text) == f'<p title="{safe}"></p>'
    tag("p", text).encode()


def test_markup_is_not_escaped_twice() -> None:
    """An element goes into its parent or a template as it is; a string never does."""
    inner = tag("b", "1 < 2")
    assert tag("p", inner, "<i>") == "<p><b>1 &lt; 2</b>&lt;i&gt;</p>"
    assert render("{{ inner }}{{ text }}", inner=inner, text="<i>") == "<b>1 &lt; 2</b>&lt;i&gt;"
    assert tag("p", title=Markup("<b>")) == '<p title="&lt;b&gt;"></p>'


def test_attributes() -> None:
    """Quotes cannot be left; None omits an attribute; coordinates keep a tenth."""
    element = tag("rect", class_='a" onload="x', data_t=3, x=1.2345, y=2.0, title=None)
    assert element == '<rect class="a&#34; onload=&#34;x" data-t="3" x="1.2" y="2"></rect>'
    assert tag("p", "", None, 0.5) == "<p>0.5</p>"


def test_the_cells_of_a_table() -> None:
    """A text that looks like a cell is a text; a macro's body is markup."""
    template = (
        '{% from "parts.html.j2" import number, table %}'
        "{% call table(heads) %}<tr><td>{{ text }}</td>{{ number(0.25) }}</tr>{% endcall %}"
    )
    page = Page(render(template, heads=["<h>"], text="<td>no"))
    assert page.problems == []
    assert page.count("td", "n") == 1
    assert [name for name, _ in page.elements].count("td") == 2
    assert page.text == "<h> <td>no 0.2500"


def test_an_unknown_name_in_a_template() -> None:
    """It raises and does not render as nothing."""
    with pytest.raises(UndefinedError):
        render("{{ missing }}")


def test_a_wheel_contains_the_templates(tmp_path: Path) -> None:
    """They are data of the package, which an editable installation does not show."""
    for name in ("pyproject.toml", "README.md", ".amlignore"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "ml/reports", tmp_path / "ml/reports")
    build = "from setuptools.build_meta import build_wheel; build_wheel('dist')"
    subprocess.run([sys.executable, "-c", build], cwd=tmp_path, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    templates = {f"ml/reports/templates/{path.name}" for path in TEMPLATES.iterdir()}
    assert templates and templates <= set(zipfile.ZipFile(wheel).namelist())
