#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs missing packages, builds into build/, and runs clmgk-bench with the given arguments (none: the main
# comparison). Results go to stdout, everything else to stderr.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
{
    "$root/tools/install-packages.sh" build
    cmake -S "$root" -B "$root/build" -G Ninja
    cmake --build "$root/build"
} >&2
exec "$root/build/bin/clmgk-bench" "$@"
