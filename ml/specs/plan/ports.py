"""The inputs and outputs of a step: its component's ports, and the values that the step gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ml.core.documents import strings
from ml.core.errors import Problem
from ml.specs import expressions
from ml.specs.plan.bindings import (
    DATA_TYPE,
    INPUT_MODE,
    LITERAL_TYPES,
    OUTPUT_MODE,
    Bindings,
    registration,
)
from ml.specs.plan.plan import Frozen
from ml.specs.plan.layers import Part
from ml.specs.plan.plan import (
    LITERALS,
    FromPipeline,
    FromStep,
    InputPlan,
    OutputPlan,
    Source,
    Value,
)


class Ports:
    """The inputs and outputs of a step (or of a whole pipeline): `own` on top of `component`.

    `prefix` is the path from the job to `own` (`jobs.train.`); `problems` collects missing data.
    """

    def __init__(
        self,
        own: Part,
        component: Part | None,
        root: Path,
        prefix: str = "",
        registered: Path | None = None,
    ) -> None:
        self._own, self._component = own, component
        self._root, self._prefix, self._registered = root, prefix, registered
        self.problems: list[Problem] = []

    def inputs(self) -> tuple[Mapping[str, InputPlan], Mapping[str, Source]]:
        """Every input, and the sources of those that another part of the pipeline provides."""
        inputs: dict[str, InputPlan] = {}
        sources: dict[str, Source] = {}
        for name in self._names("inputs"):
            planned = self._given(name) or self._declared(name)
            if planned is None:
                continue
            inputs[name] = planned
            if source := source_of(planned.source):
                sources[name] = source
        return Frozen(inputs), Frozen(sources)

    def outputs(
        self, around: Mapping[str, OutputPlan]
    ) -> tuple[Mapping[str, OutputPlan], Mapping[str, str]]:
        """Every output, and which output of the pipeline `around` each is promoted to."""
        outputs: dict[str, OutputPlan] = {}
        promoted: dict[str, str] = {}
        for name in self._names("outputs"):
            written = self._own.get("outputs", name)
            fields = written if isinstance(written, dict) else {}
            port = self._port("outputs", name)
            target = _promotion(written if isinstance(written, str) else fields.get("path"))
            outer = around.get(target)
            if target:
                promoted[name] = target
            kind = fields.get("type") or port.get("type") or (outer.type if outer else "")
            asset, problem = registration(fields, self._own.place("outputs", name))
            self.problems += [problem] if problem else []
            owner = self._own if name in self._own.mapping("outputs") else self._component
            outputs[name] = OutputPlan(
                name,
                str(kind or DATA_TYPE),
                (owner or self._own).place("outputs", name),
                str(fields.get("mode") or port.get("mode") or OUTPUT_MODE),
                asset,
            )
        return Frozen(outputs), Frozen(promoted)

    def _names(self, direction: str) -> list[str]:
        """The component's names first, then those that the step adds."""
        declared = self._component.mapping(direction) if self._component is not None else {}
        return list(dict.fromkeys(map(str, (*declared, *self._own.mapping(direction)))))

    def _port(self, direction: str, name: str) -> Mapping[str, Any]:
        return self._component.mapping(direction, name) if self._component is not None else {}

    def _given(self, name: str) -> InputPlan | None:
        """The input as the step gives it; None when the step gives none."""
        written, place = self._own.get("inputs", name), self._own.place("inputs", name)
        kind = str(self._port("inputs", name).get("type") or "").lower()
        if written is None:
            return None
        fields = written if isinstance(written, dict) else {"path": written, "type": kind}
        path = fields.get("path")
        if isinstance(path, str) and source_of(path):
            mode = str(fields.get("mode") or INPUT_MODE)
            return InputPlan(name, str(fields.get("type") or kind), place, source=path, mode=mode)
        if isinstance(written, dict) and path is None:
            return self._default(name, written, self._own)
        if not isinstance(written, dict) and (not kind or kind in LITERALS):
            return InputPlan(name, kind or literal_type(written), place, value=written)
        return self._data(name, fields, self._own)

    def _declared(self, name: str) -> InputPlan | None:
        """The input as the component declares it: with its default, or without a value."""
        port = self._port("inputs", name)
        if not port or self._component is None:
            return None
        return self._default(name, port, self._component)

    def _default(self, name: str, port: Mapping[str, Any], owner: Part) -> InputPlan:
        kind, default = str(port.get("type") or DATA_TYPE).lower(), port.get("default")
        if default is not None and kind not in LITERALS:
            return self._data(name, {**port, "path": default}, owner)
        return InputPlan(name, kind, owner.place("inputs", name), value=default)

    def _data(self, name: str, fields: Mapping[str, Any], owner: Part) -> InputPlan:
        bindings = Bindings(owner, self._root, self._prefix, self._registered)
        planned = bindings.data(name, fields, owner.place("inputs", name, "path"))
        self.problems += bindings.problems
        return planned


def literal_type(value: Value) -> str:
    """Azure ML's word for the type of a literal."""
    return LITERAL_TYPES.get(type(value), "string")


def source_of(text: str) -> Source | None:
    """The source that a text names when it is exactly one binding; None for other texts."""
    match _binding(text):
        case ("inputs", name):
            return FromPipeline(name)
        case ("jobs", step, "outputs", name):
            return FromStep(step, name)
    return None


def waits_for(step: Part) -> Iterator[str]:
    """The steps that a step refers to, in any of its fields."""
    for _, text in strings(step.get()):
        for reference in expressions.references(text):
            path = reference.path[1:] if reference.source == "parent" else reference.path
            if path[0] == "jobs" and len(path) > 1:
                yield path[1]


def _promotion(text: Any) -> str:
    """The output of the surrounding pipeline that a text names; "" when it names none."""
    match _binding(text) if isinstance(text, str) else ():
        case ("outputs", name):
            return name
    return ""


def _binding(text: str) -> tuple[str, ...]:
    """The parts of a text that is exactly one reference; () for other texts.

    `${{inputs.x}}` and `${{jobs.a.outputs.b}}`, without `parent`, are the older spelling.
    """
    bindings = expressions.references(text)
    if len(bindings) != 1 or bindings[0].text != text.strip():
        return ()
    return bindings[0].path[1:] if bindings[0].source == "parent" else bindings[0].path
