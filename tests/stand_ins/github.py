"""A stand-in, in memory on localhost, for the parts of GitHub's API that the workflows use.

A token has the permissions of a job's `permissions`. Lists have pages of two items and a `Link`
header. An artifact redirects to a store that rejects GitHub's token, as Azure's does. Responses
have only those fields of docs.github.com/rest that the code reads.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import tempfile
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

BOT, APP = "github-actions[bot]", "the-teams-app[bot]"
# Items per page, and maximum files that GitHub lists for a pull request.
PAGE, LISTED = 2, 3000


@dataclass
class State:
    """The server's state of one repository, which tests fill."""

    repository: str = "team/models"
    # Token → the permissions of a job, such as {"pull-requests": "write"}.
    tokens: dict[str, Mapping[str, str]] = field(default_factory=dict)
    runs: dict[int, dict[str, Any]] = field(default_factory=dict)
    jobs: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    artifacts: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    files: dict[int, bytes] = field(default_factory=dict)
    pulls: list[dict[str, Any]] = field(default_factory=list)
    # Pull request → its changed files, as names or as in GitHub's response.
    changed: dict[int, list[str] | list[dict[str, str]]] = field(default_factory=dict)
    comments: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    dispatched: list[dict[str, str]] = field(default_factory=list)
    issues: list[dict[str, Any]] = field(default_factory=list)
    # Run → (login, GitHub environment) of its approvals.
    approvals: dict[int, list[tuple[str, str]]] = field(default_factory=dict)
    # Tokens of a GitHub App, whose pull requests start checks; the git repository behind the API.
    apps: set[str] = field(default_factory=set)
    folder: Path | None = None
    # Account → its permission; others have `read`.
    permissions: dict[str, str] = field(default_factory=dict)
    # All requests that changed something: (method, path).
    changes: list[tuple[str, str]] = field(default_factory=list)
    api: str = ""

    def artifact(self, run: int, name: str, content: bytes) -> None:
        """Add an artifact to a run."""
        number = 1 + len(self.files)
        self.files[number] = content
        made = {"created_at": now(), "workflow_run": {"id": run}}
        artifact = {"id": number, "name": name, "expired": False, **made}
        self.artifacts.setdefault(run, []).append(artifact)

    def comment(self, pull: int, body: str, login: str | None = BOT) -> None:
        """Add an existing comment; None as login means a deleted account."""
        number = 100 + sum(map(len, self.comments.values()))
        user = {"login": login} if login else None
        self.comments.setdefault(pull, []).append({"id": number, "body": body, "user": user})

    def bodies(self, pull: int) -> list[str]:
        """Return the texts of a pull request's comments, in order."""
        return [comment["body"] for comment in self.comments.get(pull, [])]


