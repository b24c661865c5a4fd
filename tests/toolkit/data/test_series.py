"""ml.toolkit.data.series: a table as series, cutoffs without leakage, and what is refused."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from ml.toolkit.data.series import Panel, read_panel

HEAD: dict[str, Any] = {
    **{"task": "forecasting", "primary_metric": "mase", "target": "sales", "time": "day"},
    **{"series": ["item"], "horizon": 3, "season": 2, "known": ["offer"], "slices": ["kind"]},
    **{"delimiter": ",", "header": True, "rows": [1, 1000]},
    "columns": [
        {"name": "item", "type": "category"},
        {"name": "kind", "type": "category"},
        {"name": "day", "type": "timestamp"},
        {"name": "sales", "type": "float", "optional": True},
        {"name": "offer", "type": "integer"},
    ],
}
DAYS = [(date(2025, 1, 1) + timedelta(days=of)).isoformat() for of in range(30)]
ROWS = [f"{item},k{item},{day},{at},0" for item in "ab" for at, day in enumerate(DAYS)]


def read(folder: Path, rows: list[str], **changes: Any) -> Panel:
    schema = folder / "t.schema.yml"
    schema.write_text(yaml.safe_dump({**HEAD, **changes}))
    (folder / "table.csv").write_text("\n".join(["item,kind,day,sales,offer", *rows]) + "\n")
    return read_panel(folder, schema)


def test_a_table_is_series_on_one_grid(tmp_path: Path) -> None:
    """Rows may be in any order and absent; an empty target is a missing value."""
    rows = [of for of in ROWS if not of.startswith("b,kb,2025-01-0")]
    rows[4] = rows[4].replace(",4,0", ",,1")
    panel = read(tmp_path, rows[::-1])
    assert panel.names == ["a", "b"] and panel.values.shape == (2, 30)
    assert np.flatnonzero(np.isnan(panel.values[0])).tolist() == [4]
    assert panel.known["offer"][0].sum() == 1 and panel.starts.tolist() == [0, 9]
    assert panel.slices == {"kind": ["ka", "kb"]}


def test_a_series_without_a_group_is_in_a_slice_of_its_own(tmp_path: Path) -> None:
    """Whatever stands for a missing value in the table."""
    columns = [{**column, "optional": column["name"] == "kind"} for column in HEAD["columns"]]
    for cell in ("", "N/A"):
        panel = read(tmp_path, [of.replace(",ka,", f",{cell},") for of in ROWS], columns=columns)
        assert panel.slices == {"kind": ["missing", "kb"]}


def test_cutoffs(tmp_path: Path) -> None:
    """The test is last, then validation; no target of training is after validation's first cutoff,
    and a series without values before its cutoff or after it has no forecast.
    """
    panel = read(tmp_path, [of for of in ROWS if not of.startswith("b,kb,2025-01-1")])
    assert panel.cutoffs["test"] == [24, 27] and panel.cutoffs["validation"] == [18, 21]
    assert max(panel.cutoffs["train"]) + 3 == 18 and min(panel.cutoffs["train"]) >= 4
    late = read(tmp_path, [of for of in ROWS if of[0] == "a" or of[-4:] in ("29,0", "28,0")])
    assert len(late.units("test")) == 2
    rows = panel.rows("test", np.zeros((4, 3, 3)))
    assert rows.ids[:2] == ["a 2025-01-25T00:00:00", "b 2025-01-25T00:00:00"]
    assert rows.slices["history"] == ["established"] * 4 and list(rows.groups) == ["a", "b"] * 2
    assert rows.requests[0]["history"] == [float(of) for of in range(8, 24)]
    assert rows.requests[0]["known"] == {"offer": [0.0] * 19}


def test_a_request_goes_on_from_the_rows_before_the_test(tmp_path: Path) -> None:
    """A model that a search fitted to them knows no later value, however short the season is."""
    panel = read(tmp_path, ROWS, season=1, horizon=2, origins=6)
    last = panel.units("test")[-1]
    history = panel.request(last)["history"]
    assert history == [float(of) for of in range(panel.cutoffs["test"][0], last.cutoff)]
    assert len(panel.request(panel.units("test")[0])["history"]) == 8  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (
            [*ROWS, ROWS[0]],
            "error[duplicate-time]: {table}:62: a has 2025-01-01T00:00:00 on line 2",
        ),
        ([*ROWS, "a,ka,2025-03-01T00:00:00+01:00,1,0"], "error[mixed-time-zones]: {table}:62"),
        (
            [of for of in ROWS if of[5:15] < DAYS[11]],
            "error[too-few-steps]: {table}: the table has 11 steps",
        ),
        (["a,ka,yesterday,1,0"], "an ISO 8601 time"),
        (["a,ka,2025-01-01,many,0"], "a finite number"),
        (["a,ka,2025-01-01,1,"], "offer is empty"),
    ],
)
def test_a_table_that_is_no_series(rows: list[str], words: str, tmp_path: Path) -> None:
    """It names the line."""
    with pytest.raises(SystemExit) as ended:
        read(tmp_path, rows)
    assert words.format(table=tmp_path / "table.csv") in str(ended.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"horizon": 0}, "`horizon` is 0, expected a whole number from 1 to 1000"),
        ({"season": "week"}, "`season` is 'week', expected a whole number"),
        ({"primary_metric": "auc"}, "`primary_metric` is 'auc', expected one of mase"),
        (
            {"known": ["kind"]},
            "`known` is `kind`, of type category, expected a column of type float",
        ),
        ({"series": ["shop"]}, "`series` is 'shop', expected one of item"),
        ({"lags": [1]}, "`lags` is an unknown field"),
    ],
)
def test_a_head_of_another_form(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    """It names the field."""
    with pytest.raises(SystemExit) as ended:
        read(tmp_path, ROWS, **changes)
    assert "error[wrong-schema]" in str(ended.value) and words in str(ended.value)


def test_one_series_of_another_time_zone(tmp_path: Path) -> None:
    """A table of one series needs no column that names it."""
    rows = [f"a,ka,{day}T00:00:00+05:30,{at},0" for at, day in enumerate(DAYS)]
    panel = read(tmp_path, rows, series=[], slices=[])
    assert panel.names == ["all"] and len(panel.units("test")) == 2
