"""The few questions to GitHub's API that a workflow asks, with Python's own library.

The address, the repository and the token are those that GitHub gives to a workflow: GITHUB_API_URL,
GITHUB_REPOSITORY and GH_TOKEN.
"""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPResponse
from typing import Any

from ml.core.errors import Exit, Problem, Refused

API = "https://api.github.com"
# Bytes of an answer, seconds until a connection is given up, pages of a list.
MAX_BYTES, TIMEOUT, PAGES = 20_000_000, 30, 40
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


@dataclass(frozen=True)
class GitHub:
    """One repository, `OWNER/NAME`."""

    repository: str
    token: str
    api: str = API

    @classmethod
    def of_workflow(cls) -> GitHub:
        """From the variables of a workflow; Refused, naming the one that is missing."""
        names = ("GITHUB_REPOSITORY", "GH_TOKEN")
        values = [os.environ.get(name, "") for name in names]
        for name, value in zip(names, values, strict=True):
            if not value:
                hint = "GITHUB_REPOSITORY=OWNER/NAME GH_TOKEN=$(gh auth token) before the command"
                raise Refused(Problem("no-github", f"{name} is not set", "its value", hint))
        if not _REPOSITORY.fullmatch(values[0]):
            raise Refused(Problem("no-github", f"GITHUB_REPOSITORY={values[0]}", "OWNER/NAME"))
        return cls(values[0], values[1], os.environ.get("GITHUB_API_URL", API))

    def get(self, path: str, **query: str) -> Any:
        """The answer to a question about the repository."""
        return json.loads(self._call("GET", self._url(path, query))[0])

    def pages(self, path: str, key: str = "", **query: str) -> Iterator[Any]:
        """Every item of a list, of all its pages; `key` is where an answer holds the list."""
        url = self._url(path, {**query, "per_page": "100"})
        for _ in range(PAGES):
            body, headers = self._call("GET", url)
            answer = json.loads(body)
            yield from answer[key] if key else answer
            following = re.search(r'<([^>]+)>;\s*rel="next"', headers.get("Link") or "")
            if not following:
                return
            url = following[1]
            if not url.startswith(f"{self.api}/"):
                raise _failed(f"the next page is at {url[:80]}", f"an address below {self.api}")

    def send(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Any:
        """Change something; the answer, None when there is none."""
        answer = self._call(method, self._url(path, {}), body)[0]
        return json.loads(answer) if answer else None

    def download(self, path: str, limit: int) -> bytes:
        """A file of at most `limit` bytes; more is an error."""
        content, _ = self._call("GET", self._url(path, {}), limit=limit)
        return content

    def _url(self, path: str, query: Mapping[str, str]) -> str:
        encoded = f"?{urllib.parse.urlencode(query)}" if query else ""
        return f"{self.api}/repos/{self.repository}/{path}{encoded}"

    def _call(
        self,
        method: str,
        url: str,
        body: Mapping[str, object] | None = None,
        limit: int = MAX_BYTES,
    ) -> tuple[bytes, Mapping[str, str]]:
        request = urllib.request.Request(
            url, json.dumps(body).encode() if body is not None else None, method=method
        )
        request.add_header("Accept", "application/vnd.github+json")
        request.add_header("X-GitHub-Api-Version", "2022-11-28")
        # Not repeated at a redirect, which leads to another host's storage.
        request.add_unredirected_header("Authorization", f"Bearer {self.token}")
        what = f"{method} {urllib.parse.urlsplit(url).path}"
        try:
            response: HTTPResponse
            with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
                content = response.read(limit + 1)
                headers = dict(response.headers)
        except urllib.error.HTTPError as error:
            with error:
                reason = error.read(2000).decode("utf-8", "replace")
            raise _failed(f"{what}: {error.code} {' '.join(reason.split())[:200]}") from None
        except (urllib.error.URLError, OSError) as error:
            raise _failed(f"{what}: {error}") from None
        if len(content) > limit:
            raise _failed(f"{what}: more than {limit:,} bytes", "a smaller answer")
        return content, headers


def _failed(reason: str, expected: str = "an answer of GitHub") -> Refused:
    hint = "re-run the job; for 403 and 404 see the permissions of the token"
    return Refused(Problem("github-failed", reason, expected, hint), exit_code=Exit.RUN_FAILED)
