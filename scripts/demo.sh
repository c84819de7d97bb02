#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a bare Debian 12 to a model that answers: installs, builds, fetches SmolLM2-135M-Instruct, asks it a question and
# compares the fused path with the same kernels unfused, and with Transformers where that is installed.
# scripts/demo.sh "Another question?" asks that one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/install.sh
scripts/build.sh
model=$(scripts/get_model.sh)
question=${1:-Why is the sky blue?}

printf '\n> %s\n\n' "$question"
build/release/bin/ops-transformer generate --chat --model "$model" --prompt "$question" --max-tokens 200
printf '\nThe same model, threads and kernels, unfused and fused\n\n'
.venv/bin/python bench/compare.py --model "$model"
