"""Compare jobs with the clusters that they name: nodes, GPUs, InfiniBand, preemption.

A mismatch in every environment that declares the cluster is an error. A mismatch in some of them is
a warning that names them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from ml.core.documents import Key
from ml.specs.assets import packages
from ml.specs.check.clusters import Cluster, Placed
from ml.specs.check.rules.rule import Finding, rule

# Values of `distribution.type` that start one process per GPU.
_BY_GPU = frozenset({"pytorch", "mpi"})
_RESUMES = re.compile(r"resum|checkpoint|restart", re.I)
# A job of at most this many seconds loses little when it restarts.
_SHORT_S = 3600


def _misfits(
    job: Placed,
    keys: tuple[Key, ...],
    actual: str,
    expected: Callable[[Cluster], str],
    fits: Callable[[Cluster], bool],
) -> Iterator[Finding]:
    wrong = [cluster for cluster in job.clusters if not fits(cluster)]
    if not wrong:
        return
    first = wrong[0]
    where = ", ".join(cluster.environment for cluster in wrong)
    yield Finding(
        keys,
        f"{actual} `{first.name}` of {where} ({first.size})",
        expected(first),
        f"infra/Pulumi.{first.environment}.yaml declares it",
        "error" if len(wrong) == len(job.clusters) else "warning",
    )


@rule(
    "cluster-nodes", scope="cluster", source="how-to-create-attach-compute-cluster: max_instances"
)
def cluster_nodes(job: Placed) -> Iterator[Finding]:
    """A job requests no more nodes than its cluster has; it would stay queued forever."""
    keys, _ = job.field("resources", "instance_count")
    yield from _misfits(
        job,
        keys,
        f"{job.nodes} nodes do not fit into",
        lambda cluster: f"at most {cluster.max_nodes}",
        lambda cluster: job.nodes <= cluster.max_nodes,
    )


@rule(
    "cluster-trials",
    scope="cluster",
    severity="warning",
    source="reference-yaml-job-sweep: max_concurrent_trials",
)
def cluster_trials(job: Placed) -> Iterator[Finding]:
    """The cluster has enough nodes for all concurrent trials; otherwise some stay queued."""
    at_once = job.node.get("limits", "max_concurrent_trials")
    if job.node.type != "sweep" or not isinstance(at_once, int):
        return
    for finding in _misfits(
        job,
        ("limits", "max_concurrent_trials"),
        f"{at_once} concurrent trials with {job.nodes} nodes each do not fit into",
        lambda cluster: f"at most {max(1, cluster.max_nodes // job.nodes)} at once",
        lambda cluster: job.nodes > cluster.max_nodes or at_once * job.nodes <= cluster.max_nodes,
    ):
        yield Finding(finding.keys, finding.actual, finding.expected, finding.hint, "warning")


@rule("cluster-gpus", scope="cluster", source="how-to-train-distributed-gpu: process per GPU")
def cluster_gpus(job: Placed) -> Iterator[Finding]:
    """A distributed job starts no more processes per node than the node has GPUs."""
    _, kind = job.field("distribution", "type")
    keys, count = job.field("distribution", "process_count_per_instance")
    if str(kind).lower() not in _BY_GPU or not isinstance(count, int):
        return
    yield from _misfits(
        job,
        keys,
        f"{count} processes per node are too many for",
        lambda cluster: f"{cluster.gpus}: one process per GPU",
        lambda cluster: cluster.gpus == 0 or count <= cluster.gpus,
    )


@rule(
    "cluster-idle-gpus",
    scope="cluster",
    severity="warning",
    source="how-to-train-distributed-gpu: process per GPU",
)
def cluster_idle_gpus(job: Placed) -> Iterator[Finding]:
    """A distributed job starts a process for every GPU of a node."""
    _, kind = job.field("distribution", "type")
    keys, written = job.field("distribution", "process_count_per_instance")
    count = written if isinstance(written, int) else 1
    idle = [cluster for cluster in job.clusters if cluster.gpus > count]
    if str(kind).lower() in _BY_GPU and idle:
        yield Finding(
            keys if written is not None else job.field("distribution")[0],
            f"{count} of {idle[0].gpus} GPUs of `{idle[0].name}` ({idle[0].size}) get a process",
            "one process for each GPU",
            f"process_count_per_instance: {idle[0].gpus}",
        )


@rule("cluster-memory", scope="cluster", source="shared memory is memory of the node")
def cluster_memory(job: Placed) -> Iterator[Finding]:
    """The shared memory of a job fits into the memory of a node."""
    keys, written = job.field("resources", "shm_size")
    size = re.fullmatch("([0-9]+)([bkmg])", str(written).lower())
    if size is None:
        return  # `shared-memory`
    gib = int(size[1]) * 1024 ** ("bkmg".index(size[2]) - 3)
    yield from _misfits(
        job,
        keys,
        f"{written} of shared memory do not fit into a node of",
        lambda cluster: f"less than its {cluster.memory_gib} GiB",
        lambda cluster: not cluster.memory_gib or gib < cluster.memory_gib,
    )


@rule("cluster-build", scope="cluster", source="a build without CUDA computes on the node's CPU")
def cluster_build(job: Placed) -> Iterator[Finding]:
    """A job's environment is built for its nodes: for CUDA on GPU nodes, for CPU on others."""
    if job.node.environment is None:
        return
    part, keys = job.node.environment
    device = packages.device_of(part, *keys)
    text, where = str(part.get(*keys)), part.place(*keys)
    if device == "cpu":
        for finding in _misfits(
            job,
            keys,
            f"`{text}` is built for CPU, which does not use the GPUs of",
            lambda cluster: "an environment with a build for CUDA, such as azureml:ml-torch-gpu:1",
            lambda cluster: cluster.gpus == 0,
        ):
            yield replace(finding, place=where)
    elif device == "cuda" and not any(cluster.gpus for cluster in job.clusters):
        actual = f"`{text}` is built for CUDA, and `{job.clusters[0].name}` has no GPU"
        expected = "an environment with a build for CPUs, which is smaller"
        yield Finding(keys, actual, expected, severity="warning", place=where)


