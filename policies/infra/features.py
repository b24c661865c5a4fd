"""Rules of the feature store: its connections, and Redis, its online store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from policies.infra.limits import Limits
from policies.infra.rule import UNKNOWN, Item, Kind, Rules, StackFindings

RULES = Rules()


@RULES.stack("redis-users", "Only identities of the stack read and write Redis.", "own")
def _users(items: Sequence[Item], limits: Limits) -> StackFindings:
    identities = {item.urn for item in items if item.kind == Kind.IDENTITY}
    for item in items:
        principals = item.sources("user")
        if item.kind == Kind.REDIS_USER and (not principals or not principals <= identities):
            yield item, "lets somebody in who is no identity of this stack"


@RULES.resource("cost-redis-size", "Redis has an allowed size.", "own", Kind.REDIS)
def _size(item: Item, limits: Limits) -> Iterator[str]:
    """It is billed by the hour, used or not."""
    size = item.at("sku.name", UNKNOWN)
    if size not in limits.redis_sizes:
        yield f"`sku.name` is {size}; allowed here: {', '.join(limits.redis_sizes) or 'none'}"


RULES.resource("redis-tls", "TLS is 1.2 or newer.", "own", Kind.REDIS).must(
    "minimumTlsVersion", ("1.2", "1.3"), default="1.0"
)
RULES.resource("redis-replicated", "Redis survives the loss of a node.", "own", Kind.REDIS).must(
    "highAvailability", "Enabled", default="Enabled"
)
RULES.resource("redis-encrypted", "Redis speaks TLS only.", "own", Kind.REDIS_DATABASE).must(
    "clientProtocol", "Encrypted", default="Encrypted"
)
RULES.resource("redis-keys", "Redis accepts no keys.", "own", Kind.REDIS_DATABASE).must(
    "accessKeysAuthentication", "Disabled", default="Enabled"
)
RULES.resource(
    "connection-identity", "Connections use an identity, no key.", "own", Kind.CONNECTION
).must("properties.authType", "ManagedIdentity")
