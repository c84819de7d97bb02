#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each folder includes only itself and the layers below it, as docs/architecture.md orders them."""

import pathlib
import re
import subprocess
import sys

BELOW = {"base": ()}
BELOW["simd"] = ("base",)
BELOW["profiler"] = ("base", "simd")
BELOW["tuning"] = (*BELOW["profiler"], "profiler")
BELOW["gemm"] = (*BELOW["tuning"], "tuning")
BELOW["norm"] = BELOW["posembedding"] = (*BELOW["gemm"], "gemm")
BELOW["kv_cache"] = (*BELOW["norm"], "norm", "posembedding")
BELOW["attention"] = (*BELOW["kv_cache"], "kv_cache")
BELOW["gmm"] = (*BELOW["gemm"], "gemm")
BELOW["ffn"] = (*BELOW["gmm"], "gmm", "norm")
BELOW["moe"] = (*BELOW["ffn"], "ffn")
BELOW["block"] = (*BELOW["attention"], "attention", "gmm", "ffn", "moe")
BELOW["mc2"] = (*BELOW["block"], "block")
BELOW["llm"] = BELOW["aclnn"] = (*BELOW["mc2"], "mc2")
BELOW["cli"] = BELOW["python"] = (*BELOW["llm"], "llm")

INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.MULTILINE)
TEST_FILE = re.compile(r"_(test|bench|fuzz|reference)\.")


def layer_of(path: str) -> str | None:
    parts = path.split("/")
    if parts[0] == "ops_transformer" and len(parts) > 2:
        return parts[1]
    return parts[0] if parts[0] in (*BELOW, "tests", "bench", "examples") and len(parts) > 1 else None


def main() -> int:
    files = subprocess.run(["git", "ls-files", "*.h", "*.cc"], capture_output=True, text=True, check=True).stdout.split()
    problems = []
    for file in files:
        layer = layer_of(file)
        if layer in ("tests", "bench", "examples"):
            continue
        if layer not in BELOW:
            problems.append(f"{file}: '{layer}' is no layer")
            continue
        allowed = {layer, *BELOW[layer]} | ({"tests"} if TEST_FILE.search(file) else set())
        for included in INCLUDE.findall(pathlib.Path(file).read_text()):
            if (target := layer_of(included)) and target not in allowed:
                problems.append(f"{file}: {layer} must not include {included}")
    print("\n".join(problems) or f"{len(files)} files include in the right direction")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
