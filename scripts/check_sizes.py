#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Budgets: lines of a file, bytes of the stripped library, instantiations of a kernel template at one level."""

import collections
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

build = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build/release")
MEDIAN_LINES, NINE_TENTHS_LINES, MOST_LINES = 150, 400, 700
LIBRARY_BYTES = 12 << 20
INSTANTIATIONS = 40
INSTANCE = re.compile(r" [tT] .*?(?P<name>\w+)<(?P<arguments>(?P<type>[^\d,][^,]*)?.*)")


def run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main() -> int:
    problems = []
    files = run("git", "ls-files", "*.h", "*.cc", "*.py", "*.pyi", "*.sh", "*.cmake", "*CMakeLists.txt").split()
    lines = {file: pathlib.Path(file).read_bytes().count(b"\n") for file in files}
    median, nine_tenths = statistics.median(lines.values()), statistics.quantiles(lines.values(), n=10)[-1]
    problems += [f"{file}: {count} lines, must be at most {MOST_LINES}" for file, count in lines.items() if count > MOST_LINES]
    if median > MEDIAN_LINES or nine_tenths > NINE_TENTHS_LINES:
        problems.append(f"files: median {median} lines (at most {MEDIAN_LINES}), nine tenths {nine_tenths:.0f} ({NINE_TENTHS_LINES})")

    if not (build / "lib/libops_transformer.so").exists():
        sys.exit(f"{build}: no library; build the release preset first")
    with tempfile.NamedTemporaryFile() as stripped:
        run("strip", "-o", stripped.name, str(build / "lib/libops_transformer.so"))
        library = pathlib.Path(stripped.name).stat().st_size
    if library > LIBRARY_BYTES:
        problems.append(f"stripped library: {library} bytes, must be at most {LIBRARY_BYTES}")

    most = 0
    for path in build.glob("CMakeFiles/kernels_*.dir/**/*.o"):
        instances = collections.defaultdict(set)
        for line in run("nm", "--demangle", "--defined-only", str(path)).splitlines():
            if template := INSTANCE.search(line):
                # A template's first type is that of the tile, so it tells the kernels of one object apart.
                instances[template["name"], template["type"]].add(re.sub(r" \[clone.*", "", template["arguments"]))
        for (name, tile), found in instances.items():
            most = max(most, len(found))
            if len(found) > INSTANTIATIONS:
                problems.append(f"{path}: {len(found)} instantiations of {name}<{tile}…>, must be at most {INSTANTIATIONS}")

    print("\n".join(problems) or f"{len(files)} files: median {median:.0f}, nine tenths {nine_tenths:.0f}, longest "
          f"{max(lines.values())} lines; stripped library {library / 2**20:.1f} MiB; at most {most} instantiations")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
