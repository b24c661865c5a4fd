"""The disk space of this machine's runs, as the port `Storage` offers it."""

from __future__ import annotations

from ml.backends.local import cleaning
from ml.backends.local.cleaning import KEPT
from ml.backends.runs import Run


class LocalStorage:
    """It implements `ml.backends.storage.Storage`, and `Cleaner` too."""

    is_kept = staticmethod(cleaning.is_kept)
    remove = staticmethod(cleaning.remove)
    cleaning = staticmethod(cleaning.plan)

    @property
    def cleaner(self) -> LocalStorage:
        return self

    def keep(self, run: Run, keep: bool) -> None:
        if keep:
            (run.folder / KEPT).touch()
        else:
            (run.folder / KEPT).unlink(missing_ok=True)
