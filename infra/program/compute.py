"""Compute: clusters that scale to zero, compute instances, and Linux data-science VMs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
from pulumi_azure_native import compute, managedidentity, network
from pulumi_azure_native import machinelearningservices as ml

from infra.program.network import Network, SubnetRole
from infra.program.site import Component, Options, Site
from infra.settings.azure import SIZES
from infra.settings.model import BUILDER, Cluster, Workstation

ADMINISTRATOR = "azureuser"


class Workstations(Component):
    """VMs without a public address, with sign-in by Entra; `machines` maps names to VMs."""

    def __init__(self, name: str, site: Site, network: Network, opts: Options = None) -> None:
        super().__init__("compute:Workstations", name, opts, "workstations")
        self.machines = {
            machine.name: self._machine(site, network, machine)
            for machine in site.settings.machines("data-science-vm")
        }
        self.register_outputs({})

    def _machine(
        self, site: Site, stack_network: Network, machine: Workstation
    ) -> compute.VirtualMachine:
        card = network.NetworkInterface(
            self.child(f"{machine.name}-card"),
            network_interface_name=site.names.local("nic", machine.name),
            **site.place,
            ip_configurations=[
                network.NetworkInterfaceIPConfigurationArgs(
                    name="private",
                    subnet=network.SubnetArgs(id=stack_network.subnet("workstations")),
                    private_ip_allocation_method="Dynamic",
                )
            ],
            opts=pulumi.ResourceOptions(parent=self),
        )
        resource = compute.VirtualMachine(
            self.child(machine.name),
            vm_name=site.names.local("vm", machine.name),
            **site.place,
            identity=compute.VirtualMachineIdentityArgs(
                type=compute.ResourceIdentityType.SYSTEM_ASSIGNED
            ),
            hardware_profile=compute.HardwareProfileArgs(vm_size=machine.size),
            network_profile=compute.NetworkProfileArgs(
                network_interfaces=[compute.NetworkInterfaceReferenceArgs(id=card.id)]
            ),
            os_profile=_system(machine),
            security_profile=_security(machine),
            storage_profile=compute.StorageProfileArgs(
                image_reference=compute.ImageReferenceArgs(
                    publisher="microsoft-dsvm",
                    offer="ubuntu-2204",
                    sku="2204-gen2",
                    version="latest",
                ),
                os_disk=compute.OSDiskArgs(
                    create_option="FromImage",
                    delete_option="Delete",
                    managed_disk=compute.ManagedDiskParametersArgs(
                        storage_account_type="StandardSSD_LRS"
                    ),
                ),
            ),
            opts=pulumi.ResourceOptions(parent=self),
        )
        compute.VirtualMachineExtension(
            self.child(f"{machine.name}-sign-in"),
            vm_extension_name="AADSSHLoginForLinux",
            vm_name=resource.name,
            **site.place,
            publisher="Microsoft.Azure.ActiveDirectory",
            type="AADSSHLoginForLinux",
            type_handler_version="1.0",
            auto_upgrade_minor_version=True,
            opts=pulumi.ResourceOptions(parent=resource),
        )
        return resource


def _security(machine: Workstation) -> compute.SecurityProfileArgs:
    """Return the security profile: encryption at host, and Trusted Launch for sizes without a GPU.

    Secure Boot would not load the image's NVIDIA driver, and ND A100 sizes have no Trusted Launch
    (azure/virtual-machines/trusted-launch, "Virtual machines sizes").
    """
    if SIZES[machine.size].gpus:
        return compute.SecurityProfileArgs(encryption_at_host=True)
    firmware = compute.UefiSettingsArgs(secure_boot_enabled=True, v_tpm_enabled=True)
    return compute.SecurityProfileArgs(
        encryption_at_host=True, security_type="TrustedLaunch", uefi_settings=firmware
    )


def _system(machine: Workstation) -> compute.OSProfileArgs:
    key = compute.SshPublicKeyArgs(
        path=f"/home/{ADMINISTRATOR}/.ssh/authorized_keys", key_data=machine.ssh_key
    )
    return compute.OSProfileArgs(
        computer_name=machine.name,
        admin_username=ADMINISTRATOR,
        linux_configuration=compute.LinuxConfigurationArgs(
            disable_password_authentication=True,
            ssh=compute.SshConfigurationArgs(public_keys=[key]),
        ),
    )


@dataclass(frozen=True)
class ComputeArgs:
    """The arguments of `Compute` besides the settings.

    A node without a public address reaches Azure ML through the workspace's private endpoint, so
    compute is created after that endpoint (how-to-secure-training-vnet, "no public IP"). Azure's
    module does the same in a managed network (avm/res/machine-learning-services/workspace).
    """

    site: Site
    workspace: pulumi.Input[str]
    identities: Mapping[str, managedidentity.UserAssignedIdentity]
    network: Network | None
    # Role assignments on the workspace; its identity needs one before it creates compute.
    granted: Sequence[pulumi.Resource]


class Compute(Component):
    """Clusters, by name, and compute instances."""

    def __init__(self, name: str, args: ComputeArgs, opts: Options = None) -> None:
        super().__init__("compute:Compute", name, opts, "compute")
        settings = args.site.settings
        depends_on = [*args.granted, *(args.network.dns_records if args.network else ())]
        # Creating the first compute also creates the managed network (pulumi-azure-native#3212).
        patience = pulumi.CustomTimeouts(create="100m")
        self._opts = pulumi.ResourceOptions(
            parent=self, depends_on=depends_on, custom_timeouts=patience
        )
        self.clusters: dict[str, ml.Compute] = {}
        # The image builder, which needs the least quota, comes first; in a managed network the
        # others depend on it.
        for cluster in sorted(settings.computes, key=lambda cluster: cluster.name != BUILDER):
            resource = self._cluster(args, cluster)
            if not self.clusters and settings.network.isolation == "managed":
                depends_on = [*depends_on, resource]
                self._opts = pulumi.ResourceOptions(parent=self, depends_on=depends_on)
            self.clusters[cluster.name] = resource
        for instance in settings.machines("compute-instance"):
            self._instance(args, instance)
        self.register_outputs({})

    def _cluster(self, args: ComputeArgs, cluster: Cluster) -> ml.Compute:
        return ml.Compute(
            self.child(cluster.name),
            compute_name=cluster.name,
            **args.site.place,
            workspace_name=args.workspace,
            identity=ml.ManagedServiceIdentityArgs(
                type="UserAssigned", user_assigned_identities=[args.identities[cluster.name].id]
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
        person = ml.AssignedUserArgs(object_id=instance.person, tenant_id=args.site.settings.tenant)
        ml.Compute(
            self.child(instance.name),
            compute_name=args.site.names.instance(instance.name),
            **args.site.place,
            workspace_name=args.workspace,
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


def _subnet(args: ComputeArgs, role: SubnetRole) -> ml.ResourceIdArgs | None:
    """Return the subnet in the virtual network; None unless `isolation` is own."""
    if args.network is None or args.site.settings.network.isolation != "own":
        return None
    return ml.ResourceIdArgs(id=args.network.subnet(role))
