# SPDX-License-Identifier: Apache-2.0
# Toolchain of the preset `aarch64`: Debian's g++-aarch64-linux-gnu, tests run by qemu-user.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)  # googletest asks for one
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)
# fmt is used as headers alone, so the build machine's do.
file(GLOB fmt_DIR /usr/lib/*/cmake/fmt)
