"""The pack alone: it serves the analyzer until it is ended."""

from __future__ import annotations

from pulumi_policy import EnforcementLevel, PolicyPack

from policies.infra.pack import policies

PolicyPack("platform", policies=policies(), enforcement_level=EnforcementLevel.MANDATORY)
