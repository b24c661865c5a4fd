"""The picture of an environment: a box for each thing, and lines that can be followed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree

import pytest

from infra.preview.captured import Capture, Resource
from infra.preview.topology import svg
from tests.infra.programs import own

NAME = "{http://www.w3.org/2000/svg}"
STACK = Resource("urn:stack", "pulumi:pulumi:Stack", "platform-dev", "", {}, custom=False)
Point = tuple[float, float]


def _made(name: str, kind: str, **uses: str) -> Resource:
    reached = {key: (urn,) for key, urn in uses.items()}
    return Resource(f"urn:{name}", f"azure-native:{kind}", name, STACK.urn, {}, uses=reached)


def _drawn(capture: Capture) -> ElementTree.Element:
    return ElementTree.fromstring(svg(capture))


def _boxes(picture: ElementTree.Element) -> dict[str, tuple[Point, Point]]:
    """Corners by name and kind: `lake StorageAccount`."""
    found = {}
    for group in picture.findall(f"{NAME}g"):
        rect = group.find(f"{NAME}rect")
        assert rect is not None
        x, y, wide, high = (float(rect.attrib[key]) for key in ("x", "y", "width", "height"))
        words = " ".join(str(one.text) for one in group.findall(f"{NAME}text"))
        found[words] = ((x, y), (x + wide, y + high))
    return found


def _points(path: str) -> Iterator[Point]:
    """Points along a path of moves, lines and cubic curves."""
    at: Point = (0, 0)
    for letter, rest in re.findall(r"([MLC])([^MLC]*)", path):
        numbers = [float(one) for one in rest.split()]
        ends = list(zip(numbers[::2], numbers[1::2], strict=True))
        if letter == "M":
            (at,) = ends
            continue
        a, b = ends[:2] if letter == "C" else (at, ends[0])
        for step in range(101):
            t = step / 100
            weights = ((1 - t) ** 3, 3 * (1 - t) ** 2 * t, 3 * (1 - t) * t**2, t**3)
            yield (
                sum(w * one[0] for w, one in zip(weights, (at, a, b, ends[-1]), strict=True)),
                sum(w * one[1] for w, one in zip(weights, (at, a, b, ends[-1]), strict=True)),
            )
        at = ends[-1]


def _lines(picture: ElementTree.Element) -> set[tuple[str, str]]:
    """What each line touches; a line that runs behind another box fails."""
    boxes, found = _boxes(picture), set()
    for path in picture.findall(f"{NAME}path"):
        points = list(_points(path.attrib["d"]))
        for name, ((left, top), (right, bottom)) in boxes.items():
            behind = [(x, y) for x, y in points if left < x < right and top < y < bottom]
            assert not behind, f"{path.attrib['d']} is behind {name}"
        ends = [
            name
            for x, y in (points[0], points[-1])
            for name, ((left, top), (right, bottom)) in boxes.items()
            if x in (left, right) and top < y < bottom
        ]
        assert len(ends) == 2
        found.add((ends[0], ends[1]))
    return found


def test_the_picture_is_svg_with_a_box_for_each_and_no_script() -> None:
    vault = _made("vault <1>", "keyvault:Vault")
    endpoint = _made(
        "e", "network:PrivateEndpoint", privateLinkServiceConnections=vault.urn, subnet="urn:none"
    )
    drawn = svg(Capture("dev", (STACK, vault, endpoint), {}))
    assert len(_boxes(ElementTree.fromstring(drawn))) == 2
    assert "vault &lt;1&gt;" in drawn and "<script" not in drawn and "href" not in drawn


def test_a_line_over_several_columns_runs_behind_no_box() -> None:
    """It would else look as if it began or ended there."""
    logs = _made("logs", "operationalinsights:Workspace")
    between = [
        *(_made(f"e{at}", "network:PrivateEndpoint") for at in range(6)),
        *(_made(f"v{at}", "keyvault:Vault") for at in range(6)),
    ]
    seen = _made("seen", "applicationinsights:Component")
    workspace = _made(
        "w", "machinelearningservices:Workspace", applicationInsights=seen.urn, keyVault="urn:v5"
    )
    picture = _drawn(Capture("dev", (STACK, logs, seen, *between, workspace), {}))
    assert _lines(picture) == {("w Workspace", "seen Component"), ("w Workspace", "v5 Vault")}


def test_a_column_with_nothing_in_it_says_so() -> None:
    picture = _drawn(Capture("dev", (STACK, _made("v", "keyvault:Vault")), {}))
    told = [one.text for one in picture.findall(f"{NAME}text")]
    assert told.count("none") == 4


@pytest.mark.parametrize("stack", ["dev", "prod", "staging"])
def test_the_pictures_of_the_stacks_can_be_followed(stack: str) -> None:
    found = _lines(_drawn(own()[stack]))
    assert ("workspace Workspace", "vault Vault") in found
    assert ("datastore-raw Datastore", "lake StorageAccount") in found
    assert ("workspace Workspace", "insights Component") in found
