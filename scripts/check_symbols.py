#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kernel objects of a release build define no weak symbol and no global one but the kernels that a table names.

The linker keeps one copy of a weak symbol for the whole library: a copy from an object compiled for AVX-512 would crash
older CPUs. The shared library exports its own names alone.
"""

import pathlib
import re
import subprocess
import sys

build = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build/release")
TABLE_ROW = re.compile(r"^OPS_TRANSFORMER_KERNEL\(\s*(\w+)", re.MULTILINE)


def symbols(path: pathlib.Path, *options: str) -> list[tuple[str, str]]:
    text = subprocess.run(["nm", "--demangle", "--defined-only", *options, str(path)], capture_output=True, text=True,
                          check=True).stdout
    return [(kind, name) for line in text.splitlines() for _, kind, name in [line.split(" ", 2)]]


def main() -> int:
    tables = {name for header in pathlib.Path("ops_transformer").rglob("*.h")
              for name in TABLE_ROW.findall(header.read_text())}
    problems, objects = [], sorted(build.glob("CMakeFiles/kernels_*.dir/**/*.o"))
    for path in objects:
        level = path.relative_to(build / "CMakeFiles").parts[0].removeprefix("kernels_").removesuffix(".dir")
        for kind, name in symbols(path):
            kernel = re.match(rf"ops_transformer::{level}::(\w+)\(", name)
            if name.startswith("DW.ref."):  # a pointer to the personality routine of noexcept, no code
                continue
            if kind in "WVwvu":
                problems.append(f"{path}: weak symbol {name}")
            elif kind.isupper() and not (kernel and kernel[1] in tables):
                problems.append(f"{path}: global symbol {name} is in no kernel table")
    if not objects:
        sys.exit(f"{build}: no kernel objects; build the release preset first")
    library = build / "lib/libops_transformer.so"
    c_headers = "".join(header.read_text() for header in pathlib.Path("ops_transformer").rglob("ops_transformer_*.h"))
    foreign = [name for kind, name in symbols(library, "--dynamic")
               if "ops_transformer" not in name and f" {name}(" not in c_headers and kind in "TDBR"]
    problems += [f"{library}: exports {name}" for name in foreign]
    print("\n".join(problems) or f"{len(objects)} kernel objects of {len(tables)} kernels: no weak, no stray symbol")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
