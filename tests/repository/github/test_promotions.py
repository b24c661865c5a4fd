"""What promotions read of a branch that somebody else may have written."""

from __future__ import annotations

import pytest

from ml.repository.github.pull_requests.promotions import _deployment_digest


@pytest.mark.parametrize(
    ("content", "digest"),
    [
        ("environments:\n  dev: {deployment_digest: f00d}\n", "f00d"),
        ("environments: {dev: &a {deployment_digest: 'f00d'}, prod: *a}\n", "f00d"),
        ("environments:\n  prod: {deployment_digest: f00d}\n", ""),
        ("environments: [dev]\n", ""),
        ("environments: {dev: {deployment_digest: f00d}, dev: {}}\n", ""),
        ("environments: {", ""),
        ("", ""),
    ],
)
def test_the_serving_code_of_a_branch(content: str, digest: str) -> None:
    """Of one with anything but unambiguous YAML there is none: other promotions go on."""
    assert _deployment_digest(content, "dev") == digest
