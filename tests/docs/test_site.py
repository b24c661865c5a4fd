"""The built site: no warning, pages that fit a phone and a desktop, and are short."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ml.repository.affected.projects import is_document
from tests.conftest import ROOT
from tests.named import spans, wrong
from tests.release import tiny
from tests.shared import once

DOCS = ROOT / "docs"
PAGES = sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))
WIDTHS = (390, 1280)
OPENED = ("index", "tutorial", "reference/errors")
# Words of a page by its folder; `code` counts.
MOST_WORDS = {"tutorial.md": 700, "how-to": 400, "threat-model.md": 700}
# What a guide has its reader make.
MADE = re.compile(
    r"ml/projects/(churn|houses)\b.*|data/(churn|houses)\..*|infra/Pulumi\.qa\.yaml|policies/own"
)
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@pytest.fixture(scope="session", name="site")
def _site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def build(folder: Path) -> None:
        words = ["-P", "-m", "sphinx", "--quiet", "--fail-on-warning", "--fresh-env"]
        command = [sys.executable, *words, str(DOCS), str(folder)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    return once(tmp_path_factory, "site", build)


def test_the_site_is_built_without_a_warning(site: Path) -> None:
    """Every page of the source is a page of the site; an error links to its own heading."""
    missing = [page for page in PAGES if not (site / page).with_suffix(".html").exists()]
    assert missing == []
    assert 'id="error-unknown-field"' in (site / "reference/errors.html").read_text()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: apt install chromium")
def test_pages_have_no_horizontal_scroll_bar(site: Path, tmp_path: Path) -> None:
    """Three pages at the width of a phone and of a desktop, in frames of one page."""
    assert too_wide([site / f"{page}.html" for page in OPENED], tmp_path) == []


def too_wide(pages: Sequence[Path], folder: Path) -> list[tuple[Path, int, int]]:
    """The pages that scroll sideways, the width of the frame and that of their content."""
    frames = [(page, width) for page in pages for width in WIDTHS]
    shown = "".join(
        f'<iframe src="{page.as_uri()}" width="{width}" height="900"></iframe>'
        for page, width in frames
    )
    script = """<script>onload = () => { document.body.textContent = JSON.stringify(
        [...document.querySelectorAll("iframe")].map(({contentDocument: page}) => [
            page.querySelector("h1").textContent, page.documentElement.scrollWidth])) }</script>"""
    (folder / "frames.html").write_text(f"<body>{shown}{script}</body>")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    flags += [f"--user-data-dir={folder}/profile", "--virtual-time-budget=20000", "--dump-dom"]
    command = [str(CHROMIUM), *flags, (folder / "frames.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    body = re.search(r"<body>(\[.*\])</body>", done.stdout, re.S)
    assert body, done.stderr
    measured = json.loads(html.unescape(body[1]))
    assert len(measured) == len(frames) and all(title for title, _ in measured)
    return [
        (page, width, scrolled)
        for (page, width), (_, scrolled) in zip(frames, measured, strict=True)
        if scrolled > width
    ]


@pytest.mark.parametrize(
    ("file", "is_page"),
    [
        ("docs/tutorial.md", True),
        ("docs/how-to/a new page.md", True),
        ("docs/conf.py", False),
        ("docs/generate/remedies.yml", False),
    ],
)
def test_a_pull_request_of_pages_alone_installs_nothing(file: str, is_page: bool) -> None:
    """The generators are code: what changes them runs the framework's tests."""
    assert is_document(file) == is_page


@pytest.mark.parametrize(
    ("test", "is_there"),
    [
        (f"{Path(__file__).relative_to(ROOT)}::test_the_site_is_built_without_a_warning", True),
        (f"{Path(__file__).relative_to(ROOT)}::test_that_was_renamed", False),
        ("tests/docs/test_removed.py::test_the_site_is_built_without_a_warning", False),
    ],
)
def test_a_page_names_tests_that_are_there(test: str, is_there: bool) -> None:
    assert (wrong(test) == "") is is_there


def test_each_guarantee_of_the_threat_model_names_its_test() -> None:
    """The test of the pages finds a name that is not there."""
    text = (DOCS / "threat-model.md").read_text(encoding="utf-8")
    section = text.partition("\n## Guarantees\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+) \| (.+) \|$", section, re.M)[1:]
    assert len(rows) >= 20
    assert [row for row in rows if not re.search(r"`tests/[\w/]+\.py::test_\w+`", row[1])] == []


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_short_and_names_what_is_there(page: str, tmp_path: Path) -> None:
    """Commands with their options, make targets, files: of a project, those of the tests' own."""
    project = tiny.make(tmp_path).folder
    text = (DOCS / page).read_text(encoding="utf-8")
    most = MOST_WORDS.get(page, MOST_WORDS.get(page.partition("/")[0], 1500))
    assert len(text.split()) <= most
    named = [span for span in spans(text) if not MADE.fullmatch(span)]
    assert [span for span in named if wrong(span, project)] == []
