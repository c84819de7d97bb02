#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Line coverage that the fuzzers of the last scripts/fuzz.sh reached together in the sources each of them feeds (its
# `// feeds:` lines); fails under 85 %. `scripts/fuzz_coverage.sh --lines` also shows the lines that were missed.
set -euo pipefail
cd "$(dirname "$0")/.."
bar=85
failed=0
profile=build/fuzz/profiles/all.profdata
llvm-profdata-19 merge -sparse build/fuzz/profiles/*.profraw -o $profile
for source in */*_fuzz.cc */*/*_fuzz.cc; do
  [ -f "$source" ] || continue
  name=$(basename "$source" .cc)
  read -ra feeds <<< "$(sed -n 's|^// feeds: *||p' "$source" | tr '\n' ' ')"
  percent=$(llvm-cov-19 export -summary-only -instr-profile=$profile "build/fuzz/bin/$name" "${feeds[@]}" |
    python3 -c 'import json, sys; print("{:.1f}".format(json.load(sys.stdin)["data"][0]["totals"]["lines"]["percent"]))')
  echo "$name: $percent % of the lines it feeds (bar $bar %)"
  if [ "${1:-}" = --lines ]; then
    llvm-cov-19 show -instr-profile=$profile "build/fuzz/bin/$name" "${feeds[@]}" | grep -E '^ +[0-9]+\| +0\|' ||
      true
  fi
  awk -v percent="$percent" -v bar=$bar 'BEGIN { exit !(percent < bar) }' && failed=1
done
exit $failed
