"""The results of a run: a table to read, and a document to keep."""

import datetime
import json
from pathlib import Path

from local_machine import machine

SCHEMA = "xsched-rocm-clients"
SCHEMA_VERSION = 1
RESULTS = ("passed", "failed", "skipped")
COLUMNS = ("client", "package", "HIP", "by", "direct", "xsched", "output", "kernels", "ps", "level", "low/high", "seconds", "result")
# Every row of the document has these keys, in this order; null if the client did not come so far.
KEYS = (
    "client", "date", "package", "version", "hip", "way", "result", "reason", "direct", "direct_seconds", "xsched", "seconds", "is_same_output",
    "kernels", "are_same_kernels", "kernels_vary", "is_listed", "level", "pairs", "low_runs", "low_launches", "low_launches_during_high", "checked_seconds", "short_work", "ranks_held_together",
)


def count(rows: list[dict]) -> dict[str, int]:
    return {result: sum(row["result"] == result for row in rows) for result in RESULTS}


def document(rows: list[dict], earlier: list[dict], order: list[str], kernel_us: int, level: str) -> dict:
    """The document. Of the earlier rows those of clients that did not run now are kept; `order` are the names of all clients."""
    today = datetime.date.today().isoformat()
    rows = [{key: row.get(key) for key in KEYS} | {"date": today} for row in rows]
    done = {row["client"] for row in rows}
    rows = sorted([*rows, *(row for row in earlier if row["client"] not in done)], key=lambda row: order.index(row["client"]))
    return {
        "schema": SCHEMA, "schema_version": SCHEMA_VERSION, "machine": machine(), "kernel_us": kernel_us, "level": level, "counts": count(rows),
        "missing": [name for name in order if name not in {row["client"] for row in rows}], "rows": rows,
    }


def read_rows(file: Path) -> list[dict]:
    """The rows of a document that was written before; none if there is none of this version."""
    try:
        found = json.loads(file.read_text())
        return found["rows"] if (found["schema"], found["schema_version"]) == (SCHEMA, SCHEMA_VERSION) else []
    except (OSError, ValueError, KeyError):
        return []


def cell(row: dict, column: str) -> str:
    if column == "low/high":
        if "low_launches" not in row:
            return "-"
        return f"{row['low_launches_during_high']} of {row['low_launches']} in {1000 * row['checked_seconds']:.0f} ms"
    if column == "package":
        return " ".join(filter(None, (row["package"], row.get("version", ""))))
    names = {"HIP": "hip", "by": "way", "output": "is_same_output", "ps": "is_listed", "kernels": "are_same_kernels"}
    value = row.get(names.get(column, column), "-")
    if column == "kernels" and "kernels" in row:
        return f"{row['kernels']}{'' if row['are_same_kernels'] else ' (differ)'}"
    if isinstance(value, bool):
        return {"output": ("differs", "same"), "ps": ("no", "yes")}[column][value]
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def print_table(rows: list[dict]) -> None:
    cells = [COLUMNS, *([cell(row, column) for column in COLUMNS] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(COLUMNS))]
    for line in cells:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
    for row in rows:
        if "reason" in row:
            print(f"{row['client']}{' by ' + row['way'] if 'way' in row else ''}: {row['result']}: {row['reason']}")
