"""Rules against shell injection, server settings that load code, and plaintext secrets in specs.

`ml.specs.expressions` lists the rejected characters; `ml.specs.shell` parses commands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ml.core import names, repository
from ml.core.documents import Key, walk
from ml.core.errors import Problem
from ml.specs import expressions
from ml.specs.assets import assets
from ml.specs.check import secret_patterns
from ml.specs.check.nodes import WITH_NODES, Node, nested_component_nodes
from ml.specs.check.rules.rule import Finding, Subject, rule
from ml.specs.expressions import Reference, literal
from ml.specs.plan.plans import LITERALS
from ml.specs.yaml_node import YamlNode

# A value for a placeholder: its text, the node that sets it, and its keys there.
Value = tuple[str, YamlNode, tuple[Key, ...]]

PARENT_INPUT = re.compile(r"\$\{\{\s*parent\.inputs\.([^\s}]+)\s*\}\}")
# Characters that a shell interprets. On a node, the path of data may end in its local name.
_ACTIVE = re.compile(r"[$`;|&<>'\"\\\n\r]")


@rule(
    "shell-metacharacter",
    scope=WITH_NODES,
    source="Azure ML puts literals verbatim into a command that bash runs (azure-ai-ml 1.35)",
)
def shell_metacharacter(subject: Subject) -> Iterator[Finding]:
    """No value contains characters that the shell interprets where the value is substituted."""
    problems: dict[object, Problem] = {}
    for node in [*subject.nodes, *nested_component_nodes(subject.nodes)]:
        command = node.command[1] if node.command else ""
        references = expressions.references(command)
        references += expressions.references(f"python FILE.py {node.arguments}")
        for part, keys, text in node.variables:
            name = str(keys[-1])
            if problem := expressions.evaluated_text(name, text, part.place(*keys)):
                problems.setdefault(problem, problem)
            references += expressions.variable_references(text)
        for reference in references:
            for value, part, keys in _values(node, reference):
                place = part.place(*keys)
                if problem := expressions.dangerous(value, reference, place):
                    problems.setdefault((place, reference.quoting), problem)
    for problem in problems.values():
        yield Finding((), problem.actual, problem.expected, problem.hint, place=problem.place)


def _values(node: Node, reference: Reference) -> Iterator[Value]:
    """Yield the values that may replace a placeholder."""
    source, name = reference.source, reference.name
    if source == "search_space" or (source == "inputs" and name in node.search_space):
        yield from _choices(node, name)
    elif source == "inputs":
        yield from _input(node, name)
    elif source == "parent" and node.parent is not None and name.startswith("inputs."):
        yield from _input(node.parent, name.removeprefix("inputs."))
    elif source == "outputs":
        written = node.mapping("outputs", name)
        if isinstance(path := written.get("path"), str) and written.get("mode") == "direct":
            yield path, node, ("outputs", name, "path")


def _choices(node: Node, name: str) -> Iterator[Value]:
    """Yield the values of a hyperparameter, which may be nested in another one's `choice`."""
    for keys, value in walk(node.search_space):
        if name in keys and "values" in keys and isinstance(value, str):
            yield value, node, ("search_space", *keys)


def _input(node: Node, name: str) -> Iterator[Value]:
    """Yield the values of an input: from the node, its pipeline, or the component's default."""
    value, part, keys = node.get("inputs", name), node, ("inputs", name)
    kind, mode = "", ""
    if node.user is not None and node.user.get("inputs", name) is not None:
        yield from _input(node.user, name)
        return
    if (port := node.port("inputs", name)) is not None:
        owner, declared = port
        kind, mode = str(declared.get("type") or ""), str(declared.get("mode") or "")
        if value is None and (value := declared.get("default")) is not None:
            yield from _literal(value, owner, (*keys, "default"), kind, mode)
            return
    if isinstance(value, dict):
        kind, mode = str(value.get("type") or kind), str(value.get("mode") or mode)
        if value.get("path") is not None and not node.is_component:
            yield from _bound(node, value["path"], (*keys, "path"), kind or "uri_folder", mode)
        elif value.get("default") is not None:
            yield from _literal(value["default"], part, (*keys, "default"), kind, mode)
    elif value is not None:
        yield from _bound(node, value, keys, kind, mode)


