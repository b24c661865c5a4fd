"""The rules for what the SDK does not catch offline; importing them registers them."""

from ml.specs.check.rules import (
    automl,
    cluster,
    code,
    expressions,
    numbers,
    paths,
    pipeline,
    ports,
    schedule,
    security,
    service,
    sweep,
)

__all__ = [
    "automl",
    "cluster",
    "code",
    "expressions",
    "numbers",
    "paths",
    "pipeline",
    "ports",
    "schedule",
    "security",
    "service",
    "sweep",
]
