"""One comment a pull request that is written anew, not one more after every push.

An invisible marker on its first line says which it is. GitHub lists a pull request's comments under
`/repos/OWNER/REPO/issues/NUMBER/comments` as objects with `id`, `body` and `user.login`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

# GitHub refuses longer bodies: "Body is too long (maximum is 65536 characters)".
LONGEST = 65_536


@dataclass(frozen=True)
class Posting:
    """What to do with a body: create a comment, update the one with that id, or nothing at all.

    `duplicates` are the ids of further comments of the same marker and author.
    """

    action: Literal["create", "update", "nothing"]
    id: int | None
    body: str
    duplicates: tuple[int, ...] = ()


def marker(model: str, environment: str) -> str:
    """The first line of the comment about a model in an environment; nothing of it is shown."""
    # Two hyphens may not stand inside of an HTML comment.
    key = re.sub(r"[^\w.]+", "-", f"{model} {environment}").strip("-")
    return f"<!-- ml-compare: {key} -->"


def post(body: str, comments: Sequence[Mapping[str, Any]], author: str) -> Posting:
    """Where a body goes among the comments that are there, by its first line, the marker.

    A comment that somebody else wrote is never taken for ours, whatever it begins with. Raises
    ValueError when the body begins with no marker or is longer than GitHub takes.
    """
    first = body.split("\n", 1)[0].strip()
    if not first.startswith("<!-- ml-compare: ") or not first.endswith(" -->"):
        raise ValueError(f"the body begins with no marker: {first[:80]!r}")
    if len(body) > LONGEST:
        raise ValueError(f"the body has {len(body):,} characters, GitHub takes {LONGEST:,}")
    ours = sorted(
        int(one["id"])
        for one in comments
        if _author(one) == author and _lines(one).partition("\n")[0].strip() == first
    )
    if not ours:
        return Posting("create", None, body)
    oldest, *rest = ours
    there = next(_lines(one) for one in comments if one["id"] == oldest)
    same = there.strip() == body.strip()
    return Posting("nothing" if same else "update", oldest, body, tuple(rest))


def _author(comment: Mapping[str, Any]) -> str:
    # The account of a comment may be gone.
    return str((comment.get("user") or {}).get("login") or "")


def _lines(comment: Mapping[str, Any]) -> str:
    return str(comment.get("body") or "").replace("\r\n", "\n")