def _bound(
    node: Node, value: object, keys: tuple[Key, ...], kind: str, mode: str
) -> Iterator[Value]:
    """Yield a value; if it references inputs of the pipeline, yield the values of those."""
    text = literal(value)
    bound = PARENT_INPUT.fullmatch(text.strip())
    if bound and node.parent is not None:
        yield from _input(node.parent, bound[1])
    elif "${{" not in text:
        yield from _literal(value, node, keys, kind, mode)
    else:
        # A text that contains a reference among other characters.
        for match in PARENT_INPUT.finditer(text):
            if node.parent is not None:
                yield from _input(node.parent, match[1])
        constant = expressions.without_placeholders(text)
        yield from _literal(constant, node, keys, kind, mode)


def _literal(
    value: object, part: YamlNode, keys: tuple[Key, ...], kind: str, mode: str
) -> Iterator[Value]:
    """Yield the text of a literal; for data, only a path with characters of the shell."""
    text = literal(value)
    is_data = bool(kind) and kind.lower() not in LITERALS
    if (
        not is_data
        or mode == "direct"
        or (assets.local_path(text, part.folder) and _ACTIVE.search(text))
    ):
        yield text, part, keys


# Family of a spec → its fields that hold names, with the kind of each name.
_ASSET: Mapping[str, names.Kind] = {"name": "asset", "version": "version"}
_ENDPOINT: Mapping[str, names.Kind] = {"name": "endpoint", "endpoint_name": "endpoint"}
_NAMED: Mapping[str, Mapping[str, names.Kind]] = {
    "job": {"name": "job", "experiment_name": "experiment"},
    **dict.fromkeys(("component", "data", "environment", "model"), _ASSET),
    **dict.fromkeys(("online_endpoint", "online_deployment"), _ENDPOINT),
    **dict.fromkeys(("batch_endpoint", "batch_deployment", "model_batch_deployment"), _ENDPOINT),
    "pipeline_component_batch_deployment": _ENDPOINT,
}


@rule(
    "bad-name", scope=(*_NAMED, "schedule"), source="names become parts of paths and of addresses"
)
def bad_name(subject: Subject) -> Iterator[Finding]:
    """Names of jobs, assets, endpoints, ports and variables have only characters safe in paths."""
    spec = subject.spec
    for key, kind in _NAMED.get(spec.kind.family, {}).items():
        yield from _bad_name(kind, spec.get(key), (key,))
    for node in subject.nodes:
        is_lone = node.parent is None and not node.is_component and node.type != "pipeline"
        for direction in ("inputs", "outputs", "search_space"):
            spellings: dict[str, object] = {}
            for name, fields in node.mapping(direction).items():
                # Names of grouped inputs contain a dot: `group.rate`.
                words = [name] if is_lone or direction != "inputs" else str(name).split(".")
                for word in words:
                    yield from _bad_name("port", word, (*node.keys, direction, name))
                if (first := spellings.setdefault(str(name).lower(), name)) != name:
                    actual = f"`{first}` and `{name}` differ only in case"
                    yield Finding((*node.keys, direction, name), actual, "different names")
                # The SDK validates the name that an output is registered as, but not the version.
                version = fields.get("version") if isinstance(fields, dict) else None
                field = (*node.keys, direction, name, "version")
                yield from _bad_name("version", version if direction == "outputs" else None, field)
        for part, keys, _ in node.variables:
            if part is node:
                yield from _bad_name("variable", keys[-1], (*node.keys, *keys))


def _bad_name(kind: names.Kind, value: object, keys: tuple[Key, ...]) -> Iterator[Finding]:
    text = str(value)
    if isinstance(value, str | int | float) and "{{" not in text and not names.is_name(kind, text):
        what = "endpoint or deployment" if kind == "endpoint" else kind  # both have the same form
        yield Finding(keys, f"{text[:100]!r} is not a valid {what} name", names.form(kind))


MAX_TIMEOUT_MS = 180_000  # the longest request timeout of a managed online endpoint
TIMEOUT = "SCORING_TIMEOUT_MS"
# Variables of Azure ML's inference server, Python and numerical libraries → their smallest and
# largest value. A number cannot name a file to load.
_NUMBERS: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), (1, 256)),
    "PYTHONUNBUFFERED": (1, 1),
    TIMEOUT: (1, MAX_TIMEOUT_MS),
    "WORKER_COUNT": (1, 64),
}
# A project's own variables: no loader, interpreter or library reads such names.
_OWN = re.compile(r"SCORE_[A-Z0-9_]{1,60}")
_MAX_VALUE = 1000


@rule(
    "deployment-variable",
    scope="online_deployment",
    source="OPENSSL_CONF and others name code that is run",
)
def deployment_variable(subject: Subject) -> Iterator[Finding]:
    """A deployment sets only variables that cannot run code, and no `model_mount_path`."""
    entity = subject.spec.entity
    variables = getattr(entity, "environment_variables", None) or {}
    mount = getattr(entity, "model_mount_path", None)
    is_scored = subject.spec.get("code_configuration") is not None
    yield from deployment_faults(variables, mount, is_scored)


