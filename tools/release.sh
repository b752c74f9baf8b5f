#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes and checks all files of a release from the last commit: tools/release.sh [--sources] [FOLDER]
#   (none)     sources, Python's source distribution and wheels, a Debian package, and their SHA-256 sums. Everything is made
#              twice, in two folders, and must be the same to the bit.
#   --sources  only the sources (nothing is installed, built or tested)
# FOLDER: build-release by default. docs/architecture.md describes a release.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
sources=0
if [[ ${1:-} == --sources ]]; then
    sources=1
    shift
fi
if [[ $# -gt 1 || ${1:-} == -* ]]; then
    echo "usage: tools/release.sh [--sources] [FOLDER]" >&2
    exit 2
fi
folder=$(realpath -m "${1:-build-release}")
fail() {
    echo "release.sh: $*" >&2
    exit 1
}
commit=$(git rev-parse HEAD 2>/dev/null) || fail "expected a git repository: a release is made of a commit"
[[ -z $(git status --porcelain) ]] || echo "release.sh: changes that are not committed are left out" >&2

# The version of the header must be that of the first heading in the list of changes: "## 1.2.3 (2027-01-31)" or "(unreleased)".
version=$(git show "$commit:include/clmgk/version.h" | sed -n 's/^#define CLMGK_VERSION_\(MAJOR\|MINOR\|PATCH\) //p' | paste -sd.)
heading=$(git show "$commit:CHANGELOG.md" | sed -n 's/^## //p' | head -n 1)
[[ $heading == "$version ("*")" ]] || fail "CHANGELOG.md begins with \"$heading\", but version.h has $version"
date=${heading#*\(}
date=${date%\)}
# The date of all files: the release's, or before it the commit's.
if [[ $date == unreleased ]]; then
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct "$commit")
else
    SOURCE_DATE_EPOCH=$(date --utc --date "$date" +%s) || fail "CHANGELOG.md: \"$date\" is not a date"
fi
export SOURCE_DATE_EPOCH

make_sources() { # FOLDER
    mkdir -p "$1"
    git archive --prefix="libclmgk-$version/" "$commit" | gzip -9n >"$1/libclmgk-$version.tar.gz"
}

# The package and its check: its files lie where it says, and a program of it starts.
make_package() { # TREE FOLDER
    {
        cmake -S "$1" -B "$1/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCLMGK_BUILD_TESTS=OFF -DCLMGK_WITH_MPI=OFF \
            -DCMAKE_BUILD_RPATH_USE_ORIGIN=ON -DCMAKE_C_FLAGS="${CFLAGS:-} -ffile-prefix-map=$1=." &&
            cmake --build "$1/build" &&
            (cd "$1/build" && cpack -B "$1/package")
    } >"$1.log" || fail "the package: $(tail -n 30 "$1.log")"
    cp "$1"/package/*.deb "$2"
    dpkg-deb -x "$1"/package/*.deb "$1/unpacked"
    LD_LIBRARY_PATH=$(dirname "$(find "$1/unpacked" -name 'libclmgk.so.*' | head -n 1)") "$1/unpacked/usr/bin/clmgk-info" --version
}

make_all() { # TREE FOLDER [OPTION of wheels.sh]: everything, in a folder TREE of its own
    make_sources "$2"
    mkdir -p "$1"
    tar -C "$1" --strip-components=1 -xf "$2/libclmgk-$version.tar.gz"
    "$1/python/wheels.sh" "${@:3}" "$2"
    make_package "$1" "$2"
    (cd "$2" && sha256sum -- *"clmgk-$version"[.-]* "libclmgk_${version}_"*.deb >SHA256SUMS)
}

if [[ $sources -eq 1 ]]; then
    make_sources "$folder"
    exit 0
fi
tools/install-packages.sh release
rm -f "$folder"/*clmgk[-_]"$version"[._-]* # of an earlier run
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
make_all "$work/tree" "$folder"
make_all "$work/second/another-tree" "$work/files" --untested
cmp "$folder/SHA256SUMS" "$work/files/SHA256SUMS" || fail "made twice, the files differ: $(diff "$folder/SHA256SUMS" "$work/files/SHA256SUMS")"
echo "the same to the bit in both runs:"
cat "$folder/SHA256SUMS"
