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
            "**Both changed** these files. Decide on the branch before you merge; while a file has "
            "markers, the check `required` fails.",
            "",
            *(f"- `{name}`: {why}" for name, why in conflicts.items()),
        ]
    if left:
        lines += ["", "You removed these; the template changed them, and they stay away.", ""]
        lines += [f"- `{name}`" for name in left]
    return f"Template {after}", "\n".join(lines)


def replaced(newer: int, people: str) -> str:
    """The comment on one that has commits of people, once a newer one is there."""
    return (
        f"A newer version of the template is in #{newer}, which does not have the commits of "
        f"{people}. Carry over what it needs, then close this one."
    )