def now() -> str:
    """Return the current time in GitHub's format, in seconds."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


class Refusal(Exception):
    """A response with an error status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def _answer(
    state: State, method: str, path: str, query: Mapping[str, str], body: Any, login: str
) -> Any:
    """Return (required permission of the token, response).

    For a request that changes something, the response is a function that makes the change.
    """

    def match(wanted: str, pattern: str) -> re.Match[str] | None:
        return re.fullmatch(pattern, path) if method == wanted else None

    if found := match("GET", r"actions/workflows/([\w.]+)/runs"):
        path = f".github/workflows/{found[1]}"
        runs = [
            run
            for run in reversed(state.runs.values())
            if (run["path"], run["head_branch"]) == (path, query["branch"])
            and run["event"] == query["event"]
            and run["conclusion"] == query.get("status", run["conclusion"])
        ]
        return "actions:read", ("workflow_runs", runs)
    if found := match("GET", r"actions/runs/(\d+)"):
        return "actions:read", _known(state.runs, found[1])
    if found := match("GET", r"actions/runs/(\d+)/approvals"):
        approvals = [
            {"state": "approved", "environments": [{"name": name}], "user": {"login": login}}
            for login, name in state.approvals.get(int(found[1]), [])
        ]
        return "actions:read", approvals
    if found := match("GET", r"contents/(.+)"):
        content = _git(state, "show", f"{query['ref']}:{found[1]}", strip=False).encode()
        return "contents:read", {"content": base64.encodebytes(content).decode()}
    if found := match("GET", r"actions/runs/(\d+)/jobs"):
        return "actions:read", ("jobs", state.jobs.get(int(found[1]), []))
    if found := match("GET", r"actions/runs/(\d+)/artifacts"):
        return "actions:read", ("artifacts", state.artifacts.get(int(found[1]), []))
    if match("GET", "actions/artifacts"):
        every = [one for artifacts in state.artifacts.values() for one in artifacts]
        return "actions:read", ("artifacts", [one for one in every if one["name"] == query["name"]])
    if match("POST", r"actions/workflows/([\w.]+)/dispatches"):
        assert body["ref"] == "main"
        return "actions:write", lambda: state.dispatched.append(body["inputs"])
    if found := match("GET", r"actions/artifacts/(\d+)/zip"):
        _known(state.files, found[1])
        return "actions:read", f"{state.api}/storage/{found[1]}"
    if match("GET", "pulls"):
        pulls = [pull for pull in state.pulls if query["state"] in ("all", pull["state"])]
        if "head" in query:
            pulls = [pull for pull in pulls if pull["head"]["label"] == query["head"]]
        return "pull-requests:read", ("", pulls)
    if found := match("GET", r"collaborators/([^/]+)/permission"):
        permission = state.permissions.get(found[1], "read")
        return "contents:read", {"permission": permission}
    if found := match("GET", r"pulls/(\d+)"):
        pulls = {pull["number"]: pull for pull in state.pulls}
        count = len(state.changed.get(int(found[1]), []))
        return "pull-requests:read", {"changed_files": count, **_known(pulls, found[1])}
    if found := match("GET", r"pulls/(\d+)/files"):
        files = [
            {"filename": file, "status": "modified"} if isinstance(file, str) else file
            for file in state.changed.get(int(found[1]), [])
        ]
        return "pull-requests:read", ("", files[:LISTED])
    if found := match("GET", r"pulls/(\d+)/commits"):
        return "pull-requests:read", ("", _commits(state, int(found[1])))
    if match("GET", "issues"):
        shown = [
            issue
            for issue in state.issues
            if issue["state"] == query["state"] and issue["user"]["login"] == query["creator"]
        ]
        return "issues:read", ("", shown)
    if match("POST", "issues"):
        opened = {"number": 50 + len(state.issues), "state": "open", "user": {"login": login}}
        fields = {"title": str(body["title"]), "body": _body(body)}
        return "issues:write", lambda: _added(state.issues, {**opened, **fields})
    if match("POST", "pulls"):
        return "pull-requests:write", lambda: _added(state.pulls, _pull(state, body, login))
    if found := match("PATCH", r"pulls/(\d+)"):
        return "pull-requests:write", lambda: next(
            pull for pull in state.pulls if pull["number"] == int(found[1])
        ).update(body)
    if path.startswith("git/"):
        return _of_git(state, method, path.removeprefix("git/"), body)
    if found := match("PATCH", r"issues/(\d+)"):
        return "issues:write", lambda: next(
            issue for issue in state.issues if issue["number"] == int(found[1])
        ).update(body)
    if found := match("POST", r"issues/(\d+)/labels"):
        return "pull-requests:write", lambda: next(
            pull for pull in state.pulls if pull["number"] == int(found[1])
        ).update(labels=body["labels"])
    if found := match("GET", r"issues/(\d+)/comments"):
        return "pull-requests:read", ("", state.comments.get(int(found[1]), []))
    if found := match("POST", r"issues/(\d+)/comments"):
        return "pull-requests:write", lambda: state.comment(int(found[1]), _body(body))
    if found := match("PATCH", r"issues/comments/(\d+)"):
        return "pull-requests:write", lambda: _comment(state, found[1]).update(body=_body(body))
    if found := match("DELETE", r"issues/comments/(\d+)"):
        return "pull-requests:write", lambda: [
            comments.remove(comment)
            for comments in state.comments.values()
            for comment in [*comments]
            if comment["id"] == int(found[1])
        ]
    raise Refusal(404, f"the stand-in does not answer {method} {path}")


