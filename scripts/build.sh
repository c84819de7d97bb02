#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the library, the command, tests and benchmarks (build/release) and installs the Python package into .venv.
# Another preset's name builds that one, without the package: scripts/build.sh asan
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=${1:-release}
if [[ ! -f build/$preset/build.ninja ]]; then
  cmake --preset "$preset" >/dev/null
fi
cmake --build --preset "$preset" --parallel "$(nproc)"

if [[ $preset == release ]]; then
  # pip's own bookkeeping takes seconds, so it runs only where something that the package is made of has changed.
  stamp=build/python_package.stamp
  sources=(CMakeLists.txt pyproject.toml cmake llm ops_transformer cli python)
  if [[ ! -f $stamp || -n $(find "${sources[@]}" -newer "$stamp" -not -name __pycache__ -print -quit) ]] ||
     ! .venv/bin/python -c 'import ops_transformer' 2>/dev/null; then
    echo "Building the Python package"
    started=$(mktemp build/stamp.XXXXXX)
    trap 'rm -f "$started"' EXIT
    # One compiler's name for both builds: ccache tells c++ from x86_64-linux-gnu-g++, which Python would name.
    CXX=${CXX:-c++} .venv/bin/pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps .
    mv "$started" "$stamp"
  fi
fi
