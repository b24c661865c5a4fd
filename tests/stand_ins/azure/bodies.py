"""Check request bodies against the service's typed models, which azure-ai-ml includes.

Their own deserialisation accepts unknown fields, missing fields and wrong types.
"""

from __future__ import annotations

import datetime
import enum
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import isodate
from azure.ai.ml._restclient.arm_ml_service import models
from azure.ai.ml._restclient.arm_ml_service._utils.model_base import Model

# Collection of a PUT request → the model of its body.
MODELS = {
    "jobs": models.JobBase,
    "data": models.DataVersionBase,
    "environments": models.EnvironmentVersion,
    "codes": models.CodeVersion,
    "models": models.ModelVersion,
    "components": models.ComponentVersion,
    "featurestoreEntities": models.FeaturestoreEntityVersion,
    "featuresets": models.FeaturesetVersion,
    "onlineEndpoints": models.OnlineEndpoint,
    "deployments": models.OnlineDeployment,
    "schedules": models.Schedule,
    "batchEndpoints": models.BatchEndpoint,
    "batchDeployments": models.BatchDeployment,
}
# Names to evaluate the models' annotations with, which are strings such as `_models.X`.
_NAMES = {**vars(typing), **vars(models), "datetime": datetime, "_models": models}
# Fields that the SDK sends but the models lack: a numeric property, two limits of AutoML jobs from
# an older API version, and a field of a registry's models.
_EXCEPTIONS = frozenset({"hash_version", "sweepTrials", "sweepConcurrentTrials", "system_metadata"})
_SIMPLE: Mapping[Any, tuple[type, ...]] = {
    str: (str,),
    bool: (bool,),
    int: (int,),
    float: (int, float),
    datetime.datetime: (str,),
}


def problems(collection: str, body: Any) -> list[str]:
    """Return the problems for which the service would reject a PUT body, with JSON paths."""
    return list(_check(MODELS[collection], body, "$"))


def _check(hint: Any, value: Any, at: str) -> Iterator[str]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return
    if origin is typing.Union:
        yield from _check_union(arguments, value, at)
    elif origin is typing.Literal:
        if value not in [getattr(option, "value", option) for option in arguments]:
            yield f"{at}: {value!r} is not {arguments[0]}"
    elif origin is list:
        if not isinstance(value, list):
            yield f"{at}: an array is expected"
        else:
            for number, item in enumerate(value):
                yield from _check(arguments[0], item, f"{at}[{number}]")
    elif origin is dict:
        if not isinstance(value, dict):
            yield f"{at}: an object is expected"
        else:
            for key in value.keys() - _EXCEPTIONS:
                yield from _check(arguments[1], value[key], f"{at}.{key}")
    elif hint is datetime.timedelta:
        yield from _check_duration(value, at)
    elif hint in _SIMPLE:
        is_wrong_bool = isinstance(value, bool) and hint is not bool
        if not isinstance(value, _SIMPLE[hint]) or is_wrong_bool:
            yield f"{at}: {hint.__name__} is expected, not {value!r}"
    elif isinstance(hint, type) and issubclass(hint, enum.Enum):
        if str(value).lower() not in {str(member.value).lower() for member in hint}:
            yield f"{at}: {value!r} is not one of {[member.value for member in hint]}"
    elif isinstance(hint, type) and issubclass(hint, Model):
        yield from _check_model(hint, value, at)


def _check_union(options: tuple[Any, ...], value: Any, at: str) -> Iterator[str]:
    if value is None:
        if type(None) not in options:
            yield f"{at}: null is not allowed"
        return
    # The models annotate an enumeration as `Union[str, SomeEnum]`.
    enums = [each for each in options if isinstance(each, type) and issubclass(each, enum.Enum)]
    choices = enums or [each for each in options if each is not type(None)]
    found = [list(_check(choice, value, at)) for choice in choices]
    yield from min(found, key=len)


def _check_duration(value: Any, at: str) -> Iterator[str]:
    try:
        isodate.parse_duration(value)
    except (isodate.ISO8601Error, TypeError):
        yield f"{at}: {value!r} is not an ISO 8601 duration"


def _check_model(model: type[Model], value: Any, at: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{at}: an object is expected"
        return
    variant = _variant(model, value)
    if isinstance(variant, str):
        yield f"{at}.{variant}"
        return
    fields = _fields(variant)
    for name, (hint, field) in fields.items():
        if name in value:
            yield from _check(hint, value[name], f"{at}.{name}")
        elif _is_required(hint, field):
            yield f"{at}.{name}: required by {variant.__name__}"
    for name in value.keys() - fields.keys() - _EXCEPTIONS:
        yield f"{at}.{name}: unknown to {variant.__name__}"


def _is_required(hint: Any, field: Any) -> bool:
    is_optional = type(None) in typing.get_args(hint)
    is_read_only = field._visibility == ["read"]
    return not (is_optional or is_read_only or field._is_discriminator)


def _variant(model: type[Model], value: Mapping[str, Any]) -> type[Model] | str:
    """Return the subclass that the discriminator selects, or a problem if there is none."""
    while True:
        variants = model.__dict__.get("__mapping__") or {}
        names = [name for name, (_, field) in _fields(model).items() if field._is_discriminator]
        if not variants or not names:
            return model
        variant = variants.get(value.get(names[0]))
        if variant is None:
            return f"{names[0]}: {value.get(names[0])!r} is not one of {sorted(map(str, variants))}"
        if variant is model:
            return model
        model = variant


@cache
def _fields(model: type[Model]) -> dict[str, tuple[Any, Any]]:
    """Return the JSON name of each field of a model → (annotation, field)."""
    model.__new__(model)  # collects the fields at the first call
    hints = typing.get_type_hints(model, _NAMES)
    fields = model._attr_to_rest_field
    return {field._rest_name: (hints[name], field) for name, field in fields.items()}
