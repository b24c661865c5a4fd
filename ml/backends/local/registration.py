"""Register outputs that name an asset when the run completes, as on Azure ML.

A registered asset is a folder with an Azure ML spec (for `az ml data create -f` or `az ml model
create -f`) and its content. It is immutable: its files are read-only hard links to the run's, and
their digest is checked at each use. "A name can be set without setting a version"
(azure.ai.ml.Output): then the version is the next number.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ml.backends.local import files
from ml.backends.runs import Run
from ml.core import faults, home, repository
from ml.core.errors import Problem
from ml.core.files import locked
from ml.specs.assets import assets
from ml.specs.plan.plans import (
    Asset,
    InputPlan,
    OutputPlan,
    PipelinePlan,
    Plan,
    supplied_inputs,
)

MODELS = frozenset({"custom_model", "mlflow_model", "triton_model"})
CONTENT = "content"
_SCHEMA = "https://azuremlschemas.azureedge.net/latest/{}.schema.json"
_UNFINISHED = ".unfinished-"


def register_outputs(outputs: Mapping[str, OutputPlan], run: Run) -> Run:
    """Register the named outputs of a completed run; return it, with status Failed on an error.

    Outputs that were not written are skipped; the run already has a warning about them. If the
    version exists with the same content, it is reused; with other content it is an error.
    """
    if run.status != "Completed":
        return run
    done, problem = _registered(outputs, run)
    if problem is not None:
        return replace(run, status="Failed", error=problem, registered=done, warnings=())
    return replace(run, registered=done) if done else run


def _registered(
    outputs: Mapping[str, OutputPlan], run: Run
) -> tuple[dict[str, str], Problem | None]:
    done: dict[str, str] = {}
    for name, output in outputs.items():
        path = run.outputs.get(name)
        if output.asset is None or path is None or not _is_written(path):
            continue
        try:
            result = _register(output, output.asset, path.resolve(), run, name)
        except OSError as error:
            problem = faults.explain(error)
            if problem is None:
                raise
            return done, problem
        if isinstance(result, Problem):
            return done, result
        done[name] = str(result)
    return done, None


def without_assets(outputs: Mapping[str, OutputPlan]) -> dict[str, OutputPlan]:
    """Return the outputs without assets for trials: a sweep registers only its best one's."""
    return {name: replace(output, asset=None) for name, output in outputs.items()}


def differences(plan: Plan) -> Iterator[str]:
    """Yield a line for each input asset from a local job, and each output to be registered."""
    for field, data in supplied_inputs(plan):
        if data.asset is None or data.asset.version.startswith("@"):
            continue
        if data.asset.made_by:
            yield f"local: `{field}` → {data.asset}, which {data.asset.made_by} registered here"
        elif run := _other(data):
            yield (
                f"local: `{field}` → {data.asset} as the repository defines it; {run} registered "
                "another of that name and version here"
            )
    for name, output in _outputs(plan):
        if output.asset is None:
            continue
        version = output.asset.version
        which = f"`{output.asset}`" if version else f"the next version of `{output.asset.name}`"
        line = f"local: output `{name}` → registered here as {which}"
        if version and _place(output, output.asset).exists():
            by = assets.read_registered(_place(output, output.asset)).tag("run")
            line += f", which {by} has registered already: other content fails the run"
        yield line


def _outputs(plan: Plan) -> Iterator[tuple[str, OutputPlan]]:
    yield from plan.outputs.items()
    if isinstance(plan, PipelinePlan):
        for step in plan.steps.values():
            yield from _outputs(step.plan)


def kind_of(type_: str) -> str:
    """Return the asset kind of an output's type: "model" or "data"."""
    return "model" if type_ in MODELS else "data"


