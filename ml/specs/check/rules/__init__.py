"""The rules for what the SDK does not catch offline; importing them registers them."""

from ml.specs.check.rules import attacks, expressions, numbers, paths, pipeline, ports, sweep

__all__ = ["attacks", "expressions", "numbers", "paths", "pipeline", "ports", "sweep"]
