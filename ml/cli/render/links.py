"""Find the URLs of a run: its page in Azure ML's studio, its report, its services."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ml.backends.base import Backend
from ml.backends.runs import Run, Service
from ml.cli.options import repeated_on
from ml.reports.pages import default_path


@dataclass(frozen=True)
class Links:
    """The URLs, report and services of one run."""

    run: str
    # The URL in the studio; "" for a local run.
    studio: str
    # The file that `ml report` wrote; None if it does not exist yet.
    report: Path | None
    # The command that writes the report.
    report_command: str
    services: tuple[Service, ...]

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield (label, text) for the studio, the report and each service."""
        if self.studio:
            yield "studio", self.studio
        if self.report:
            yield "report", str(self.report)
        for service in self.services:
            state = service.error or service.address or "no address yet"
            yield service.name, f"{state}  ({service.type}, {service.status or 'unknown'})"

    def urls(self) -> Iterator[str]:
        """Yield the URLs to open: https URLs of the run\'s record, and the report\'s file URL."""
        report = self.report.as_uri() if self.report else ""
        addresses = [self.studio, *(service.address for service in self.services)]
        yield from (url for url in addresses if url.startswith("https://"))
        if report:
            yield report


def links(backend: Backend, run: Run) -> Links:
    """Return the links of the run; raise UserError if its services cannot be read."""
    report = default_path(run.name)
    return Links(
        run=run.name,
        studio=str(backend.runs.entry(run).lineage.get("studio") or ""),
        report=report if report.is_file() else None,
        report_command=f"ml report {run.name}{repeated_on(backend.name)}",
        services=tuple(backend.runs.services(run)),
    )


def has_desktop() -> bool:
    """Return True if this machine can open a browser; False on a server or over SSH."""
    variables = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
    return sys.platform in ("darwin", "win32") or any(map(os.environ.get, variables))


def open_in_browser(found: Links) -> None:
    """Open each URL in the default browser."""
    for url in found.urls():
        webbrowser.open(url)