@rule(
    "cluster-infiniband",
    scope="cluster",
    severity="warning",
    source="how-to-train-distributed-gpu: accelerating with InfiniBand",
)
def cluster_infiniband(job: Placed) -> Iterator[Finding]:
    """A distributed job on several GPU nodes uses a cluster with InfiniBand."""
    keys, kind = job.field("distribution", "type")
    slow = [cluster for cluster in job.clusters if cluster.gpus and not cluster.infiniband]
    if kind is not None and job.nodes > 1 and slow:
        yield Finding(
            keys,
            f"{job.nodes} nodes of `{slow[0].name}` ({slow[0].size}) have no InfiniBand",
            "a cluster with the preset `infiniband`, or one node with more GPUs",
            "name such a cluster in `compute:`, or set `instance_count: 1`",
        )


@rule(
    "cluster-spot",
    scope="cluster",
    severity="warning",
    source="how-to-manage-optimize-cost: low-priority VMs are evicted",
)
def cluster_spot(job: Placed) -> Iterator[Finding]:
    """A job on spot nodes that may run for over an hour resumes from a checkpoint."""
    spot = [cluster for cluster in job.clusters if cluster.spot]
    _, limit = job.field("limits", "timeout")
    _, command = job.field("command")
    is_short = isinstance(limit, int) and limit <= _SHORT_S
    if job.node.type != "command" or not spot or is_short or _RESUMES.search(str(command)):
        return
    yield Finding(
        ("compute",) if job.node.get("compute") else (),
        f"`{spot[0].name}` has spot nodes, and the command does not resume after an eviction",
        "a command that reads its last checkpoint, or `limits.timeout` of an hour at most",
        "ml run SPEC --evict-after 20s simulates an eviction",
    )
