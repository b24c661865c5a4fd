"""Call GitHub's REST API from a workflow, with the standard library only.

Environment variables of the workflow give the address, the repository and the token:
GITHUB_API_URL, GITHUB_REPOSITORY and GH_TOKEN.
"""

from __future__ import annotations

import base64
import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, TypeVar

from ml.core.errors import Exit, Problem, UserError

API = "https://api.github.com"
MAIN = "main"
# The account that a workflow's GITHUB_TOKEN acts as.
AUTHOR = "github-actions[bot]"
# Maximum bytes of a response, timeout in seconds, and maximum pages of a list.
MAX_BYTES, TIMEOUT, PAGES = 20_000_000, 30, 40
Item = TypeVar("Item")
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


@dataclass(frozen=True)
class GitHub:
    """A client for one repository, `OWNER/NAME`."""

    repository: str
    token: str
    api: str = API

    @classmethod
    def of_workflow(cls) -> GitHub:
        """Return a client by the environment variables; raise UserError if one is missing."""
        names = ("GITHUB_REPOSITORY", "GH_TOKEN")
        values = [os.environ.get(name, "") for name in names]
        for name, value in zip(names, values, strict=True):
            if not value:
                hint = "GITHUB_REPOSITORY=OWNER/NAME GH_TOKEN=$(gh auth token) before the command"
                raise UserError(Problem("no-github", f"{name} is not set", "its value", hint))
        if not _REPOSITORY.fullmatch(values[0]):
            raise UserError(Problem("no-github", f"GITHUB_REPOSITORY={values[0]}", "OWNER/NAME"))
        return cls(values[0], values[1], os.environ.get("GITHUB_API_URL", API))

    def get(self, path: str, **query: str) -> Any:
        """Return the JSON response to a GET request; `path` is below the repository's URL."""
        return json.loads(self._call("GET", self._url(path, query))[0])

    def pages(self, path: str, key: str = "", **query: str) -> Iterator[Any]:
        """Yield every item of a paginated list.

        `key` is the response's field that has the list; "" if the response is the list. Raises
        UserError for a list of more than `PAGES` pages, since unread items could matter.
        """
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
        raise _failed(f"{path} has more than {PAGES} pages", "a list of fewer pages")

    def send(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Any:
        """Send a POST, PATCH, PUT or DELETE request; return the parsed response; None if empty."""
        answer = self._call(method, self._url(path, {}), body)[0]
        return json.loads(answer) if answer else None

    def download(self, path: str, limit: int) -> bytes:
        """Return the bytes at a path; raise UserError if there are more than `limit`."""
        content, _ = self._call("GET", self._url(path, {}), limit=limit)
        return content

    def head(self, branch: str = MAIN) -> str:
        """Return the id of a branch's newest commit."""
        return str(self.get(f"git/ref/heads/{branch}")["object"]["sha"])

    def text(self, path: str, commit: str) -> str:
        """Return the text of a file in a commit, with unchanged line breaks."""
        return base64.b64decode(self.get(f"contents/{path}", ref=commit)["content"]).decode()

    def keep_issue(self, marker: str, title: str, body: str) -> str:
        """Open or update the issue whose body begins with `marker`, an HTML comment.

        Returns what was done: "issue 7 is opened", "… is updated" or "… is as it should be".
        """
        text = f"{marker}\n{body}"
        issues = self._open_issues(marker)
        if not issues:
            number = self.send("POST", "issues", {"title": title, "body": text})["number"]
            return f"issue {number} is opened"
        issue = min(issues, key=lambda issue: int(issue["number"]))
        if (issue["title"], issue["body"].strip()) == (title, text.strip()):
            return f"issue {issue['number']} is as it should be"
        self.send("PATCH", f"issues/{issue['number']}", {"title": title, "body": text})
        return f"issue {issue['number']} is updated"

    def close_issue(self, marker: str) -> str:
        """Close the open issues with the marker; return "issue 7 is closed", or "" without any."""
        issues = self._open_issues(marker)
        for issue in issues:
            self.send("PATCH", f"issues/{issue['number']}", {"state": "closed"})
        return ", ".join(f"issue {issue['number']} is closed" for issue in issues)

    def _open_issues(self, marker: str) -> list[Any]:
        return [
            issue
            for issue in self.pages("issues", state="open", creator=AUTHOR)
            if str(issue.get("body") or "").startswith(marker) and "pull_request" not in issue
        ]

    def keep_pull_request(
        self,
        branch: str,
        title: str,
        body: str,
        files: Mapping[str, str | bytes | None],
        base: str,
        modes: Mapping[str, str] | None = None,
    ) -> tuple[int, str]:
        """Open or update the pull request of a branch: one commit on `base` with these files.

        `base` is the commit of main that the files were made from. `files` maps paths to content,
        or None to remove a file; `modes` maps paths of executable files to their git mode.

        Returns the number, and what was done as in `keep_issue`. Changes nothing if somebody closed
        or merged the pull request, or pushed a commit to the branch. Raises UserError if the branch
        has somebody else's commit before the pull request is open. The token must be a GitHub
        App's: a pull request that GITHUB_TOKEN opens starts no checks.
        """
        every = self.pull_requests_of(branch)
        if any(pull["state"] != "open" for pull in every):
            number = max(int(pull["number"]) for pull in every)
            return number, f"pull request {number} is closed, and stays so"
        commit, is_new = self._keep_branch(branch, base, title, files, modes or {}, bool(every))
        if not every:
            fields = {"title": title, "head": branch, "base": MAIN, "body": body}
            pull = self.send("POST", "pulls", fields)
            number = int(pull["number"])
            if pull["head"]["sha"] != commit:
                self.send("PATCH", f"pulls/{number}", {"state": "closed"})
                raise _foreign(f"{branch} got another commit, and pull request {number} is closed")
            return number, f"pull request {number} is opened"
        number, pull = int(every[0]["number"]), every[0]
        if commit is None:
            return number, f"pull request {number} has commits of another author: not updated"
        if (pull["title"], str(pull["body"]).strip()) != (title, body.strip()):
            self.send("PATCH", f"pulls/{number}", {"title": title, "body": body})
            is_new = True
        return number, f"pull request {number} is {'updated' if is_new else 'as it should be'}"

    def pull_requests_of(self, branch: str) -> list[Any]:
        """Return the pull requests, also closed ones, that an app opened for a branch.

        Raises UserError if a person or GITHUB_TOKEN opened one that is still open.
        """
        owner = self.repository.partition("/")[0]
        every = []
        for pull in self.pages("pulls", state="all", head=f"{owner}:{branch}"):
            # The query includes forks in the same organisation: skip those.
            if (pull["head"].get("repo") or {}).get("full_name") != self.repository:
                continue
            login = str((pull.get("user") or {}).get("login") or "nobody")
            # Only the account names of apps end in [bot].
            if login.endswith("[bot]") and login != AUTHOR:
                every.append(pull)
            elif pull["state"] == "open":
                raise _foreign(f"pull request {pull['number']} of {login} is about {branch}")
        return every

    def _keep_branch(
        self,
        branch: str,
        base: str,
        message: str,
        files: Mapping[str, str | bytes | None],
        modes: Mapping[str, str],
        is_open: bool,
    ) -> tuple[str | None, bool]:
        """Point the branch to a commit of the files on `base`; return it, and whether it is new.

        Returns (None, False), with the branch unchanged, if the pull request `is_open` and the
        branch has somebody else's commit. Raises UserError for such a branch without one.
        """
        entries = [
            {"path": path, "mode": modes.get(path, "100644"), "type": "blob", **self._blob(content)}
            for path, content in files.items()
        ]
        before = str(self.get(f"git/commits/{base}")["tree"]["sha"])
        tree = self.send("POST", "git/trees", {"base_tree": before, "tree": entries})["sha"]
        wanted = f"refs/heads/{branch}"
        refs = self.get(f"git/matching-refs/heads/{branch}")
        there = next((str(ref["object"]["sha"]) for ref in refs if ref["ref"] == wanted), None)
        if there is not None:
            now = self.get(f"git/commits/{there}")
            parents = [parent["sha"] for parent in now["parents"]]
            if (now["tree"]["sha"], parents, now["message"]) == (tree, [base], message):
                return there, False
            if not is_open:
                raise _foreign(f"the branch {branch} has the commit {there[:12]} already")
            if now["message"] != message:
                return None, False
        fields = {"message": message, "tree": tree, "parents": [base]}
        commit = str(self.send("POST", "git/commits", fields)["sha"])
        if there is None:
            self.send("POST", "git/refs", {"ref": wanted, "sha": commit})
        else:
            self.send("PATCH", f"git/refs/heads/{branch}", {"sha": commit, "force": True})
        return commit, True

    def _blob(self, content: str | bytes | None) -> Mapping[str, str | None]:
        """Return the content's fields of a git tree entry; upload bytes as a blob first."""
        if not isinstance(content, bytes):
            return {"sha": None} if content is None else {"content": content}
        encoded = base64.b64encode(content).decode()
        blob = self.send("POST", "git/blobs", {"content": encoded, "encoding": "base64"})
        return {"sha": blob["sha"]}

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
        # Downloads redirect to another host, which must not get the token.
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
            raise _failed(f"{what}: more than {limit:,} bytes", "a smaller response")
        return content, headers


def read_results(
    path: Path, command: str, text: str = "", outcomes: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Return the JSON objects in `text`, or else in the file at `path` that a command wrote.

    With `outcomes`, the `outcome` of each object must be one of them. Raises UserError if the
    objects are missing or invalid, as after a command that failed.
    """
    with suppress(OSError, ValueError):
        document = json.loads(text or path.read_text(encoding="utf-8"))
        objects = document if isinstance(document, list) else [document]
        if all(isinstance(item, dict) for item in objects) and (
            not outcomes or all(item.get("outcome") in outcomes for item in objects)
        ):
            return objects
    actual = f"{path} has no results: `{command}` failed or was not run"
    hint = f"fix the error in its output, and rerun `{command}`"
    raise UserError(Problem("no-results", actual, f"the results of `{command}`", hint))


def for_all(items: Iterable[Item], work: Callable[[Item], object]) -> None:
    """Call `work` for every item, then raise a UserError with the problems of all failures."""
    problems: list[Problem] = []
    for item in items:
        try:
            work(item)
        except UserError as refused:
            problems += refused.problems
    if problems:
        raise UserError(*problems, exit_code=Exit.RUN_FAILED)


def write_outputs(values: Mapping[str, object]) -> None:
    """Write outputs of a workflow's step: strings, which must be one line, and others as JSON.

    Does nothing outside of a workflow.
    """
    if path := os.environ.get("GITHUB_OUTPUT"):
        texts = {
            key: value if isinstance(value, str) else json.dumps(value)
            for key, value in values.items()
        }
        lines = [f"{key}={text}\n" for key, text in texts.items()]
        with Path(path).open("a", encoding="utf-8") as outputs:
            outputs.writelines(lines)


def _foreign(reason: str) -> UserError:
    hint = "review the branch, delete it and re-run the job"
    problem = Problem("branch-conflict", reason, "only the commit of this run", hint)
    return UserError(problem, exit_code=Exit.RUN_FAILED)


def _failed(reason: str, expected: str = "a response of GitHub") -> UserError:
    hint = "re-run the job; for 403 and 404 see the permissions of the token"
    return UserError(Problem("github-failed", reason, expected, hint), exit_code=Exit.RUN_FAILED)
