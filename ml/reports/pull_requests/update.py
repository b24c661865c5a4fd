"""An update from the template: its pull request, and the comment on one that a newer replaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def request(
    before: str, after: str, conflicts: Mapping[str, str], left: Sequence[str]
) -> tuple[str, str]:
    """The title and the body; `conflicts` has why a person decides about each file, and `left` are
    those that stay removed.
    """
    lines = [f"The template's changes from {before} to {after}, merged with yours."]
    if conflicts:
        lines += [
            "",
            "**Merge conflicts** in these files. Resolve them on this branch: while a file has "
            "conflict markers, the check `required` fails.",
            "",
            *(f"- `{name}`: {why}" for name, why in conflicts.items()),
        ]
    if left:
        lines += [
            "",
            "You deleted these files and the template changed them; they stay deleted.",
            "",
        ]
        lines += [f"- `{name}`" for name in left]
    return f"Template {after}", "\n".join(lines)


def replaced(newer: int, people: str) -> str:
    """Return the comment for a pull request with commits of people, once a newer one exists."""
    return (
        f"A newer version of the template is in #{newer}, which does not have the commits of "
        f"{people}. Cherry-pick what it needs, then close this one."
    )
