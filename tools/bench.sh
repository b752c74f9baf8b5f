#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs missing packages, builds into build/, and runs clmgk-bench with the given arguments (none: the main
# comparison). Results go to stdout, everything else to stderr.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
(
    cd "$root"
    tools/install-packages.sh build
    cmake --preset programs # as tools/test.sh configures build/, without the tests' packages
    cmake --build --preset programs
) >&2
exec "$root/build/bin/clmgk-bench" "$@"
