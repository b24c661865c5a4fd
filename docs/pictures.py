"""Draw the README's pictures from a real run: `make pictures`.

python docs/pictures.py demo LOG SVG      the last steps of `make demo`, as a terminal
python docs/pictures.py page HTML PNG     a page in headless Chromium, 1280 px wide
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

# The steps of the demo that show a canary, a rejected model and a rollback.
STEPS = ("[7]", "[9]", "[10]", "[11]")
WIDTH = 110


def demo(log: str) -> str:
    """Return a terminal's SVG with the STEPS and the last line of the output of `make demo`."""
    steps = re.split(r"\n(?=\[\d+\] |done in )", log)
    chosen = [step.strip() for step in steps if step.startswith((*STEPS, "done in "))]
    if len(chosen) != len(STEPS) + 1:
        raise SystemExit(f"expected the steps {' '.join(STEPS)} and the end of `make demo`")
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text("$ make demo", "bold"), Text("…", "dim"), sep="\n")
    for step in chosen[:-1]:
        title, _, body = step.partition("\n")
        console.print(Text(title, "bold cyan"), Text(body), "", sep="\n")
    console.print(Text(chosen[-1].partition(";")[0], "green"))
    svg = console.export_svg(title="azureml-gitops-starter")
    # Remove the fonts, which would be loaded from another host.
    return re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.S)


def page(html: Path, png: Path) -> None:
    """Write a screenshot of the top of an HTML page as PNG."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if not chromium:
        raise SystemExit("no Chromium here: apt-get install chromium")
    with tempfile.TemporaryDirectory() as profile:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        flags += ["--disable-background-networking", f"--user-data-dir={profile}"]
        shot = [f"--screenshot={png.resolve()}", "--window-size=1280,800", html.resolve().as_uri()]
        subprocess.run([chromium, *flags, *shot], check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    kind, source, target = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    target.parent.mkdir(parents=True, exist_ok=True)
    if kind == "demo":
        target.write_text(demo(source.read_text()))
    else:
        page(source, target)