def deployment_faults(
    variables: Mapping[str, object], mount: object, is_scored: bool = True
) -> Iterator[Finding]:
    """Yield a finding for each forbidden setting of a server.

    Forbidden are unknown `variables`, values out of range, and a `mount` path of the model, which
    could shadow a library. `is_scored`: the deployment has a scoring script, not its own server.
    """
    for name, value in variables.items():
        keys, text = ("environment_variables", str(name)), str(value)
        low, high = _NUMBERS.get(str(name), (0, 0))
        if _OWN.fullmatch(str(name)):
            if not text.isprintable() or len(text) > _MAX_VALUE:
                actual = f"`{name}` has {len(text)} characters, or one that cannot be printed"
                yield Finding(keys, actual, f"one line of at most {_MAX_VALUE} characters")
        elif not high:
            listed = ", ".join(_NUMBERS)
            hint = f"call it `SCORE_{str(name).upper()}` if only score.py reads it"
            if not is_scored:
                hint = f"set it in the image: `ENV {name}=…` in the Dockerfile of `build`"
            yield Finding(
                keys,
                f"`{name}` is set, which the template's policy forbids: its value may run code",
                f"one of {listed}, or a name of the project's own that begins with `SCORE_`",
                hint,
            )
        elif not re.fullmatch(r"[1-9][0-9]{0,5}", text) or not low <= int(text) <= high:
            expected = f"a whole number from {low} to {high}"
            yield Finding(keys, f"`{name}` is {text[:40]!r}", expected)
    if mount:
        yield Finding(
            ("model_mount_path",),
            f"the model is mounted at `{str(mount)[:100]}`",
            "no `model_mount_path`: Azure ML's own folder, which AZUREML_MODEL_DIR names",
            "remove the line",
        )


@rule(
    "unpinned-environment",
    scope="online_deployment",
    source="Azure ML resolves a label when it deploys",
)
def moving_environment(subject: Subject) -> Iterator[Finding]:
    """A deployment's environment is a fixed version, or built from this repository's files.

    A label, another registry or a build context elsewhere can change without a review.
    """
    yield from environment_faults(subject.spec)


def environment_faults(deployment: YamlNode) -> Iterator[Finding]:
    """Yield a finding for an environment without a version, or with a remote build context."""
    written = deployment.get("environment")
    part, keys = deployment.child("environment"), ("environment",)
    if isinstance(written, str):
        reference = assets.parse(written)
        if reference is None or not reference.version:
            name = reference.name if reference else "NAME"
            yield Finding(
                keys,
                f"the environment `{written}` has no version",
                f"one version in the workspace: azureml:{name}:1",
                "copy the name and version from the environment's spec",
            )
            return
        root = repository.root(deployment.file)
        part = assets.find(written, "environment", root) or part
    context = part.get("build", "path")
    if isinstance(context, str) and assets.local_path(context, part.folder) is None:
        yield Finding(
            keys,
            f"the build context `{context}` is outside of the repository",
            "a folder of this repository",
            "copy it into the repository, and set `build.path`",
        )


@rule("plaintext-secret", scope="spec", source="reliability: a spec in git is read by everybody")
def plaintext_secret(subject: Subject) -> Iterator[Finding]:
    """No secret is in plain text: specs are in git and on every node."""
    for keys, value in walk(subject.spec.document.data):
        if not isinstance(value, str | int) or isinstance(value, bool):
            continue
        name = _name(keys)
        is_variable = "environment_variables" in keys[:-1] or "credentials" in keys[:-1]
        what = secret_patterns.secret_in(name, value, is_variable)
        if not what and keys[-1:] == ("command",):
            variable = secret_patterns.secret_in_command(str(value))
            what, name = (f"a secret for `{variable}`", "command") if variable else ("", name)
        if what:
            yield Finding(
                keys,
                f"`{name}` contains {what} in plain text",
                "a reference to Key Vault, or the job's identity",
                "remove it and revoke it: anyone who read this file has it",
            )


def _name(keys: tuple[Key, ...]) -> str:
    """Return the name of a field: `api_key` for the keys `inputs.api_key.default`."""
    names = [str(key) for key in keys if not isinstance(key, int)]
    if len(names) > 1 and names[-1] in {"default", "value", "path"}:
        return names[-2]
    return names[-1] if names else ""
