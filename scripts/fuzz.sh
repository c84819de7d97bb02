#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds the fuzzers and runs each in turn: `scripts/fuzz.sh [SECONDS]`, SECONDS (default 60) shared out evenly. A
# failing input is left in build/fuzz/artifacts and ends the script with an error; what was found interesting stays in
# build/fuzz/corpus and is where the next run starts. Ends with the check of line coverage.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
if [[ ! $seconds =~ ^[1-9][0-9]*$ ]]; then
  echo "'$seconds', must be a whole number of seconds, at least 1" >&2
  exit 2
fi
cmake --preset fuzz > /dev/null
cmake --build --preset fuzz
work=build/fuzz
mkdir -p $work/corpus $work/artifacts $work/profiles
$work/bin/fuzz_seeds $work/seeds
shopt -s nullglob
fuzzers=($work/bin/*_fuzz)
each=$(((seconds + ${#fuzzers[@]} - 1) / ${#fuzzers[@]}))  # rounded up: libFuzzer takes 0 for no limit
for fuzzer in "${fuzzers[@]}"; do
  name=$(basename "$fuzzer")
  mkdir -p $work/corpus/"$name" $work/seeds/"$name"
  echo "$name: $each s"
  # An allocation past 50 MB is a fault by the library's own promise.
  LLVM_PROFILE_FILE=$work/profiles/$name.profraw "$fuzzer" -max_total_time=$each -timeout=10 \
    -malloc_limit_mb=50 -rss_limit_mb=1024 -max_len=4096 -print_final_stats=1 -print_funcs=0 -verbosity=0 \
    -artifact_prefix=$work/artifacts/"$name"- $work/corpus/"$name" $work/seeds/"$name" 2>&1 |
    { grep -vE '^(INFO|stat::(new_units|slowest|peak|average)|Done|"|####)' || true; }
done
scripts/fuzz_coverage.sh
