"""Where an environment is: what this machine can bring about, and what it can only rehearse."""

from __future__ import annotations

from ml.core.errors import Exit, Problem, Refused
from ml.release.declaration import desired

PLACES = ("local", "azure")


def demand_here(environment: str, on: str | None) -> None:
    """Refuse (exit 33) what takes the Azure backend; `on` is one of PLACES, None for the usual one.

    `local` is on this machine. The others are on Azure ML; with `on` "local" they are
    rehearsed here, each on an endpoint of its own, from the same release.yml.
    """
    desired.check_environment(environment)
    if (on or ("local" if environment == desired.LOCAL else "azure")) == "local":
        return
    if environment == desired.LOCAL:
        hint = "leave --on out: `local` is this machine"
    else:
        hint = f"--on local rehearses {environment} on this machine, on an endpoint of its own"
    raise Refused(
        Problem(
            "no-azure-backend",
            f"`{environment}` on Azure ML takes the Azure backend, which is not built yet",
            "an environment on this machine",
            hint,
        ),
        exit_code=Exit.CANNOT_HONOUR,
    )
