"""Serves the pack to Pulumi until Pulumi ends it; Pulumi's CLI starts it in this folder."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

# The repository, and in a thin fork its framework: `make setup` unpacks it there.
sys.path.insert(0, str(Path(sys.prefix) / "framework"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pulumi_policy import EnforcementLevel, PolicyPack

from ml.core.errors import UserError
from policies.infra.pack import policies

# What a rule raises: gRPC tells it the log alone.
logging.basicConfig()
try:
    PolicyPack("platform", policies=policies(), enforcement_level=EnforcementLevel.MANDATORY)
except UserError as refused:
    # `infra preview` shows the last line.
    problems = (
        f"{problem.place}: {problem.actual}; expected: {problem.expected}"
        for problem in refused.problems
    )
    sys.exit("\n".join([str(refused), "; ".join(problems)]))
