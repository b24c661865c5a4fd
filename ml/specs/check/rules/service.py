"""What azure-ai-ml lets pass and the service refuses: variables, environments, names, traffic.

Each rule also applies to the specs and the parts that a spec names (`ml.specs.check.references`).
"""

from __future__ import annotations

from collections.abc import Iterator

from ml.core import repository
from ml.specs.assets import assets
from ml.specs.check.references import environments, fields
from ml.specs.check.rules.rule import Finding, Subject, rule
from ml.specs.parts import Part
from ml.specs.sdk.errors import in_words

_ONLINE = "reference-yaml-endpoint-online"


@rule(
    "variable-not-text",
    scope="spec",
    source="Azure/azure-cli-extensions#8475: the value of an environment variable is a string",
)
def variable_not_text(subject: Subject) -> Iterator[Finding]:
    """The value of an environment variable is text: `true` and `3` stand in quotes."""
    # The SDK refuses some of them itself.
    refused = {problem.place for problem in subject.spec.problems if problem.code == "wrong-type"}
    for keys, variables in fields(subject.spec.document.data):
        if keys[-1] != "environment_variables" or not isinstance(variables, dict):
            continue
        for name, value in variables.items():
            if not isinstance(value, str) and subject.place(*keys, name) not in refused:
                found, hint = f"`{name}` is {in_words(name, value)}", 'for example "1" or "true"'
                yield Finding((*keys, name), found, "text in quotes", hint)


@rule(
    "bad-environment",
    scope="spec",
    source="azure-ai-ml 1.35 Environment.validate; reference-yaml-environment: build.path, image",
)
def bad_environment(subject: Subject) -> Iterator[Finding]:
    """An environment is an image, with or without a conda file, or a folder with a Dockerfile."""
    for part in environments(subject.spec):
        data, below = part.mapping(), part.keys
        build, image = data.get("build"), data.get("image")
        context = build.get("path") if isinstance(build, dict) else None
        if isinstance(build, dict) and not context:
            hint = "`dockerfile_path` is relative to it, and `Dockerfile` where it is not written"
            yield Finding((*below, "build"), "`build` has no `path`", "the context's folder", hint)
        if build is not None and image is not None:
            found, hint = "`image` and `build` exclude each other", "start the Dockerfile with FROM"
            yield Finding((*below, "image"), found, "one of both", hint)
        if build is not None and data.get("conda_file") is not None:
            found, hint = "`conda_file` does nothing beside `build`", "install in the Dockerfile"
            yield Finding((*below, "conda_file"), found, "an `image`", hint, "warning")
        if not image and build is None:
            hint = "image: mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04"
            yield Finding(below, "it has neither `image` nor `build`", "one of both", hint)
        yield from _dockerfile(part, context)


def _dockerfile(part: Part, context: object) -> Iterator[Finding]:
    """The Dockerfile of a build context that is on this machine is a file in it."""
    folder = assets.local(context, part.folder) if isinstance(context, str) else None
    if folder is None or not folder.exists():
        return  # `missing-file`
    keys, written = (*part.keys, "build", "path"), part.get("build", "dockerfile_path")
    if not folder.is_dir():
        yield Finding(keys, f"`{context}` is a file", "the folder that the Dockerfile is in")
        return
    file = folder / str(written or "Dockerfile")
    if not file.is_file() or not file.resolve().is_relative_to(folder.resolve()):
        yield Finding(
            (*keys[:-1], "dockerfile_path") if written else keys,
            f"`{written or 'Dockerfile'}` is not in `{repository.shown(folder)}`",
            "a Dockerfile in the build context",
            "its path is relative to the context, not to this file",
        )