def _added(to: list[dict[str, Any]], item: dict[str, Any]) -> dict[str, Any]:
    to.append(item)
    return item


def _pull(state: State, body: Any, login: str) -> dict[str, Any]:
    owner, branch = state.repository.partition("/")[0], body["head"]
    head = {
        "sha": _git(state, "rev-parse", f"refs/heads/{branch}"),
        "label": f"{owner}:{branch}",
        "ref": branch,
        "repo": {"full_name": state.repository},
    }
    number = 200 + len(state.pulls)
    fields = {"title": str(body["title"]), "body": _body(body), "base": {"ref": body["base"]}}
    return {"number": number, "state": "open", "user": {"login": login}, "head": head, **fields}


def _commits(state: State, number: int) -> list[dict[str, Any]]:
    """Return the commits of a pull request on main; [] if its branch is not in the repository.

    The account NAME has the e-mail address NAME@users. Commits by the API are of the token's
    account.
    """
    head = next(pull["head"] for pull in state.pulls if pull["number"] == number)
    if "sha" not in head:
        return []
    words = ("log", "--format=%ae %ce", f"refs/heads/main..refs/heads/{head['ref']}")
    own, commits = {"app@example.org": APP}, []
    for line in filter(None, _git(state, *words).splitlines()):
        logins = (own.get(email, email.removesuffix("@users")) for email in line.split())
        users = [None if "@" in login else {"login": login} for login in logins]
        commits.append(dict(zip(("author", "committer"), users, strict=True)))
    return commits


def _of_git(state: State, method: str, path: str, body: Any) -> Any:
    """Read or create refs, commits and trees of the repository (docs.github.com/rest/git)."""
    kind, _, name = path.partition("/")
    if (method, kind) == ("GET", "ref"):
        return "contents:read", {"object": {"sha": _git(state, "rev-parse", f"refs/{name}")}}
    if (method, kind) == ("GET", "matching-refs"):
        lines = _git(state, "for-each-ref", "--format=%(refname) %(objectname)", f"refs/{name}*")
        refs = [line.split() for line in lines.splitlines()]
        return "contents:read", [{"ref": ref, "object": {"sha": sha}} for ref, sha in refs]
    if (method, kind) == ("GET", "commits"):
        words = ("log", "-1", "--format=%T%n%P%n%B", name)
        tree, above, message = _git(state, *words, strip=False).split("\n", 2)
        parents = [{"sha": parent} for parent in above.split()]
        commit = {"tree": {"sha": tree}, "parents": parents, "message": message.strip()}
        return "contents:read", commit
    if (method, path) == ("POST", "blobs"):
        assert body["encoding"] == "base64"
        return "contents:write", lambda: {"sha": _blob(state, base64.b64decode(body["content"]))}
    if (method, path) == ("POST", "trees"):
        return "contents:write", lambda: {"sha": _tree(state, body["base_tree"], body["tree"])}
    if (method, path) == ("POST", "commits"):
        parents = [word for parent in body["parents"] for word in ("-p", parent)]
        words = ("commit-tree", body["tree"], *parents, "-m", body["message"])
        return "contents:write", lambda: {"sha": _git(state, *words)}
    if (method, path) == ("POST", "refs"):
        return "contents:write", lambda: {
            "ref": _git(state, "update-ref", body["ref"], body["sha"])
        }
    if (method, kind) == ("PATCH", "refs"):
        assert body["force"] is True
        return "contents:write", lambda: {"ref": _git(state, "update-ref", path, body["sha"])}
    raise Refusal(404, f"the stand-in does not answer {method} git/{path}")


