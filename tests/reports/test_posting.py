"""Which comment is written anew."""

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
    """None is ours: other markers, no marker, a quotation of ours, an empty body."""
    others = [
        comment(1, "looks good"),
        comment(2, body("old", marker("faq-matching", "staging"))),
        comment(3, f"> {FIRST}\n> old"),
        comment(4, None),
        comment(5, f"words before\n{FIRST}"),
    ]
    made = post(body(), others, BOT)
    assert (made.action, made.id, made.body) == ("create", None, body())


def test_the_next_push_updates_it():
    """Line ends as a browser left them are no difference; nor is nothing new."""
    made = post(body(), [comment(1, "hello"), comment(7, body("old"))], BOT)
    assert (made.action, made.id) == ("update", 7)
    same = post(body(), [comment(7, body().replace("\n", "\r\n"))], BOT)
    assert (same.action, same.id) == ("nothing", 7)


def test_nobody_else_s_comment_is_taken():
    """Somebody pasted the marker, or the account is gone."""
    foreign = [comment(1, body("mine!"), "mallory"), comment(2, body(), None)]
    assert post(body(), foreign, BOT).action == "create"


def test_two_of_ours():
    """Two pushes at once may have made two: the oldest is kept, the other named."""
    made = post(body(), [comment(9, body("b")), comment(4, body("a"))], BOT)
    assert (made.action, made.id, made.duplicates) == ("update", 4, (9,))


def test_a_marker_is_a_comment_whatever_the_name():
    """Nothing in a model's name ends the HTML comment."""
    made = marker("a --> <b>", "x\ny")
    assert made == "<!-- ml-compare: a-b-x-y -->"
    assert marker("a", "b") != marker("a", "c")


@pytest.mark.parametrize("wrong", ["", "hello", "<!-- other -->\nx", FIRST + "x" * MAX_LENGTH])
def test_a_body_that_is_none(wrong: str):
    with pytest.raises(ValueError, match=r"marker|characters"):
        post(wrong, [], BOT)
