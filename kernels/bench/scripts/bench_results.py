"""Result files of normbench: reading, merging, writing. Standard library only; report.h has the schema."""

import json
import os
import pathlib

KEY = ("op", "direction", "dtype", "weight_dtype", "shape", "layout", "variant", "impl")
FIELDS = KEY + ("us", "bytes", "share_of_copy", "share_of_same_size_copy")
HEADER = ("device", "date", "commit", "source_hash", "copy_gbs")


def key_of(row):
    return tuple(tuple(row[name]) if name == "shape" else row[name] for name in KEY)


def case_of(row):
    """What was measured, whoever computed it."""
    return key_of(row)[:-1]


def read(path):
    """A result file as a dictionary; ValueError names what is wrong."""
    try:
        report = json.loads(pathlib.Path(path).read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: {error}") from error
    return report


def check(report, name="report"):
    """The faults of a result file against the schema, as lines."""
    faults = [f"{name}: no '{field}'" for field in HEADER + ("rows",) if field not in report]
    for index, row in enumerate(report.get("rows", [])):
        if tuple(row) != FIELDS:
            faults.append(f"{name}: row {index} has the fields {', '.join(row)}")
    keys = [key_of(row) for row in report.get("rows", []) if tuple(row) == FIELDS]
    if len(set(keys)) != len(keys):
        faults.append(f"{name}: two rows measure the same thing")
    return faults


def merge(report, row):
    """Adds the row in place of one with the same key."""
    key = key_of(row)
    for index, known in enumerate(report["rows"]):
        if key_of(known) == key:
            report["rows"][index] = row
            return
    report["rows"].append(row)


def dump(report):
    """The file's text: one row a line."""
    header = ",\n ".join(f"{json.dumps(name)}: {json.dumps(report[name])}" for name in HEADER)
    rows = ",\n  ".join(json.dumps(row, separators=(",", ":")) for row in report["rows"])
    return "{" + header + ',\n "rows": [\n  ' + rows + "\n]}\n"


def write(path, report):
    """Replaces the file as a whole."""
    unfinished = f"{path}.unfinished"
    pathlib.Path(unfinished).write_text(dump(report))
    os.replace(unfinished, path)


def measured_row(case, impl, us, copy_us, copy_gbs):
    """A row for `case` (a row of `normbench kernels --list`) measured with `impl`."""
    row = {name: case[name] for name in FIELDS}
    row["impl"] = impl
    row["us"] = round(us, 3)
    row["share_of_copy"] = round(case["bytes"] / (us * 1e3 * copy_gbs), 4)
    row["share_of_same_size_copy"] = round(copy_us / us, 4)
    return row


def shape_text(shape):
    return "x".join(str(extent) for extent in shape)


def case_name(row):
    """As normbench names cases."""
    parts = [row["op"], row["direction"], row["dtype"], shape_text(row["shape"])]
    if row["weight_dtype"] != row["dtype"]:
        parts.append("weight_" + row["weight_dtype"])
    parts += [row[name] for name in ("layout", "variant") if row[name]]
    return "/".join(parts)
