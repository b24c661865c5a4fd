"""What everything is called: a name never changes, and global names do not collide.

Lengths and characters: learn.microsoft.com/azure/azure-resource-manager/management/
resource-name-rules. The longest is a storage account: 4 + 8 + 7 + 5 = 24 of 24.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from infra.settings import Settings


@dataclass(frozen=True)
class Names:
    """The names of one environment; `tail` tells apart two that are called the same."""

    platform: str
    environment: str
    tail: str

    def local(self, kind: str, what: str = "") -> str:
        """A name that is unique in its resource group: `kind-platform-environment[-what]`."""
        return "-".join(word for word in (kind, self.platform, self.environment, what) if word)

    def worldwide(self, kind: str) -> str:
        """A name in a space that all of Azure shares: letters and digits, at most 24."""
        return f"{kind}{self.platform}{self.environment}{self.tail}"

    def regional(self, what: str) -> str:
        """The name of an online endpoint, in a space that all of a region shares; at most 32."""
        return f"{what}-{self.environment}-{self.tail}"

    def instance(self, what: str) -> str:
        """The name of a compute instance, in a space that all of a region shares; at most 24.

        A letter has to follow each hyphen, and the tail may have none.
        """
        return f"{what}-ci{self.tail}"

    @property
    def group(self) -> str:
        """The resource group."""
        return self.local("rg")


def names(settings: Settings) -> Names:
    """The names of an environment; `tail` follows from the subscription."""
    told = f"{settings.subscription}/{settings.name}/{settings.environment}"
    tail = hashlib.sha256(told.lower().encode()).hexdigest()[:5]
    return Names(settings.name, settings.environment, tail)
