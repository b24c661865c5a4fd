"""Configure Sphinx for the documentation site (`make docs`)."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Sphinx runs this file outside of the package, and the generators import the product.
sys.path.append(str(Path(__file__).parent.parent))

from docs.generate import (
    commands,
    data_schema,
    errors,
    first_day,
    functions,
    gates,
    json_schemas,
    policies,
    workflows,
)

project = "azureml-gitops-starter"
extensions = ["myst_parser"]
exclude_patterns = ["generate", "*.py"]
myst_enable_extensions = ["deflist", "fieldlist"]
myst_heading_anchors = 3
smartquotes = False  # keep `--` of options
html_theme = "furo"
html_title = project
html_static_path = ["static"]
html_css_files = ["narrow.css"]
html_copy_source = False
html_show_copyright = False
html_show_sourcelink = False
# No index: the pages document files and commands, not Python objects.
html_use_index = False
html_domain_indices = False

# Page → function that generates the part below its hand-written text.
GENERATED: dict[str, Callable[[], str]] = {
    "first-day-on-azure": first_day.page,
    "reference/commands": commands.page,
    "reference/data-schema": data_schema.page,
    "reference/errors": errors.page,
    "reference/functions": functions.page,
    "reference/gates": gates.page,
    "reference/policies": policies.page,
    "reference/release": json_schemas.release_page,
    "reference/stack": json_schemas.stack_page,
    "reference/workflows": workflows.page,
}


# A relative link to a file of the repository outside of the site.
_FILE = re.compile(r"(?<!!)\[([^\]]+)\]\((?:\.\./)+([^)#\s]+)[^)]*\)")


def _prepare(app: Any, page: str, text: list[str]) -> None:
    text[0] = _FILE.sub(lambda link: f"{link[1]} (`{link[2]}`)", text[0])
    if page in GENERATED:
        text[0] += "\n" + GENERATED[page]() + "\n"


def setup(app: Any) -> None:
    """Generate the reference while Sphinx reads its pages."""
    app.connect("source-read", _prepare)
