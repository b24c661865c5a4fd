"""Which comment is created or updated."""

from __future__ import annotations

from typing import Any

import pytest

from ml.reports.comment import MAX_LENGTH, marker, post

FIRST = marker("faq-matching", "prod")
BOT = "github-actions[bot]"


def comment(number: int, body: str | None, author: str | None = BOT) -> dict[str, Any]:
    user = {"login": author} if author else None
    return {"id": number, "body": body, "user": user}


def body(said: str = "new", first: str = FIRST) -> str:
    return f"{first}\n{said}\n"


def test_the_first_push_makes_a_comment():
    """Other markers, no marker, a quotation of ours, an empty body: none is ours."""
    others = [
        comment(1, "looks good"),
        comment(2, body("old", marker("faq-matching", "staging"))),
        comment(3, f"> {FIRST}\n> old"),
        comment(4, None),
        comment(5, f"words before\n{FIRST}"),
    ]
    posting = post(body(), others, BOT)
    assert (posting.action, posting.id, posting.body) == ("create", None, body())


def test_the_next_push_updates_it():
    """A body that differs only in its line ends is not posted again."""
    posting = post(body(), [comment(1, "hello"), comment(7, body("old"))], BOT)
    assert (posting.action, posting.id) == ("update", 7)
    same = post(body(), [comment(7, body().replace("\n", "\r\n"))], BOT)
    assert (same.action, same.id) == ("nothing", 7)


def test_comments_of_others_are_left_alone():
    """Somebody pasted the marker, or the account was deleted."""
    foreign = [comment(1, body("mine!"), "mallory"), comment(2, body(), None)]
    assert post(body(), foreign, BOT).action == "create"


def test_two_comments_of_ours():
    """Two pushes at once may have created two: the oldest is updated, the other named."""
    posting = post(body(), [comment(9, body("b")), comment(4, body("a"))], BOT)
    assert (posting.action, posting.id, posting.duplicates) == ("update", 4, (9,))


def test_a_marker_is_one_html_comment():
    """A model's name cannot end it."""
    posting = marker("a --> <b>", "x\ny")
    assert posting == "<!-- ml-compare: a-b-x-y -->"
    assert marker("a", "b") != marker("a", "c")


@pytest.mark.parametrize("wrong", ["", "hello", "<!-- other -->\nx", FIRST + "x" * MAX_LENGTH])
def test_invalid_bodies(wrong: str):
    with pytest.raises(ValueError, match=r"marker|characters"):
        post(wrong, [], BOT)
