"""What jobs run on: clusters that scale to zero, each with an identity of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
from pulumi_azure_native import machinelearningservices as ml
from pulumi_azure_native import managedidentity

from infra.components.network import Network
from infra.components.security import Part
from infra.components.site import Site
from infra.settings import BUILDER
from infra.workloads import Cluster, Workstation


@dataclass(frozen=True)
class ComputeArgs:
    """`nodes` is where nodes stand when it is our own; None in the managed network.

    A node without a public address is made once the private endpoint of the workspace is there,
    by which it speaks with Azure ML (how-to-secure-training-vnet, "no public IP"); so is one in
    the managed network by Azure's own module (avm/res/machine-learning-services/workspace).
    `granted` are the rights on the workspace: its own identity has to have one before it makes
    anything.
    """

    site: Site
    workspace: pulumi.Input[str]
    clusters: Sequence[Cluster]
    instances: Sequence[Workstation]
    identities: Mapping[str, managedidentity.UserAssignedIdentity]
    network: Network | None
    nodes: Network | None
    granted: Sequence[pulumi.Resource]


class Compute(pulumi.ComponentResource):
    """Clusters, and compute instances for those who have one."""

    def __init__(self, name: str, args: ComputeArgs) -> None:
        super().__init__("platform:compute:Compute", name)
        waits = [*args.granted, *(args.network.names if args.network else ())]
        self._opts = pulumi.ResourceOptions(parent=self, depends_on=waits)
        self.clusters = {one.name: self._cluster(args, one) for one in args.clusters}
        for instance in args.instances:
            self._instance(args, instance)
        self.register_outputs({})

    def _cluster(self, args: ComputeArgs, cluster: Cluster) -> ml.Compute:
        return ml.Compute(
            cluster.name,
            compute_name=cluster.name,
            resource_group_name=args.site.group,
            workspace_name=args.workspace,
            location=args.site.location,
            tags=args.site.tags,
            identity=ml.ManagedServiceIdentityArgs(
                type="UserAssigned",
                user_assigned_identities=[args.identities[cluster.name].id],
            ),
            properties=ml.AmlComputeArgs(
                compute_type="AmlCompute",
                disable_local_auth=True,
                properties=ml.AmlComputePropertiesArgs(
                    vm_size=cluster.vm_size,
                    vm_priority="LowPriority" if cluster.spot else "Dedicated",
                    os_type="Linux",
                    enable_node_public_ip=False,
                    remote_login_port_public_access="Disabled",
                    subnet=_subnet(args, "builds" if cluster.name == BUILDER else "compute"),
                    scale_settings=ml.ScaleSettingsArgs(
                        min_node_count=cluster.min_nodes,
                        max_node_count=cluster.max_nodes,
                        node_idle_time_before_scale_down=f"PT{cluster.idle_minutes}M",
                    ),
                ),
            ),
            opts=self._opts,
        )

    def _instance(self, args: ComputeArgs, instance: Workstation) -> None:
        person = ml.AssignedUserArgs(object_id=instance.person, tenant_id=args.site.tenant)
        ml.Compute(
            instance.name,
            compute_name=args.site.names.instance(instance.name),
            resource_group_name=args.site.group,
            workspace_name=args.workspace,
            location=args.site.location,
            tags=args.site.tags,
            properties=ml.ComputeInstanceArgs(
                compute_type="ComputeInstance",
                disable_local_auth=True,
                properties=ml.ComputeInstancePropertiesArgs(
                    vm_size=instance.size,
                    application_sharing_policy="Personal",
                    compute_instance_authorization_type="personal",
                    personal_compute_instance_settings=ml.PersonalComputeInstanceSettingsArgs(
                        assigned_user=person
                    ),
                    enable_node_public_ip=False,
                    enable_sso=True,
                    ssh_settings=ml.ComputeInstanceSshSettingsArgs(ssh_public_access="Disabled"),
                    idle_time_before_shutdown=f"PT{instance.idle_minutes}M",
                    subnet=_subnet(args, "compute"),
                ),
            ),
            opts=self._opts,
        )


def _subnet(args: ComputeArgs, part: Part) -> ml.ResourceIdArgs | None:
    return ml.ResourceIdArgs(id=args.nodes.subnet(part)) if args.nodes else None
