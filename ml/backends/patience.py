"""Looks again at a run that goes on elsewhere and cannot be seen for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from ml.backends.runs import RunStore
from ml.core.errors import Refused

# A person learns after a minute, then ever more seldom, that it is still tried.
_NEWS_S = 60.0


@dataclass
class Patience:
    """How long the run of that name is looked for; `say` gets what is waited for.

    `again` is the command that follows it anew.
    """

    store: RunStore
    run: str
    again: str
    say: Callable[[str], None]
    _since: float | None = None
    _news_s: float = 0.0

    def endure(self, refused: Refused) -> None:
        """Return when another look may succeed; raise Refused, with `again`, when it is too late.

        A store that has no patience with the error raises it as it is.
        """
        if self.store.patience_s is None:
            raise refused
        limit_s, problem = self.store.patience_s(refused), refused.problems[0]
        now = time.monotonic()
        if self._since is None:
            self._since = now
        lost_s = now - self._since
        if lost_s >= limit_s:
            found = f"{self.run} is followed no more, it may go on: {problem.found}"
            hint = "; then ".join(filter(None, (problem.hint, self.again)))
            ended = replace(problem, found=found, hint=hint)
            raise Refused(ended, exit_code=refused.exit_code) from refused
        if lost_s >= self._news_s:
            self._news_s = max(_NEWS_S, 2 * lost_s)
            until = f"{lost_s / 60:.0f} of {limit_s / 60:.0f} minutes"
            self.say(f"{problem.found}; {self.run}: following is tried again ({until})")

    def seen(self) -> None:
        """The run was seen: what comes next is waited for anew."""
        self._since, self._news_s = None, 0.0