def _tree(state: State, base: str, entries: list[Any]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        index = {"GIT_INDEX_FILE": f"{folder}/index"}
        _git(state, "read-tree", base, variables=index)
        for entry in entries:
            if entry.get("sha", "") is None:
                gone = f"0 {'0' * 40}\t{entry['path']}\n"
                _git(state, "update-index", "--index-info", text=gone, variables=index)
                continue
            blob = entry.get("sha") or _blob(state, entry["content"].encode())
            place = f"{entry['mode']},{blob},{entry['path']}"
            _git(state, "update-index", "--add", "--cacheinfo", place, variables=index)
        return _git(state, "write-tree", variables=index)


def _blob(state: State, content: bytes) -> str:
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        return _git(state, "hash-object", "-w", "--no-filters", file.name)


def _git(
    state: State,
    *words: str,
    text: str = "",
    variables: Mapping[str, str] | None = None,
    strip: bool = True,
) -> str:
    assert state.folder is not None, "the state has no repository"
    who = [*("-c", "user.name=app"), *("-c", "user.email=app@example.org")]
    done = subprocess.run(
        ["git", *who, *words],
        cwd=state.folder,
        env={**os.environ, **(variables or {})},
        input=text,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise Refusal(422, done.stderr)
    return done.stdout.strip() if strip else done.stdout


def _known(of: Mapping[int, Any], number: str) -> Any:
    if int(number) not in of:
        raise Refusal(404, "Not Found")
    return of[int(number)]


def _comment(state: State, number: str) -> dict[str, Any]:
    comments = (comment for comments in state.comments.values() for comment in comments)
    return next(comment for comment in comments if comment["id"] == int(number))


def _body(body: Any) -> str:
    text = str(body["body"])
    if len(text) > 65_536:
        raise Refusal(422, "Body is too long (maximum is 65536 characters)")
    return text


class _Handler(BaseHTTPRequestHandler):
    state: State

    def _serve(self) -> None:
        split = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(split.query))
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        try:
            if split.path.startswith("/storage/"):
                if self.headers.get("Authorization"):
                    raise Refusal(400, "the store of artifacts refuses GitHub's token")
                self._write(200, _known(self.state.files, split.path.rpartition("/")[2]))
                return
            prefix = f"/repos/{self.state.repository}/"
            if not split.path.startswith(prefix):
                raise Refusal(404, "Not Found")
            path = urllib.parse.unquote(split.path.removeprefix(prefix))
            login = APP if self._token() in self.state.apps else BOT
            needed, answer = _answer(self.state, self.command, path, query, body, login)
            self._check(needed)
            if callable(answer):
                changed = answer()
                self.state.changes.append((self.command, path))
                content = b"" if body is None else json.dumps(changed or {}).encode()
                self._write(204 if self.command == "DELETE" else 201, content)
            elif isinstance(answer, tuple):
                self._write_page(answer[0], answer[1], split.path, query)
            elif isinstance(answer, str):
                self._write(302, b"", {"Location": answer})
            else:
                self._write(200, json.dumps(answer).encode())
        except Refusal as refusal:
            self._write(refusal.status, json.dumps({"message": str(refusal)}).encode())

    do_GET = do_POST = do_PATCH = do_DELETE = _serve

    def _token(self) -> str:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ")

    def _check(self, needed: str) -> None:
        token = self._token()
        if token not in self.state.tokens:
            raise Refusal(401, "Bad credentials")
        scope, _, level = needed.partition(":")
        if self.state.tokens[token].get(scope) not in {level, "write"}:
            raise Refusal(403, f"Resource not accessible by integration ({needed})")

    def _write_page(self, key: str, items: list[Any], path: str, query: Mapping[str, str]) -> None:
        page = int(query.get("page", 1))
        shown = items[PAGE * (page - 1) : PAGE * page]
        headers = {}
        if len(items) > PAGE * page:
            following = urllib.parse.urlencode({**query, "page": page + 1})
            headers["Link"] = f'<{self.state.api}{path}?{following}>; rel="next"'
        answer = {key: shown, "total_count": len(items)} if key else shown
        self._write(200, json.dumps(answer).encode(), headers)

    def _write(self, status: int, content: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *words: object) -> None:
        """Log nothing."""


@contextmanager
def serving(state: State) -> Iterator[State]:
    """Run a server of the state within the block; yield the state with its URL in `api`."""
    handler = type("Handler", (_Handler,), {"state": state})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    state.api = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
