"""The state of an endpoint that a release last wrote, to detect changes by others.

The record is in the workspace's storage: the traffic, the tags and the fields of each deployment. A
release compares it with the endpoint before it changes the endpoint. Azure ML has no conditional
update, so a change between the comparison and the request is overwritten.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any, Final, NotRequired

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from infra.settings import loader
from ml.backends.azure.errors import as_user_errors, or_none
from ml.backends.azure.workspace import RELEASES, Workspace
from ml.backends.endpoints import BASELINE, CHANGED, SLOTS
from ml.core.errors import Exit, Problem, UserError
from ml.specs.sdk import load

# Tags of an endpoint: the names of two deployments, and the experiment that the canary belongs to.
LIVE: Final = "live"
CANARY: Final = "canary"
EXPERIMENT: Final = "experiment"
TAGS = (LIVE, CANARY, EXPERIMENT)
# Tags of a deployment.
MODEL, VERSION, DIGEST = "model", "version", "digest"
DEPLOYMENT_DIGEST, COLLECT = "deployment_digest", "collect"
_OWN = frozenset(f"tags.{tag}" for tag in (MODEL, VERSION, DIGEST, DEPLOYMENT_DIGEST, COLLECT))
# Fields of a deployment that change without a user's change, or do not identify it.
_VOLATILE = frozenset(
    {"provisioning_state", "creation_context", "properties", "instance_count", "scale_settings"}
)


class Routes(TypedDict):
    """Traffic and mirror shares by deployment, in percent, and the tags of a release."""

    traffic: dict[str, int]
    mirror: dict[str, int]
    live: str
    canary: str
    experiment: NotRequired[str]


class Written(TypedDict):
    """The state of an endpoint that releases last wrote."""

    # The endpoint's creation time; a record of another endpoint with this name is ignored.
    created: str
    # The current routes; during a change, those before and after it.
    routes: Annotated[list[Routes], Field(min_length=1)]
    # Deployment → its fields, flattened, as JSON; None while it is created or deleted.
    deployments: dict[str, dict[str, str] | None]


_WRITTEN = TypeAdapter(Written)


class Record:
    """The blob with the state of an endpoint that releases last wrote (`Written`)."""

    def __init__(self, workspace: Workspace, endpoint: str) -> None:
        self._workspace, self._endpoint = workspace, endpoint

    def read(self) -> Written | None:
        """Return the record, None before the first release; raise UserError if it is invalid."""
        content = or_none(lambda: self._blob.download_blob().readall())
        if content is None:
            return None
        try:
            return _WRITTEN.validate_json(content)
        except ValidationError as error:
            raise UserError(
                Problem(
                    "endpoint-record-unreadable",
                    f"{RELEASES}/{self._workspace.name}/{self._endpoint}.json cannot be read: "
                    f"{error.errors(include_url=False)[0]['msg']}",
                    "the record of a release",
                    "check who changed it, and restore the previous version of the blob",
                ),
                exit_code=Exit.RUN_FAILED,
            ) from None

    def write(self, content: Written) -> None:
        """Overwrite the record."""
        with as_user_errors():
            self._blob.upload_blob(json.dumps(content), overwrite=True)

    @property
    def _blob(self) -> Any:
        return self._workspace.release_blob(f"{self._endpoint}.json")


# An endpoint before its first release.
NOTHING: Routes = {"traffic": {}, "mirror": {}, "live": "", "canary": ""}


def routes_of(resource: Any) -> Routes:
    """Return what a release sets on an endpoint: traffic, mirror, and the release's tags."""
    shares = (resource.traffic, resource.mirror_traffic)
    traffic, mirror = (
        {name: percent for name, percent in (share or {}).items() if percent} for share in shares
    )
    tags = resource.tags or {}
    names = (tags.get(LIVE) or "", tags.get(CANARY) or "")
    routes: Routes = {"traffic": traffic, "mirror": mirror, LIVE: names[0], CANARY: names[1]}
    if tags.get(EXPERIMENT):
        routes[EXPERIMENT] = tags[EXPERIMENT]
    return routes


def tags_of(routes: Routes) -> dict[str, str]:
    """Return the endpoint's tags (`TAGS`) for these routes, without empty ones."""
    return {tag: str(value) for tag, value in routes.items() if tag in TAGS and value}


