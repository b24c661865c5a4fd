"""The pack alone: it serves the analyzer until it is ended."""

from __future__ import annotations

import sys
from pathlib import Path

# Pulumi's CLI starts it in its own folder, wherever the repository is.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pulumi_policy import EnforcementLevel, PolicyPack

from policies.infra.pack import policies

PolicyPack("platform", policies=policies(), enforcement_level=EnforcementLevel.MANDATORY)
