"""JSON on stdout, for programs that read what a command says."""

from __future__ import annotations

import json
import math
import sys
from typing import Any


def plain(value: Any) -> Any:
    """JSON has no NaN and no infinities: they are text, as in job.json."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def write(value: Any) -> None:
    """Print the value as one document."""
    sys.stdout.write(json.dumps(value, indent=1) + "\n")
