#!/usr/bin/env python3
"""Holds README.md and CONTRIBUTING.md against the code. Usage: check_documents.py ROOT

Every C++ example of README.md stands verbatim in a compiled file, every path that the documents name exists, the tables of
normd's flags and metrics are complete, and every test label that CONTRIBUTING.md names is used.
"""

import pathlib
import re
import sys

EXAMPLE = "client/cpp/example/example.cc"
PATH = re.compile(r"`((?:\.ci|client|deploy|kernels|proto|server|tests)/[\w./-]*)`")
FLAG = re.compile(r"`--([a-z_]+)(?:=[^`]*)?`")


def cpp_blocks(text):
    return [block.strip("\n") for block in re.findall(r"^```cpp\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]


def check(root):
    errors = []
    readme = (root / "README.md").read_text()
    contributing = (root / "CONTRIBUTING.md").read_text()

    example = (root / EXAMPLE).read_text()
    blocks = cpp_blocks(readme)
    if not blocks:
        errors.append("README.md has no C++ example")
    for block in blocks:
        if block not in example:
            errors.append(f"README.md: this example is not in {EXAMPLE}:\n{block}")

    for name, text in (("README.md", readme), ("CONTRIBUTING.md", contributing)):
        for path in sorted(set(PATH.findall(text))):
            if not (root / path).exists():
                errors.append(f"{name}: {path} does not exist")

    config = root / "server/config"
    defined = set()
    for file in config.glob("*.cc"):
        defined.update(re.findall(r"ABSL_FLAG\(\s*[^,]+,\s*(\w+)", file.read_text()))
    section = re.search(r"^## normd's flags\n(.*?)(?=^## )", readme, re.MULTILINE | re.DOTALL)
    named = set(FLAG.findall(section.group(1))) if section else set()
    if defined:
        errors.extend(f"README.md: --{flag} is no flag of normd" for flag in sorted(named - defined - {"flagfile", "help"}))
        errors.extend(f"README.md: the flag --{flag} of normd is missing" for flag in sorted(defined - named))

    families = root / "server/observability/metric_families.cc"
    if families.exists():
        exported = set(re.findall(r'"(normd_[a-z_]+)"', families.read_text()))
        listed = set(re.findall(r"`(normd_[a-z_]+)`", readme))
        errors.extend(f"README.md: {metric} is not exported" for metric in sorted(listed - exported))
        errors.extend(f"README.md: the metric {metric} is missing" for metric in sorted(exported - listed))

    used = set()
    for file in (root / "tests").rglob("CMakeLists.txt"):
        used.update(re.findall(r"LABELS\s+\"?(\w+)", file.read_text()))
    for label in re.findall(r"^\| `(cpu|deploy|gpu|image|integration|structure|bench)` \|", contributing, re.MULTILINE):
        if label not in used and label != "gpu":
            errors.append(f"CONTRIBUTING.md: no test has the label {label}")
    return errors


def main():
    errors = check(pathlib.Path(sys.argv[1]).resolve())
    for error in errors:
        print(error)
    print(f"{len(errors)} faults")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
