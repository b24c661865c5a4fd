"""A picture of an environment: who reaches what, as one SVG without scripts or fonts of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from infra.preview.captured import Capture, Resource

# Columns from left to right: what is in each, by the kind of resource.
COLUMNS: Mapping[str, Sequence[str]] = {
    "who": (
        "managedidentity:FederatedIdentityCredential",
        "managedidentity:UserAssignedIdentity",
    ),
    "Azure ML": (
        "machinelearningservices:Workspace",
        "machinelearningservices:Compute",
        "machinelearningservices:Datastore",
        "machinelearningservices:OnlineEndpoint",
        "machinelearningservices:Registry",
        "compute:VirtualMachine",
    ),
    "network": ("network:VirtualNetwork", "network:PrivateEndpoint"),
    "data and images": (
        "storage:StorageAccount",
        "keyvault:Vault",
        "containerregistry:Registry",
    ),
    "seen by": ("operationalinsights:Workspace", "applicationinsights:Component"),
}
# Letters stay readable where a pull request shows it, 900 pixels wide.
WIDTH, HEIGHT, GAP, TOP, ACROSS, LONGEST = 184, 38, 10, 56, 226, 25
# Inputs that say what a resource reaches, and not only where it is registered.
LEADING = frozenset(
    {
        *("identity", "primaryUserAssignedIdentity", "resourceName"),
        *("privateLinkServiceConnections", "storageAccount", "keyVault", "containerRegistry"),
        *("applicationInsights", "workspaceName", "workspaceResourceId", "managedNetwork"),
        "properties",
    }
)


@dataclass(frozen=True)
class _Box:
    resource: Resource
    column: int
    row: int

    @property
    def x(self) -> int:
        return 20 + ACROSS * self.column

    @property
    def y(self) -> int:
        return TOP + self.row * (HEIGHT + GAP)


def svg(capture: Capture) -> str:
    """The picture; boxes in columns, and a line for each thing that reaches another."""
    boxes = _placed(capture)
    height = max([box.y for box in boxes.values()], default=TOP) + HEIGHT + 24
    width = ACROSS * len(COLUMNS) + 20
    title = escape(f"{capture.stack}: who reaches what")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
        f' aria-label="{title}" font-family="sans-serif" font-size="13">',
        f"<title>{title}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    parts += [
        f'<text x="{20 + ACROSS * at}" y="36" fill="#555555" font-size="15">{escape(column)}</text>'
        for at, column in enumerate(COLUMNS)
    ]
    empty = [
        at for at in range(len(COLUMNS)) if not any(one.column == at for one in boxes.values())
    ]
    parts += [
        f'<text x="{20 + ACROSS * at}" y="{TOP + 16}" fill="#555555" font-size="11">none</text>'
        for at in empty
    ]
    parts += [_line(boxes[a], boxes[b]) for a, b in _reaching(capture) if a in boxes and b in boxes]
    parts += [_box(box) for box in boxes.values()]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _placed(capture: Capture) -> dict[str, _Box]:
    boxes: dict[str, _Box] = {}
    for at, kinds in enumerate(COLUMNS.values()):
        here = [one for kind in kinds for one in capture.provided if one.kind == kind]
        for down, one in enumerate(here):
            boxes[one.urn] = _Box(one, at, down)
    return boxes


def _reaching(capture: Capture) -> list[tuple[str, str]]:
    found = {
        (one.urn, urn)
        for one in capture.provided
        for key, urns in one.uses.items()
        if key in LEADING
        for urn in urns
    }
    return sorted(found)


def _box(box: _Box) -> str:
    kind, name = box.resource.kind.split(":")[1], box.resource.name
    shown = name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
    return (
        f'<g><rect x="{box.x}" y="{box.y}" width="{WIDTH}" height="{HEIGHT}" rx="4" fill="#f3f6fb"'
        f' stroke="#3b6ea5"/><text x="{box.x + 8}" y="{box.y + 16}">{escape(shown)}</text>'
        f'<text x="{box.x + 8}" y="{box.y + 31}" fill="#555555"'
        f' font-size="11">{escape(kind)}</text>'
        "</g>"
    )


def _line(start: _Box, end: _Box) -> str:
    """A line between two boxes that runs behind no other: between columns, then between rows."""
    left, right = (start, end) if start.x <= end.x else (end, start)
    y1, y2 = left.y + HEIGHT // 2, right.y + HEIGHT // 2
    x1, x2 = left.x + WIDTH, right.x
    if left.column == right.column:
        x2 = right.x + WIDTH
        return f'<path d="M{x1} {y1}C{x1 + 30} {y1} {x2 + 30} {y2} {x2} {y2}" {_STROKE}/>'
    way, between = f"M{x1} {y1}", ACROSS - WIDTH
    if right.column > left.column + 1:
        # A lane of its own for each column that is gone to, above the row.
        lane = right.y - 2 * right.column + 1
        middle, there = x1 + between // 2, x1 + between
        way += f"C{middle} {y1} {middle} {lane} {there} {lane}L{x2 - between} {lane}"
        x1, y1 = x2 - between, lane
    middle = (x1 + x2) // 2
    return f'<path d="{way}C{middle} {y1} {middle} {y2} {x2} {y2}" {_STROKE}/>'


_STROKE = 'fill="none" stroke="#9db4cf" stroke-width="1"'
