# SPDX-License-Identifier: Apache-2.0
# Cross-compiles for 64-bit Arm with Debian's gcc-aarch64-linux-gnu and the arm64 packages in the folder CLMGK_ARM64_ROOT
# (tools/arm64-root.sh): cmake -D CMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake, with CLMGK_ARM64_ROOT in the environment.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_FIND_ROOT_PATH $ENV{CLMGK_ARM64_ROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} $ENV{CLMGK_ARM64_ROOT})
set(ENV{PKG_CONFIG_LIBDIR} $ENV{CLMGK_ARM64_ROOT}/usr/lib/aarch64-linux-gnu/pkgconfig)
