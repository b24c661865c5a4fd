"""Where the model comes from: data → code → run → model → where it is declared."""

from __future__ import annotations

from collections.abc import Iterator

from ml.core.repository import shown
from ml.reports.facts import Facts
from ml.reports.markup import Html, join, tag
from ml.reports.numbers import digest

Said = tuple[str, str, str]  # name, what is shown, the whole of it


def lineage(facts: Facts) -> Html:
    """The chain, each link with its digest (the title of a digest is all of it)."""
    links = [*_data(facts), *_code(facts), _run(facts), *_model(facts)]
    return tag(
        "section",
        tag("h2", "Lineage"),
        tag("ol", *(_link(kind, head, rows) for kind, head, rows in links), class_="chain"),
    )


Link = tuple[str, str, list[Said]]


def _link(kind: str, head: str, rows: list[Said]) -> Html:
    return tag(
        "li",
        tag("span", kind, class_="kind"),
        tag("strong", head),
        tag(
            "dl",
            *(
                join([tag("dt", name), tag("dd", said, title=whole if whole != said else None)])
                for name, said, whole in rows
                if said
            ),
        ),
    )


def _digest(name: str, whole: str) -> Said:
    return name, digest(whole), whole


def _data(facts: Facts) -> Iterator[Link]:
    for name, data in (facts.lineage.get("data") or {}).items():
        head = str(data.get("asset") or data.get("source") or name)
        yield "data", head, [("input", name, name), _digest("sha256", str(data.get("digest", "")))]


def _code(facts: Facts) -> Iterator[Link]:
    code = facts.lineage.get("code") or {}
    if not code:
        return
    commit = str(code.get("commit", ""))
    dirty = " with uncommitted changes" if commit and code.get("dirty") else ""
    yield (
        "code",
        str(code.get("branch") or ("no git branch" if commit else "no commit")),
        [
            ("commit", f"{digest(commit)}{dirty}" if commit else "", f"{commit}{dirty}"),
            _digest("snapshot", str(code.get("digest", ""))),
            ("environment", *(str(facts.lineage.get("environment", "")),) * 2),
            ("Python", *(_python(facts),) * 2),
        ],
    )


def _run(facts: Facts) -> Link:
    run = facts.run
    rows = [_digest("MLflow id", run.id), ("spec", *(str(facts.lineage.get("spec", "")),) * 2)]
    if facts.sweep and facts.sweep.best:
        best = facts.sweep.best.run
        rows += [("best trial", best.name, best.name), _digest("its id", best.id)]
    elif facts.lineage.get("parent"):
        rows.append(_digest("sweep", str(facts.lineage["parent"])))
    rows.append(("folder", shown(run.folder), str(run.folder)))
    rows += [(f"output {name}", asset, asset) for name, asset in run.registered.items()]
    return "run", run.name, rows


def _python(facts: Facts) -> str:
    """The Python that stood for the environment; "" of a run that did not write it down."""
    found = facts.lineage.get("interpreter") or {}
    if not found:
        return ""
    built = f"built from the conda file as {found['built']}" if found.get("built") else "this one"
    return f"{found.get('python')}, {built}"


def _model(facts: Facts) -> Iterator[Link]:
    release = facts.release
    if release is None:
        return
    made = release.evidence.lineage
    rows = [
        _digest("digest", release.version.digest),
        _digest("features", made.feature_set_hash or ""),
        _digest("evidence", release.version.evidence),
    ]
    ours = {facts.run.id, *(trial.id for trial in facts.run.trials)}
    if made.run and made.run not in ours:
        rows.append(_digest("first made by run", made.run))
    yield "model version", release.name, rows
    if release.declared or release.is_champion:
        state = [
            word
            for word, true in (("declared", release.declared), ("champion", release.is_champion))
            if true
        ]
        yield "environment", "local", [("state", *(" and ".join(state),) * 2)]
