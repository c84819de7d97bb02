#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/make_environment.sh FOLDER GROUP...: a Python environment with the named groups of pyproject.toml (`build`,
# `run`, or an optional one: `test`, `peers`). Quick where it has them; made anew where an earlier run was cut off.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder=$1
shift
requirements=$(/usr/bin/python3 - "$@" <<'PYTHON'
import sys
import tomllib
with open("pyproject.toml", "rb") as file:
    settings = tomllib.load(file)
groups = {"build": settings["build-system"]["requires"], "run": settings["project"]["dependencies"],
          **settings["project"]["optional-dependencies"]}
print("\n".join(requirement for group in sys.argv[1:] for requirement in groups[group]))
PYTHON
)
# The interpreter stands there before pip does.
if ! "$folder/bin/python" -m pip --version >/dev/null 2>&1; then
  rm -rf "$folder"
  /usr/bin/python3 -m venv "$folder"
fi
# The environment remembers the list it was made from.
if [[ ! -f $folder/requirements.txt || $requirements != "$(<"$folder/requirements.txt")" ]]; then
  echo "Installing Python packages into $folder"
  printf '%s\n' "$requirements" >"$folder/requirements.next"
  "$folder/bin/python" -m pip install --quiet --disable-pip-version-check -r "$folder/requirements.next"
  mv "$folder/requirements.next" "$folder/requirements.txt"
fi
