#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds what is missing and runs every test, C++ and Python. The last line is `N passed, N failed`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/install.sh
scripts/build.sh
model=$(scripts/get_model.sh)
export OPS_TRANSFORMER_TEST_MODEL=$PWD/$model

status=0
scripts/ctest.sh release cpp || status=1
rm -rf build/results/python
mkdir -p build/results/python
.venv/bin/python -m pytest --junit-xml=build/results/python/pytest.junit || status=1

.venv/bin/python scripts/count_tests.py build/results/cpp build/results/python || status=1
exit "$status"
