"""Recognises secrets in a spec, and masks them in messages."""

from __future__ import annotations

import re
from typing import Any

# Endings of names (split at `_`, `-`, `.` and capitals) that mark a secret value.
# `TOKEN_LIMIT`, `MAX_TOKENS` and `SECRET_NAME` do not match.
_NAMES = re.compile(
    r"(?:^|_)(?:secret|passwd|password|pwd|passphrase|token|apikey|accountkey|credential|credentials"
    r"|(?:api|access|account|private|storage|shared|signing|subscription|primary|secondary|master"
    r"|admin|encryption|instrumentation)_key"
    r"|connection_?string|conn_str|sas|pat)(?:_value)?$"
)
_CAPITALS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

# Kind of secret and its pattern, which is searched in every field.
_PATTERNS = [
    ("a SAS signature", re.compile(r"[?&;]sig=(?P<secret>[A-Za-z0-9%+/=_-]{16,})")),
    (
        "a storage or service key",
        re.compile(
            r"(?:AccountKey|SharedAccessKey|SharedSecret)\s*=\s*(?P<secret>[A-Za-z0-9+/=]{16,})"
        ),
    ),
    (
        "a password",
        re.compile(r"(?:^|;)\s*(?:Password|Pwd)\s*=\s*(?P<secret>[^;\s]{4,})", re.IGNORECASE),
    ),
    ("a private key", re.compile(r"-----BEGIN (?P<secret>[A-Z ]*PRIVATE KEY)-----")),
    ("a GitHub token", re.compile(r"\b(?P<secret>gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{40,})")),
    ("an AWS key", re.compile(r"\b(?P<secret>AKIA[0-9A-Z]{16})\b")),
    ("an Entra client secret", re.compile(r"\b(?P<secret>[A-Za-z0-9_.-]{3}\dQ~[\w.~-]{31,34})")),
    ("a Hugging Face token", re.compile(r"\b(?P<secret>hf_[A-Za-z0-9]{30,})\b")),
    ("an OpenAI key", re.compile(r"\b(?P<secret>sk-[A-Za-z0-9_-]{32,})\b")),
    ("credentials in a URL", re.compile(r"://[^/\s:@]*:(?P<secret>[^/\s:@]{3,})@")),
]
# `export NAME=value` and `NAME=value command` in a command.
_ASSIGNMENT = re.compile(
    r"""(?:^|[\s;&|(])(?P<name>[A-Za-z_]\w*)=(?P<value>"[^"]*"|'[^']*'|[^\s;&|)]*)"""
)

_PLACEHOLDER = re.compile(
    r"\$\{\{.*\}\}|\$\{?\w+\}?|\$\(.*\)|%\w+%|<.*>|\{\{?.*\}?\}|\[.*\]|@Microsoft\.KeyVault\(.*\)"
    r"|https?://[\w.-]*\.vault\.azure\.net/.*|azureml:.*"
    r"|(?i:none|null|true|false|yes|no|todo|tbd|placeholder|change[-_]?me|redacted|(?:dummy|example|fake|sample).*"
    r"|(?:your|my|enter|insert|put)[-_ ].*)",
    re.DOTALL,
)


def name_is_secret(name: str) -> bool:
    """Return True if the name of a variable or field indicates a secret value."""
    return bool(_NAMES.search(_CAPITALS.sub("_", name).replace("-", "_").replace(".", "_").lower()))


def is_placeholder(value: str) -> bool:
    """Return True if a value is a placeholder for a secret, or obviously not a secret."""
    text = value.strip().strip("'\"")
    letters = set(re.sub(r"[?&]?\b\w{2,3}=|[^A-Za-z0-9]", "", text).lower())
    return letters <= {"x"} or len(text) < 3 or bool(_PLACEHOLDER.fullmatch(text))


def secret_in(name: str, value: Any, is_variable: bool = True) -> str:
    """Return the kind of secret in a value, for example "an AWS key"; "" if there is none.

    `is_variable`: the field is an environment variable or a credential. Other fields whose name
    ends in `token` may hold words of a vocabulary, so only a random-looking value is a secret.
    """
    text = str(value)
    if isinstance(value, str):
        for words, pattern in _PATTERNS:
            match = pattern.search(value)
            if match and not is_placeholder(match["secret"]):
                return words
    if not name_is_secret(name) or is_placeholder(text):
        return ""
    if name.lower().endswith("token") and (text.isdigit() or not (is_variable or _random(text))):
        return ""
    return "a secret, by its name"


def _random(text: str) -> bool:
    return bool(re.fullmatch(r"(?=.*\d)(?=.*[A-Za-z])[^\s<>|]{12,}", text))


def secret_in_command(command: str) -> str:
    """Return the name of the first variable that a command sets to a secret; "" if none."""
    for match in _ASSIGNMENT.finditer(command):
        if secret_in(match["name"], match["value"].strip("'\"")):
            return match["name"]
    return ""


def masked(name: str, value: Any) -> str:
    """Return a value as text for a message: "(hidden)" for a secret, at most 80 characters."""
    if secret_in(name, value):
        return "(hidden)"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
