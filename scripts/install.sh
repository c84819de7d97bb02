#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what the build and the tests need on Debian 12 and makes .venv; quick where all of it is there.
# `scripts/install.sh ci` adds what .ci/run needs beyond that.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=(ca-certificates ccache cmake g++ git ninja-build pkg-config python3 python3-dev python3-venv
          libbenchmark-dev libcli11-dev libdlpack-dev libfmt-dev libgtest-dev libpcre2-dev nlohmann-json3-dev)
if [[ ${1:-} == ci ]]; then
  packages+=(clang-19 clang-format-19 libclang-rt-19-dev llvm-19 binutils)
fi

missing=()
for package in "${packages[@]}"; do
  [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
done
if ((${#missing[@]})); then
  if ((EUID != 0)); then
    echo "These packages are missing; install them as root: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  echo "Installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

# The requirements stand in pyproject.toml alone; the environment remembers the list it was made from.
requirements=$(/usr/bin/python3 - <<'PYTHON'
import tomllib
with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)
print("\n".join(project["build-system"]["requires"] + project["project"]["dependencies"]
                + project["project"]["optional-dependencies"]["test"]))
PYTHON
)
if [[ ! -x .venv/bin/python ]] || ! .venv/bin/python -c '' 2>/dev/null; then
  rm -rf .venv
  /usr/bin/python3 -m venv .venv
fi
if [[ ! -f .venv/requirements.txt || $requirements != "$(<.venv/requirements.txt)" ]]; then
  echo "Installing Python packages into .venv"
  printf '%s\n' "$requirements" >.venv/requirements.next
  .venv/bin/pip install --quiet --disable-pip-version-check -r .venv/requirements.next
  mv .venv/requirements.next .venv/requirements.txt
fi
