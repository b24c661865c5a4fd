"""What the mini-batches of a parallel job come from and go to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ml.specs.check.nodes import Node
from ml.specs.check.rules.registry import Finding, rule
from ml.specs import expressions

_SOURCE = "reference-yaml-job-parallel: input_data, task.append_row_to"


@rule("parallel-input", scope="node", source=_SOURCE)
def parallel_input(node: Node) -> Iterator[Finding]:
    """A parallel job says which of its inputs is divided, and that input is data."""
    beneath = node.component or {}
    # A prompt flow that is run as a parallel step has neither.
    if node.type != "parallel" or not (node.get("task") or beneath.get("task")):
        return
    written = node.get("input_data") or beneath.get("input_data")
    name = _only(written, "inputs")
    if name is None:
        message = f"`input_data` is `{written}`" if written else "there is no `input_data`"
        yield Finding(("input_data",), message, "`${{inputs.NAME}}` of one input")
        return
    port: Any = (node.ports("inputs") or {}).get(name)
    if isinstance(port, Mapping) and port.get("type") in {"string", "number", "integer", "boolean"}:
        yield Finding(
            ("input_data",), f"`{name}`, which is divided, is a {port['type']}", "a folder or table"
        )


@rule("parallel-output", scope="node", source=_SOURCE)
def parallel_output(node: Node) -> Iterator[Finding]:
    """What is appended to is an output of the parallel job."""
    task = node.mapping("task")
    written = task.get("append_row_to")
    if node.type != "parallel" or written is None:
        return
    name, outputs = _only(written, "outputs"), node.ports("outputs")
    if name is None or (outputs is not None and name not in outputs):
        listed = ", ".join(outputs or ()) or "an output"
        yield Finding(
            ("task", "append_row_to"),
            f"`append_row_to` is `{written}`",
            f"`${{{{outputs.NAME}}}}` with one of {listed}",
        )


def _only(text: object, source: str) -> str | None:
    """The name in a text that is one reference to `source` and nothing else."""
    references = expressions.references(str(text or ""))
    is_single = len(references) == 1 and references[0].text == str(text).strip()
    return references[0].name if is_single and references[0].source == source else None
