"""The forms of texts that stand in more than one part of the settings."""

from __future__ import annotations

from infra.fields import Form

# 254 is the most that an address has (RFC 5321), and a tag takes 256.
EMAIL = Form(r"(?=.{5,254}$)[^@\s<>,;]+@[^@\s<>,;]+\.[^@\s<>,;]+", "one e-mail address")
GUID = Form(
    r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "a GUID such as 6f8d2c1e-0000-4000-8000-000000000000",
)
NAME = Form(
    r"(?=.{3,16}$)[a-z](-?[a-z0-9])+",
    "3 to 16 lower-case letters, digits and single hyphens, a letter first",
)
# A hyphen takes a letter later in the name: how-to-create-attach-compute-cluster.
COMPUTE = Form(
    r"(?=.{3,16}$)(?!.*-\d+$)[a-z](-?[a-z0-9])+",
    "3 to 16 lower-case letters, digits and single hyphens, a letter first and one after the last"
    " hyphen",
)
CIDR = Form(r"\d{1,3}(\.\d{1,3}){3}/\d{1,2}", "a range such as 10.60.0.0/16")
# Which of them there are, `compute_agreement` knows.
VM_SIZE = Form(r"\w+", "a VM size such as Standard_E4ds_v4")


def resource(kind: str) -> Form:
    """The form of the id of a resource of a type."""
    group = r"/subscriptions/[0-9a-fA-F-]{36}/resourceGroups/[\w().-]+"
    return Form(
        rf"{group}/providers/{kind.replace('.', '[.]')}/\w+",
        f"an id such as /subscriptions/…/resourceGroups/…/providers/{kind}/…",
    )
