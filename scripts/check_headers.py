#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each header compiles alone. Those of a target region (*.inl.h, simd/) are parts of kernels, not headers."""

import concurrent.futures
import os
import subprocess
import sys
import sysconfig

FLAGS = ["-std=c++20", "-fsyntax-only", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wpedantic", "-Wno-psabi",
         "-Werror", "-DFMT_HEADER_ONLY", "-I.", "-x", "c++"]


def python_flags() -> list[str]:
    import nanobind

    return ["-isystem", nanobind.include_dir(), "-isystem", sysconfig.get_path("include")]


def compile_alone(header: str) -> str:
    flags = FLAGS + (python_flags() if header.startswith("python/") else [])
    text = f'#include "{header}"\n'
    result = subprocess.run([os.environ.get("CXX", "g++"), *flags, "-"], input=text, capture_output=True, text=True)
    return "" if result.returncode == 0 else f"{header}:\n{result.stderr}"


def main() -> int:
    files = subprocess.run(["git", "ls-files", "*.h"], capture_output=True, text=True, check=True).stdout.split()
    headers = [file for file in files if not file.endswith(".inl.h") and "/simd/" not in file]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        problems = [problem for problem in pool.map(compile_alone, headers) if problem]
    print("\n".join(problems) or f"{len(headers)} headers compile alone")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
