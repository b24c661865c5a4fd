"""Checks distributed jobs: launcher variables, shared memory, and elastic torchrun."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ml.core.documents import Key
from ml.specs import torchrun
from ml.specs.check.nodes import Node
from ml.specs.check.rules.rule import Finding, rule

_GUIDE = "how-to-train-distributed-gpu: environment variables"
# Variables that a launcher sets per process; a job-wide value would give all the same rank.
_SET = {
    "pytorch": frozenset(
        {"RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"}
    ),
    "tensorflow": frozenset({"TF_CONFIG"}),
}

_ELASTIC = "docs.pytorch.org/docs/stable/elastic/run.html"
# Azure ML sets both for every process of `distribution: pytorch`.
_ENDPOINT = re.compile(r"\$\{?MASTER_ADDR\}?:(?:\$\{?MASTER_PORT\}?|(?P<port>\d+))")
_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"


def _places(node: Node) -> Iterator[tuple[Key, ...]]:
    """Yield the key prefixes of a job's fields: (), and ("trial",) for a sweep."""
    yield ()
    if node.type == "sweep":
        yield ("trial",)


@rule("distributed-variables", scope=("command", "sweep"), source=_GUIDE)
def distributed_variables(node: Node) -> Iterator[Finding]:
    """No job sets an environment variable that its launcher sets for each process."""
    places = [*_places(node)]
    kinds = [str(node.get(*prefix, "distribution", "type")).lower() for prefix in places]
    kind = next((kind for kind in kinds if kind in _SET), "")
    for prefix in places:
        written = node.get(*prefix, "environment_variables")
        for name in written if isinstance(written, dict) else ():
            if name in _SET.get(kind, ()):
                yield Finding(
                    (*prefix, "environment_variables", name),
                    f"`{name}` has one value for all processes",
                    f"the one that `distribution: {kind}` sets for each process",
                    f"remove `{name}`",
                )


@rule("shared-memory", scope="node", source="reference-yaml-job-command: resources.shm_size")
def shared_memory(node: Node) -> Iterator[Finding]:
    """The shared memory of a container is a number above 0 with the unit b, k, m or g."""
    for prefix in _places(node):
        written = node.get(*prefix, "resources", "shm_size")
        if isinstance(written, str) and not re.fullmatch("0*[1-9][0-9]*[bkmgBKMG]", written):
            keys = (*prefix, "resources", "shm_size")
            hint = "data loaders and NCCL use it on each node"
            yield Finding(keys, f"`{written}`", "a size such as 8g", hint)


def _elastic(node: Node) -> tuple[tuple[Key, ...], torchrun.Elastic] | None:
    """Return the command's key prefix and its elastic torchrun (`--nnodes MIN:MAX`), or None."""
    prefix: tuple[Key, ...] = ("trial",) if node.type == "sweep" else ()
    command = node.get(*prefix, "command")
    elastic = torchrun.elastic(command) if isinstance(command, str) else None
    return (prefix, elastic) if elastic else None


def _field(node: Node, prefix: tuple[Key, ...], *keys: Key) -> tuple[tuple[Key, ...], object]:
    """Return (keys, value) of a field; (keys of the command, None) if it is not set."""
    for above in dict.fromkeys((prefix, ())):
        if (value := node.get(*above, *keys)) is not None:
            return (*above, *keys), value
    return (*prefix, "command"), None


@rule("elastic-nodes", scope=("command", "sweep"), source=f"{_ELASTIC}: --nnodes MIN:MAX")
def elastic_nodes(node: Node) -> Iterator[Finding]:
    """The `instance_count` of an elastic job equals MAX of torchrun's `--nnodes MIN:MAX`."""
    if elastic := _elastic(node):
        prefix, torch = elastic
        keys, count = _field(node, prefix, "resources", "instance_count")
        nodes = count if isinstance(count, int) else 1
        if not 1 <= torch.least <= torch.most == nodes:
            actual = f"`--nnodes {torch.least}:{torch.most}` for instance_count {nodes}"
            hint = f"--nnodes {min(max(1, torch.least), nodes)}:{nodes}, or change instance_count"
            yield Finding(keys, actual, f"MIN:{nodes}, with MIN from 1 to {nodes}", hint)


@rule(
    "elastic-processes",
    scope=("command", "sweep"),
    source="how-to-train-distributed-gpu: one per node",
)
def elastic_processes(node: Node) -> Iterator[Finding]:
    """An elastic job starts one torchrun per node, which starts the processes."""
    if elastic := _elastic(node):
        keys, kind = _field(node, elastic[0], "distribution", "type")
        actual = (
            f"`distribution` is {kind}" if kind else "no `distribution`: one node runs torchrun"
        )
        expected = "type: pytorch, process_count_per_instance: 1"
        if str(kind).lower() != "pytorch":
            yield Finding(keys, actual, expected)
            return
        keys, count = _field(node, elastic[0], "distribution", "process_count_per_instance")
        if isinstance(count, int) and count != 1:
            hint = f"torchrun --nproc-per-node {count} starts {count} processes on each node"
            yield Finding(keys, f"{count} torchruns on each node", expected, hint)


@rule(
    "elastic-rendezvous", scope=("command", "sweep"), source=f"{_ELASTIC}: --rdzv-*, --max-restarts"
)
def elastic_rendezvous(node: Node) -> Iterator[Finding]:
    """An elastic job has a c10d rendezvous on the first node, and `--max-restarts`."""
    if (elastic := _elastic(node)) is None:
        return
    prefix, torch = elastic
    keys: tuple[Key, ...] = (*prefix, "command")
    expected = "--rdzv-backend c10d --rdzv-endpoint $MASTER_ADDR:$MASTER_PORT --rdzv-id NAME"
    endpoint = torch.options.get("rdzv-endpoint", "")
    address = _ENDPOINT.fullmatch(endpoint)
    port = int(address["port"]) if address and address["port"] else 1024
    if torch.options.get("rdzv-backend") != "c10d" or not torch.options.get("rdzv-id"):
        yield Finding(keys, "torchrun has no c10d rendezvous with an id", expected)
    elif address is None or not 1024 <= port <= 65535:
        yield Finding(keys, f"the rendezvous endpoint is `{endpoint}`", expected)
    if not re.fullmatch("[1-9][0-9]*|[$].*", torch.options.get("max-restarts", "0")):
        actual = "torchrun has no `--max-restarts`: the loss of a node ends the job"
        yield Finding(keys, actual, "--max-restarts 10")
    variables, _ = _field(node, prefix, "environment_variables")
    if str(_field(node, prefix, "environment_variables", _STORE)[1]) != "1":
        actual = "PyTorch 2.13 cannot add nodes while torchrun shares its TCP store"
        hint = "a node that joins ends with DistStoreError after 60 s"
        yield Finding(
            variables, actual, f'environment_variables: {{{_STORE}: "1"}}', hint, "warning"
        )
