#!/usr/bin/env python3
"""Holds every #include against the table "Who may include whom" of CONTRIBUTING.md. Usage: check_includes.py ROOT"""

import pathlib
import re
import sys

# What an include names, first match wins. `own` is anything inside the including folder of the table.
KINDS = [
    (r"norm/kernels/(dtype|op_types|status|result|workspace)\.h$", "types"),
    (r"norm/kernels/", "kernels"),
    (r"norm/cuda/", "cuda"),
    (r"norm/client/", "client"),
    (r"norm/v1/|.*\.pb\.h$", "proto"),
    (r"proto/codec/", "wire"),
    (r"proto/credentials/", "credentials"),
    (r"proto/tracing/", "tracing"),
    (r"server/(\w+)/", "server/{}"),
    (r"client/(\w+)/", "client/{}"),
    (r"tests/(\w+)/", "tests/{}"),
    (r"absl/", "absl"),
    (r"openssl/", "openssl"),
    (r"grpc/|grpcpp/|grpc", "grpc"),
    (r"google/protobuf/", "protobuf"),
    (r"prometheus/", "prometheus"),
    (r"civetweb\.h$", "civetweb"),
    (r"zlib\.h$", "zlib"),
    (r"spdlog/", "spdlog"),
    (r"nlohmann/", "json"),
    (r"CLI/", "cli11"),
    (r"hwy/", "highway"),
    (r"nccl\.h|cub/|cuda/|cuda|cooperative_groups|device_launch|nvtx|mma\.h|vector_types", "cuda runtime"),
    (r"gtest/|gmock/", "googletest"),
    (r"benchmark/", "benchmark"),
]
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
ROOMS = ("kernels", "proto", "server", "client")


def kind_of(include):
    for pattern, kind in KINDS:
        match = re.match(pattern, include)
        if match:
            return kind.format(*match.groups()) if "{}" in kind else kind
    return None


def read_table(text):
    """Rows `| `folder/` ... | kind, kind |` under the heading, longest folder first."""
    section = re.search(r"^## Who may include whom\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if not section:
        sys.exit("CONTRIBUTING.md has no section 'Who may include whom'")
    rows = []
    for line in section.group(1).splitlines():
        row = re.match(r"\|\s*`([^`]+)`[^|]*\|([^|]*)\|", line)
        if row:
            rows.append((row.group(1), {kind.strip() for kind in row.group(2).split(",") if kind.strip()}))
    return sorted(rows, key=lambda row: -len(row[0]))


def allowed_for(path, table):
    for folder, kinds in table:
        if path == folder or (folder.endswith("/") and path.startswith(folder)):
            return folder, kinds
    return None, set()


def check(root):
    table = read_table((root / "CONTRIBUTING.md").read_text())
    if len(table) < 8:
        return [f"CONTRIBUTING.md: only {len(table)} rows in the table"], 0
    errors, count = [], 0
    for room in ROOMS:
        for file in sorted((root / room).rglob("*")):
            if file.suffix not in SUFFIXES:
                continue
            path = file.relative_to(root).as_posix()
            folder, kinds = allowed_for(path, table)
            if folder is None:
                errors.append(f"{path}: its folder is not in the table of CONTRIBUTING.md")
                continue
            for match in INCLUDE.finditer(file.read_text()):
                quoted, include = match.group(1) == '"', match.group(2)
                count += 1
                if include.startswith(folder.removesuffix("/")):
                    continue
                kind = kind_of(include)
                if kind is None and (not quoted or (file.parent / include).exists() or (root / room / include).exists()):
                    continue  # the standard library, the system, or a file of the same room
                if kind is None:
                    errors.append(f"{path}: include of '{include}', which no kind of the table names")
                elif kind not in kinds and include not in kinds:
                    errors.append(f"{path}: includes '{include}' ({kind}); {folder} may include: {', '.join(sorted(kinds))}")
    return errors, count


def main():
    errors, count = check(pathlib.Path(sys.argv[1]).resolve())
    for error in errors:
        print(error)
    if count < 100:
        print(f"only {count} includes were looked at")
        return 1
    print(f"{count} includes, {len(errors)} against the table")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
