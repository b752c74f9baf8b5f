#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Unpacks Debian's packages for 64-bit Arm into a folder, for a cross-compiler (cmake/aarch64.cmake) or qemu-aarch64 -L:
#   tools/arm64-root.sh FOLDER PACKAGE...
# The named packages alone, not the packages that they depend on. The system's own packages and lists stay as they are, so it
# needs no root. It needs a Debian system, and its mirrors.
set -euo pipefail
if [[ $# -lt 2 || $1 == -* ]]; then
    echo "usage: tools/arm64-root.sh FOLDER PACKAGE..." >&2
    exit 2
fi
mkdir -p "$1"
root=$(realpath "$1")
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/archives/partial" "$work/packages"
: >"$work/status"
apt=(apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User= -o "Dir::State=$work"
    -o "Dir::State::status=$work/status" -o "Dir::Cache=$work")
"${apt[@]}" update
cd "$work/packages"
"${apt[@]}" download "$@"
for package in *.deb; do
    dpkg-deb -x "$package" "$root"
done
