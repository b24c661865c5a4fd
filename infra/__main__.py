"""The Pulumi program: settings → components → outputs.

The settings come from Pulumi's configuration: the stack file, overridden by `pulumi config set`,
`-c` and ESC environments.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pulumi

# Import from the repository, then from the framework that `make setup` unpacks in a thin fork.
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
