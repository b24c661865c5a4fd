"""Chart the best trials of an AutoML job: score, spread over folds, and model family."""

from __future__ import annotations

import altair as alt
from markupsafe import Markup

from ml.reports.charts import svg
from ml.reports.charts.scales import axis, bounds
from ml.reports.formatting import number
from ml.reports.leaderboard import Leaderboard

# Maximum trials drawn, and maximum colours of model families, which page.css defines.
TRIALS, COLOURS = 20, 6


def leaderboard_chart(board: Leaderboard) -> Markup:
    """Plot a dot for each of the best trials, with an error bar of ± one spread."""
    entries = board.entries[:TRIALS]
    families = [*dict.fromkeys(entry.family for entry in entries)]
    colours = {name: f"class{min(index, COLOURS - 1) + 1}" for index, name in enumerate(families)}
    rows = []
    for place, entry in enumerate(entries):
        spread = entry.spread or 0.0
        spread_text = "" if entry.spread is None else f" ± {number(entry.spread)}"
        rows.append(
            {
                "place": place,
                "name": f"{entry.trial.sample_number}",
                "x": entry.value,
                "low": entry.value - spread,
                "high": entry.value + spread,
                "text": f"{number(entry.value)}{spread_text}",
                "colour": f"var(--{colours[entry.family]})",
                "words": f"trial {entry.trial.number}: {entry.family}, {entry.origin}, "
                f"{number(entry.value)}{spread_text}",
            }
        )
    low, high = bounds([end for row in rows for end in (row["low"], row["high"])])  # type: ignore[misc]
    x = alt.X("x:Q", title=board.metric, **axis(low, high))
    y = alt.Y("place:O", axis=None)
    colour = alt.Color("colour:N", scale=None, legend=None)
    data = svg.rows(rows)
    lines = data.mark_rule(strokeWidth=2).encode(
        alt.X("low:Q", title=board.metric, **axis(low, high)), y, colour, x2="high:Q"
    )
    dots = data.mark_point(size=60).encode(x, y, colour)
    names = data.mark_text(align="right", dx=-8).encode(y, text="name:N", x=alt.value(0))
    caption = (
        f"The {len(entries)} best of {len(board.entries)} trials, best first, by trial number."
    )
    if any(entry.spread for entry in entries):
        over = str(board.facts.get("over") or "folds")
        caption += f" Error bars: ± one standard deviation over {over}."
    meanings = {
        line_colour: (line_colour, " and ".join(n for n in families if colours[n] == line_colour))
        for line_colour in colours.values()
    }
    return svg.figure(
        "Leaderboard",
        alt.layer(lines, svg.pointed(dots), names),
        590,
        22 * len(rows) + 60,
        caption,
        meanings,
    )
