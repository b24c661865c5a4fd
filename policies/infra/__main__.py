"""Serves the policy pack to Pulumi, whose CLI starts and stops this program in this folder."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

# Import from the repository, then from the framework that `make setup` unpacks in a thin fork.
sys.path.insert(0, str(Path(sys.prefix) / "framework"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pulumi_policy import EnforcementLevel, PolicyPack

from ml.core.errors import UserError
from policies.infra.pack import policies

# gRPC reports the exceptions that a rule raises only in the log.
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
