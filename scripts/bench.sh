#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures every promise of bench/bars.toml and writes docs/performance.md: ours and the peers by turns, in one run.
# The peers live in .peers, made here (PyTorch is a large download and llama-cpp-python compiles for minutes);
# PEERS_PYTHON names an interpreter that has them already. Options go to bench/measure.py: scripts/bench.sh --rounds 3
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/install.sh
scripts/build.sh
smollm2=$(scripts/get_model.sh)
gemma3=$(scripts/get_model.sh gemma3)
if [[ -z ${PEERS_PYTHON:-} ]]; then
  PEERS_PYTHON=.peers/bin/python
  scripts/make_environment.sh .peers peers
fi
# The pool is measured inside a process that has PyTorch as well: that one sees our package alone out of .venv.
mkdir -p build/package_alone
package=$(.venv/bin/python -c 'import ops_transformer, os; print(os.path.dirname(ops_transformer.__file__))')
ln -sfn "$package" build/package_alone/ops_transformer
export PYTHONPATH=$PWD/build/package_alone
exec .venv/bin/python bench/measure.py --model "smollm2=$smollm2" --model "gemma3=$gemma3" --peers-python "$PEERS_PYTHON" "$@"
