#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what the build and the tests need on Debian 12 and makes .venv; quick where all of it is there.
# `scripts/install.sh ci` adds what .ci/run needs beyond that.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=(ca-certificates ccache cmake g++ git ninja-build pkg-config python3 python3-dev python3-venv
          libbenchmark-dev libcli11-dev libdlpack-dev libedit-dev libfmt-dev libgtest-dev libpcre2-dev libutf8proc-dev nlohmann-json3-dev)
if [[ ${1:-} == ci ]]; then
  packages+=(clang-19 clang-format-19 libclang-rt-19-dev llvm-19 binutils
             g++-aarch64-linux-gnu libc6-dev-arm64-cross googletest qemu-user)
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

scripts/make_environment.sh .venv build run test
