#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the C++ tests of a preset and leaves their results in build/results: scripts/ctest.sh PRESET LABEL [ctest options]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=$1 label=$2
shift 2
results=$PWD/build/results/$label
rm -rf "$results"
mkdir -p "$results"
# GoogleTest writes one file a program into this folder; scripts/count_tests.py adds them up.
GTEST_OUTPUT=xml:$results/ ctest --test-dir "build/$preset" --output-on-failure --parallel "$(nproc)" \
  --no-tests=error --output-junit "$results/ctest.junit" "$@"
