"""Linux data-science VMs, for those who ask for one: no public address, sign-in by Entra."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
from pulumi_azure_native import compute, network

from infra.components.network import Network
from infra.components.site import Site
from infra.sizes import SIZES
from infra.workloads import Workstation

ADMINISTRATOR = "azureuser"


@dataclass(frozen=True)
class WorkstationsArgs:
    """The machines, all of them of the kind `data-science-vm`."""

    site: Site
    network: Network
    machines: Sequence[Workstation]


class Workstations(pulumi.ComponentResource):
    """A network card and a machine each; `machines` by name."""

    def __init__(self, name: str, args: WorkstationsArgs) -> None:
        super().__init__("platform:compute:Workstations", name)
        self.machines = {one.name: self._machine(args, one) for one in args.machines}
        self.register_outputs({})

    def _machine(self, args: WorkstationsArgs, machine: Workstation) -> compute.VirtualMachine:
        site = args.site
        card = network.NetworkInterface(
            f"{machine.name}-card",
            network_interface_name=site.names.local("nic", machine.name),
            resource_group_name=site.group,
            location=site.location,
            tags=site.tags,
            ip_configurations=[
                network.NetworkInterfaceIPConfigurationArgs(
                    name="private",
                    subnet=network.SubnetArgs(id=args.network.subnet("workstations")),
                    private_ip_allocation_method="Dynamic",
                )
            ],
            opts=pulumi.ResourceOptions(parent=self),
        )
        made = compute.VirtualMachine(
            machine.name,
            vm_name=site.names.local("vm", machine.name),
            resource_group_name=site.group,
            location=site.location,
            tags=site.tags,
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
            f"{machine.name}-sign-in",
            vm_extension_name="AADSSHLoginForLinux",
            vm_name=made.name,
            resource_group_name=site.group,
            location=site.location,
            tags=site.tags,
            publisher="Microsoft.Azure.ActiveDirectory",
            type="AADSSHLoginForLinux",
            type_handler_version="1.0",
            auto_upgrade_minor_version=True,
            opts=pulumi.ResourceOptions(parent=made),
        )
        return made


def _security(machine: Workstation) -> compute.SecurityProfileArgs:
    """Encrypted on its host; started from signed code alone where it has no GPU.

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
