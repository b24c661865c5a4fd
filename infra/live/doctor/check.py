"""What a check says of one thing that it looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    verdict: Verdict
    said: str
    hint: str = ""

    def __str__(self) -> str:
        return (
            f"{self.verdict:<7}  {self.name}: {self.said}{f' ({self.hint})' if self.hint else ''}"
        )