def _register(output: OutputPlan, asset: Asset, path: Path, run: Run, name: str) -> Asset | Problem:
    digest = assets.digest(path)
    # The lock gives two concurrent runs different versions.
    with locked(home.assets() / ".lock"):
        if not asset.version:
            earlier = _registered_before(output, asset.name, run, name, digest)
            asset = Asset(asset.name, earlier or _next(output, asset.name))
        place = _place(output, asset)
        if place.exists():
            registered = assets.read_registered(place)
            if registered.tag("digest") == digest:
                return asset
            return _immutable(output, asset, registered, path, run)
        unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=home.assets()))
        try:
            content = unfinished / CONTENT
            if path.is_dir():
                shutil.copytree(path, content, copy_function=_link)
                written = f"./{CONTENT}"
            else:
                content.mkdir()
                _link(str(path), str(content / path.name))
                written = f"./{CONTENT}/{path.name}"
            _write(unfinished, output, asset, written, run, name, digest)
            unfinished.chmod(0o755)
            place.parent.mkdir(parents=True, exist_ok=True)
            unfinished.rename(place)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return asset


def _write(
    folder: Path, output: OutputPlan, asset: Asset, path: str, run: Run, name: str, digest: str
) -> None:
    """Write the asset's spec: each line is a field, with its value as JSON, which is YAML."""
    spec = {
        "$schema": _SCHEMA.format(kind_of(output.type)),
        "name": asset.name,
        "version": asset.version,
        "type": output.type,
        "path": path,
        "tags": {"run": run.name, "run_id": run.id, "output": name, "digest": digest},
    }
    lines = (f"{key}: {json.dumps(value)}\n" for key, value in spec.items())
    (folder / assets.REGISTERED).write_text("".join(lines))


def _next(output: OutputPlan, name: str) -> str:
    """Return the next version number, after those registered here or defined by specs."""
    kind, root = kind_of(output.type), repository.root(Path(output.place.path).absolute())
    taken = [path.name for path in (home.assets() / kind / name).glob("*")]
    taken += [
        spec.version for spec in assets.definitions(root) if (spec.kind, spec.name) == (kind, name)
    ]
    return str(max((int(version) for version in taken if version.isdecimal()), default=0) + 1)


def _registered_before(
    output: OutputPlan, asset: str, run: Run, name: str, digest: str
) -> str | None:
    """Return the version that a resumed run registered with this content before; None if none."""
    if not run.pauses:
        return None
    wanted = (run.id, name, digest)
    for place in (home.assets() / kind_of(output.type) / asset).glob("*"):
        registered = assets.read_registered(place)
        if tuple(registered.tag(tag) for tag in ("run_id", "output", "digest")) == wanted:
            return place.name
    return None


def _place(output: OutputPlan, asset: Asset) -> Path:
    return home.assets() / kind_of(output.type) / asset.name / asset.version


def _other(data: InputPlan) -> str:
    """Return the run that registered other content as the input's asset; "" if none did."""
    asset = data.asset
    if asset is None:
        return ""
    folder = home.assets() / kind_of(data.type) / asset.name / asset.version
    registered = assets.read_registered(folder) if (folder / assets.REGISTERED).is_file() else None
    return registered.tag("run") if registered and registered.tag("digest") != asset.digest else ""


def _immutable(
    output: OutputPlan, asset: Asset, registered: assets.AssetSpec, path: Path, run: Run
) -> Problem:
    by = f"is registered already, by {registered.tag('run')}, with other content"
    if registered.tag("run_id") == run.id:
        by = "was registered by this run before it was stopped, from another best trial"
    return Problem(
        "asset-immutable",
        f"`{asset}` {by}",
        "an unused version, since assets are immutable",
        f"give `outputs.{output.name}` another `version:`, or none for the next one; "
        f"what the run wrote is kept in {repository.shown(path)}",
        output.place,
    )


def _is_written(path: Path) -> bool:
    return path.is_file() or (path.is_dir() and any(path.iterdir()))


def _link(source: str, target: str) -> None:
    """Create `target` as a hard link to `source`, and make the file read-only.

    A file with other hard links, or a symbolic link, may be the user's data, so it is copied.
    """
    state = os.lstat(source)
    if stat.S_ISREG(state.st_mode) and state.st_nlink == 1:
        files.link(source, target)
    else:
        shutil.copy2(source, target)
    with suppress(OSError):  # another user owns the file; its digest still detects changes
        mode = Path(target).stat().st_mode
        Path(target).chmod(mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
