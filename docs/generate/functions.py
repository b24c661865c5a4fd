"""Generate the reference of the functions and classes that projects import."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import ml.repository.scaffold
from docs.generate.markdown import code, escape, paragraphs

TEMPLATES = Path(ml.repository.scaffold.__file__).parent / "templates"
# Module → names that projects may import, besides those that the templates import.
OTHERS = {
    "ml.measures.contributions": {"permuted"},
    "ml.measures.measurement": {"evaluate", "Rows", "Training", "Features", "metric_values"},
    "ml.measures.reference": {"write_reference"},
    "ml.serving.scoring.manifest": {"write_manifest"},
    "ml.serving.scoring.messages": {"reply"},
    "ml.serving.scoring.model": {"open_model"},
    "ml.toolkit.data.datasets": {"read_dataset", "Dataset", "Target", "Split"},
    "ml.toolkit.training.model_folder": {"unseal"},
    "ml.toolkit.training.segments": {"checkpointed"},
    "ml.toolkit.figures": {"RunFiles"},
    "ml.toolkit.training.timing": {"latency"},
    "ml.toolkit.training.tracking": {"tracking", "Tracker"},
}
# These modules are parsed, not imported, since the site is built without PyTorch.
TORCH = Path(ml.repository.scaffold.__file__).parents[2] / "toolkit" / "torch"
_IMPORT = re.compile(r"^from (ml\.(?:measures|toolkit|serving)\S+) import (.+)$", re.M)


def names() -> dict[str, set[str]]:
    """Return each module → the names that projects import from it."""
    imported = {module: {*others} for module, others in OTHERS.items()}
    for file in TEMPLATES.rglob("*.py.jinja"):
        for module, text in _IMPORT.findall(file.read_text(encoding="utf-8")):
            words = {name.partition(" as ")[0] for name in text.split(", ")}
            imported.setdefault(module, set()).update(words)
    return dict(sorted(imported.items()))


def page() -> str:
    """Return the page: a section for each module, with an entry for each name."""
    parts: list[str] = []
    for module, imported in names().items():
        parts.append(f"## {module}")
        for name in sorted(imported):
            parts += _entry(name, getattr(importlib.import_module(module), name))
    for file in sorted(TORCH.glob("[!_]*.py")):
        entries = [*_parsed(ast.parse(file.read_text(encoding="utf-8")))]
        parts += [f"## ml.toolkit.torch.{file.stem}", *entries] if entries else []
    return "\n\n".join(parts)


def _entry(name: str, member: Any) -> Iterator[str]:
    yield f"### {name}"
    if not inspect.isfunction(inspect.unwrap(member)) and not inspect.isclass(member):
        yield code(member)
        return
    yield f"```python\n{signature(name, member)}\n```"
    yield paragraphs(inspect.getdoc(member) or "")
    if inspect.isclass(member):
        public = [
            f"- {_method(attribute, value)}"
            for attribute, value in vars(member).items()
            if not attribute.startswith("_") and _described(value)
        ]
        if public:
            yield "\n".join(public)


def _parsed(module: ast.Module) -> Iterator[str]:
    """Yield the entries of a parsed module's public functions and classes, except exceptions."""
    for node in module.body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        methods = [member for member in node.body if isinstance(member, ast.FunctionDef)]
        constructor = {method.name: method for method in methods}.get("__init__")
        if isinstance(node, ast.ClassDef) and not (constructor or node.decorator_list):
            continue  # an exception, or a method that a library calls
        yield f"### {node.name}"
        function = node if isinstance(node, ast.FunctionDef) else constructor
        yield f"```python\n{_signature(node.name, function, node)}\n```"
        yield paragraphs(inspect.cleandoc(ast.get_docstring(node) or ""))
        public = [method for method in methods if not method.name.startswith("_")]
        if isinstance(node, ast.ClassDef) and public:
            yield "\n".join(
                f"- {code(_signature(method.name, method, method))}: "
                + escape((ast.get_docstring(method) or "").partition("\n\n")[0])
                for method in public
            )


def _signature(name: str, function: ast.FunctionDef | None, owner: ast.AST) -> str:
    """Return a parsed function's or class's signature; a dataclass has its fields as parameters."""
    if function is None:
        assert isinstance(owner, ast.ClassDef)
        fields = [ast.unparse(line) for line in owner.body if isinstance(line, ast.AnnAssign)]
        return f"{name}({', '.join(fields)})"
    arguments = function.args
    arguments.args = [word for word in arguments.args if word.arg not in {"self", "cls"}]
    words = ast.unparse(arguments)
    result = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    return f"{name}({words}){'' if function.name == '__init__' else result}"


def _described(value: Any) -> bool:
    return callable(value) or isinstance(value, property | cached_property | classmethod)


def _method(name: str, value: Any) -> str:
    function = value.__func__ if isinstance(value, classmethod) else value
    shown = signature(name, function, one_line=True) if callable(function) else name
    return f"{code(shown)}: {escape((inspect.getdoc(value) or '').partition(chr(10) * 2)[0])}"


class _Annotation(str):
    """An annotation whose repr has no quotes, for the text of a signature."""

    __repr__ = str.__str__


def signature(name: str, member: Any, *, one_line: bool = False) -> str:
    """Return an imported member's signature; long ones have one parameter per line."""
    stated = inspect.signature(member)
    parameters = [
        param
        if param.annotation is param.empty
        else param.replace(annotation=_Annotation(param.annotation))
        for param in stated.parameters.values()
        if param.name not in {"self", "cls"}
    ]
    result: Any = stated.empty
    if not inspect.isclass(member) and stated.return_annotation is not stated.empty:
        result = _Annotation(stated.return_annotation)
    stated = stated.replace(parameters=parameters, return_annotation=result)
    if one_line or len(f"{name}{stated}") <= 88:
        return _readable(f"{name}{stated}")
    lines = [f"{name}("]
    for before, param in zip([None, *parameters], parameters, strict=False):
        if param.kind is param.KEYWORD_ONLY and not (before and before.kind is param.KEYWORD_ONLY):
            lines.append("    *,")
        lines.append(f"    {param},")
    shown = "" if result is stated.empty else f" -> {result}"
    return _readable("\n".join([*lines, f"){shown}"]))


def _readable(text: str) -> str:
    return text.replace("<factory>", "{}").replace("mappingproxy({})", "{}")