def content_of(deployment: Any) -> dict[str, str]:
    """Return a deployment's fields that identify it, flattened: `environment_variables.X`."""
    fields = json.loads(json.dumps(load.fields_of(deployment), default=str))
    return dict(_flat({key: value for key, value in fields.items() if key not in _VOLATILE}))


def _flat(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in fields.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", json.dumps(value)


def changes_of(record: Written, routes: Routes, deployments: Mapping[str, Any]) -> Iterator[str]:
    """Yield each difference from the recorded state as a phrase.

    Deployments with other names are ignored as long as they get no traffic.
    """
    if routes not in record["routes"]:
        wrote = record["routes"][-1]
        for part in dict.fromkeys([*wrote, *routes]):
            if routes.get(part) != wrote.get(part):
                kind = "the tag " if part in TAGS else ""
                is_now, was = _shown(routes.get(part)), _shown(wrote.get(part))
                yield f"{kind}{part} is {is_now}, and was {was}"
    for name, fields in record["deployments"].items():
        if fields is None:
            continue
        if name not in deployments:
            yield f"the deployment {name} is gone"
            continue
        now = content_of(deployments[name])
        for key in sorted(fields.keys() | now.keys()):
            if key.startswith("tags.") and key not in _OWN:
                continue  # set by Azure Policy or a person
            if _comparable(key, fields.get(key)) != _comparable(key, now.get(key)):
                is_now, was = (_field_text(key, state.get(key)) for state in (now, fields))
                yield f"{key} of {name} is {is_now}, and was {was}"
    for name in sorted(deployments.keys() & {*SLOTS, BASELINE} - record["deployments"].keys()):
        yield f"the deployment {name} was not created by a release"


def _comparable(key: str, value: str | None) -> str | None:
    """Return the value for a comparison: ARM IDs in lower case, tags and variables unchanged.

    Azure returns an ID in different cases: "resource names are case insensitive",
    learn.microsoft.com/azure/azure-resource-manager/management/resource-name-rules.
    """
    is_text = key.startswith(("tags.", "environment_variables."))
    return value.lower() if value and "/subscriptions/" in value and not is_text else value


def _field_text(key: str, value: str | None) -> str:
    """Return a field's value for messages; environment variables may be secrets and are hidden."""
    if value is None:
        return "nothing"
    return "(hidden)" if key.startswith("environment_variables.") else value


def refusal_of(endpoint: str, changes: Iterable[str], routes: Routes) -> UserError:
    """Return the error for an endpoint that somebody else changed from the release's `routes`."""
    update = f"az ml online-endpoint update --name {endpoint}"
    back = f'{update} --traffic "{_shares(routes["traffic"])}"'
    back += f' --mirror-traffic "{_shares(routes["mirror"])}"' if routes["mirror"] else ""
    back += "".join(f" --set tags.{tag}={name}" for tag, name in tags_of(routes).items())
    return UserError(
        Problem(
            CHANGED,
            f"`{endpoint}` was changed outside of a release: {'; '.join(changes)}",
            "the state that the release wrote; nothing was overwritten",
            f"check who changed it; revert it ({back}; a deployment: az ml online-deployment "
            f"update --endpoint-name {endpoint} --name NAME --set FIELD=VALUE) and apply again, or "
            f"begin anew: az ml online-endpoint delete --name {endpoint}, then "
            f"make deploy ENV={stack_of(endpoint) or 'ENV'}",
        ),
        exit_code=Exit.RUN_FAILED,
    )


def _shares(shares: Mapping[str, int]) -> str:
    return " ".join(f"{name}={share}" for name, share in shares.items())


def _shown(value: object) -> str:
    return (_shares(value) if isinstance(value, dict) else str(value or "")) or "nothing"


def stack_of(endpoint: str) -> str | None:
    """Return the stack that declares the endpoint of that name on Azure; None without one."""
    for stack in loader.environments(loader.FOLDER):
        with suppress(UserError):  # skip stacks with errors
            settings = loader.declared(stack, loader.FOLDER)
            if endpoint in [settings.names.regional(entry.name) for entry in settings.endpoints]:
                return stack
    return None
