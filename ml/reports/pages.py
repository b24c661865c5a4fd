"""Render the HTML pages of a run and of a watched model, from Jinja2 templates.

A page is one file that opens without a network. Its content security policy allows only its own
style and script. Templates are autoescaped.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from ml.backends.base import Backend
from ml.backends.runs import Run
from ml.core import faults, files, home, repository
from ml.core.errors import UserError
from ml.release.comparison import metric_sign
from ml.release.declaration import desired_state
from ml.reports import formatting
from ml.reports.markup import readable, square, tag

if TYPE_CHECKING:
    from ml.release.comparison import Side
    from ml.release.watch.drift import Shift
    from ml.release.watch.report import Report as WatchReport
    from ml.reports.facts import Facts
    from ml.reports.figures import Figure

TEMPLATES = Path(__file__).with_name("templates")


@dataclass(frozen=True)
class Report:
    """The HTML page of a run, and its parts."""

    run: Run
    html: str
    sentences: tuple[str, ...]  # the summary
    notes: tuple[str, ...]  # sentences about data that could not be read
    figures: tuple[Figure, ...] = ()


@dataclass
class Contents:
    """The table of contents of a page: (anchor, title) of each heading, in order."""

    entries: list[tuple[str, str]] = field(default_factory=list)

    def heading(self, title: str) -> Markup:
        """Add a section to the table of contents and return its heading."""
        anchor = f"section-{len(self.entries) + 1}"
        self.entries.append((anchor, title))
        return tag("h2", title, id=anchor)


def report(run: Run, backend: Backend, out: Path | None = None) -> Report:
    """Render the report of a run, which may still run; this executes its project's charts.py.

    `out` is the file that the page will be written to; links are relative to it.
    """
    from ml.reports import figures, summary
    from ml.reports.facts import gather

    facts = gather(run, backend)
    drawn = figures.draw(backend.root, facts)
    release, links = facts.release, list[tuple[str, str]]()
    if release and release.is_champion and release.decision:
        environment = str(release.decision["request"]["environment"])
        links = endpoint_links(backend, release.version.model, environment)
    page = run_page(facts, drawn, out, links)
    return Report(run, page, summary.sentences(facts), facts.notes, drawn)


def default_path(name: str) -> Path:
    """Return the default file of the page with that name."""
    return home.home() / "reports" / f"{name}.html"


def page_links(page: Path | None, names: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return (text, relative address) of the pages that exist at their default paths.

    `names` maps texts to pages' names, which are untrusted; `page` is the file with the links.
    """
    folder = (page or default_path("page")).absolute().parent
    return [
        (words, quote(Path(os.path.relpath(default_path(name), folder)).as_posix()))
        for words, name in names.items()
        if re.fullmatch(r"(?a)[\w.-]{1,200}", name) and default_path(name).is_file()
    ]


def endpoint_links(backend: Backend, model: str, environment: str) -> list[tuple[str, str]]:
    """Return [(text, URL)] of a model's endpoint in an environment; [] if it has none."""
    with suppress(UserError):
        name = backend.endpoints.name_of(model, environment)
        url = (backend.endpoints.url(name) if environment else None) or ""
        return [(f"endpoint {name}", url)] * url.startswith(("http://", "https://"))
    return []


def reports_of(side: Side) -> dict[str, str]:
    """Return text → name of the reports that a model's run may have: its own and its sweep's."""
    run = side.evidence.lineage.run_name or side.name
    return {f"run {name} of {side.name}": name for name in (run, run.rpartition("_")[0])}


def run_page(
    facts: Facts,
    figures: Sequence[Figure] = (),
    out: Path | None = None,
    links: Sequence[tuple[str, str]] = (),
) -> str:
    """Render the page of a run with the charts of its project; `out` is the page's file.

    `links` are further links as (text, address).
    """
    from ml.reports import summary, views
    from ml.reports.charts import sweep
    from ml.reports.explanation import importance

    related: dict[str, str] = {}
    if release := facts.release:
        model = release.version.model
        related = reports_of(release.against) if release.against else {}
        for name in desired_state.ENVIRONMENTS:
            related[f"watch of endpoint {model} in {name}"] = f"watch-{model}-{name}"
    return _render(
        "run.html.j2",
        title=f"{facts.run.name} · {facts.run.experiment}",
        command=f"ml report {facts.run.name}; run {facts.run.id}",
        facts=facts,
        summary=summary,
        views=views,
        charts=sweep,
        importance_of=importance,
        figures=figures,
        links=[*page_links(out, related), *links],
    )


def write_watch_page(
    report: WatchReport, path: Path | None = None, links: Sequence[tuple[str, str]] = ()
) -> Path:
    """Write the page of a watched model and its data as JSON beside it; return the page's path.

    Raises UserError if a file cannot be written.
    """
    path = path or default_path(f"watch-{report.model}-{report.environment}")
    document = json.dumps(report.to_json(), indent=1, allow_nan=False)
    with faults.as_user_errors():
        files.replace(path, watch_page(report, links))
        files.replace(path.with_suffix(".json"), document + "\n")
    return path


def watch_page(report: WatchReport, links: Sequence[tuple[str, str]] = ()) -> str:
    """Render the page of a watched model: outcome, comparisons, and `links` as (text, address)."""
    return _render(
        "watch.html.j2",
        title=f"watch · {report.model} {report.version} in {report.environment}",
        command=f"ml watch {report.model}",
        report=report,
        chart=_size_chart,
        links=links,
    )


def _size_chart(finding: Shift) -> Markup:
    """Plot the size of a shift as a multiple of its limit; more than 3 is drawn as 3."""
    from ml.reports.charts.intervals import intervals

    share = finding.size / finding.limit if finding.size == finding.size else 0.0
    colour = "breach" if finding.is_breach else "baseline"
    return intervals([(colour, min(share, 3.0), 0.0, min(max(share, 0.0), 3.0))], 0.0, 3.0)


def _render(template: str, **values: object) -> str:
    style, script = (
        Markup((TEMPLATES / name).read_text(encoding="utf-8")) for name in ("page.css", "page.js")
    )
    contents = Contents()
    return (
        environment()
        .get_template(template)
        .render(
            style=style,
            script=script,
            style_hash=_hash(style),
            script_hash=_hash(script),
            contents=contents,
            links=values.pop("links", ()),
            now=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            **values,
        )
    )


@cache
def environment() -> Environment:
    """Return the Jinja2 environment of the pages: it escapes text and rejects unknown names."""
    jinja = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=readable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.globals |= {"square": square, "metric_sign": metric_sign}
    for name in ("number", "signed", "short", "duration", "digest", "count", "redact", "headline"):
        jinja.filters[name] = getattr(formatting, name)
    jinja.tests["finite"] = lambda value: value is not None and math.isfinite(value)
    jinja.filters |= {
        "redact_text": formatting.redact_text,
        "direction": formatting.DIRECTIONS.get,
        "path": repository.shown,
        "breakable": breakable,
    }
    return jinja


def breakable(text: str) -> Markup:
    """Return the text as markup that may be wrapped after slashes, too."""
    return Markup("/<wbr>").join(escape(readable(part)) for part in text.split("/"))


def _hash(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
