"""What runs of a workspace take on this machine: only what was brought from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

from ml.backends.azure.errors import as_refusals
from ml.backends.azure.workspace import Workspace
from ml.backends.runs import Run
from ml.backends.storage import Cleaning, Needed, Usage
from ml.core.errors import Exit, Problem, Refused

# The tag of a run that a person protects.
KEEP = "keep"
_NOTHING = Cleaning((), 0, {})


class AzureStorage:
    """Implements `ml.backends.storage.Storage`.

    Nothing is ever removed: the lifecycle rules of the storage account, which `infra` declares,
    remove old artifacts in the workspace.
    """

    grace_s = 0.0
    limit_variable = "MLOPS_DISK_LIMIT"
    grew = False

    def __init__(self, workspace: Callable[[], Workspace]) -> None:
        """`workspace` is asked when it is needed: every command asks whether the storage grew."""
        self._named = workspace

    @property
    def _workspace(self) -> Workspace:
        return self._named()

    def size(self, run: Run) -> int:
        return sum(path.stat().st_size for path in run.folder.rglob("*") if path.is_file())

    def usage(self) -> Usage:
        return Usage(self.parts()["azure"], None, _NOTHING)

    def parts(self) -> Mapping[str, int]:
        folder = self._workspace.folder
        taken = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        return {"azure": taken}

    def keep(self, run: Run, keep: bool) -> None:
        with as_refusals():
            self._workspace.client.jobs.update(run.name, tags={KEEP: str(keep).lower()})

    def is_kept(self, run: Run) -> bool:
        with as_refusals():
            tags = self._workspace.client.jobs.get(run.name).tags or {}
        return tags.get(KEEP) == "true"

    def evicted(self, run: Run) -> float | None:
        return None

    def cleaning(
        self,
        needed: Needed,
        *,
        keep: int | None = None,
        older_than: float | None = None,
        experiment: str | None = None,
    ) -> Cleaning:
        _refuse()

    def eviction(self, usage: Usage, needed: Needed, reads: Iterable[object] = ()) -> Usage:
        return usage

    def remove(self, planned: Cleaning, current: Cleaning) -> tuple[int, list[str]]:
        _refuse()

    def evict(self, planned: Usage, current: Usage) -> tuple[int, list[str]]:
        return 0, []


def _refuse() -> NoReturn:
    raise Refused(
        Problem(
            "not-cleaned-here",
            "runs of a workspace are not removed by this command",
            "--on local",
            "`az ml job archive --name NAME` hides one; what was brought here: rm -r .local/azure",
        ),
        exit_code=Exit.CANNOT_HONOUR,
    )
