"""The Pulumi program: settings → components → outputs.

The settings are Pulumi's configuration: the stack file, with what `pulumi config set`, `-c` and
environments of ESC change.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pulumi

# The repository, and in a thin fork its framework: `make setup` unpacks it there.
sys.path.insert(0, str(Path(sys.prefix) / "framework"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from infra.program.site import configuration
from infra.program.stack import provision
from infra.settings.loader import configured

settings = configured(pulumi.get_stack(), configuration())
by_sas = settings.storage.datastores == "sas"
environment = provision(settings, pulumi.Config().require_secret("lake_sas") if by_sas else None)

for name, value in environment.items():
    pulumi.export(name, value)
