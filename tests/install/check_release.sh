#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A release's version and sources: tools/release.sh --sources in a repository of its own, with files like the project's. And the
# site's list of pages.
#   check_release.sh SOURCE_DIR
set -euo pipefail

source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/tree/tools" "$work/tree/include/clmgk"
cp "$source/tools/release.sh" "$work/tree/tools"
cp "$source/include/clmgk/version.h" "$work/tree/include/clmgk"
cp "$source/CHANGELOG.md" "$work/tree"
export GIT_AUTHOR_NAME=test GIT_AUTHOR_EMAIL=test@localhost GIT_COMMITTER_NAME=test GIT_COMMITTER_EMAIL=test@localhost
git -C "$work/tree" init -q
commit() {
    git -C "$work/tree" add -A
    git -C "$work/tree" commit -q -m "$1"
}
commit sources

fail() {
    echo "check_release.sh: $*" >&2
    exit 1
}
release() { # FOLDER
    "$work/tree/tools/release.sh" --sources "$work/$1"
}

# The project's own version and list of changes agree. Two copies of the sources are the same, and nothing else is in them.
release first
echo new >"$work/tree/uncommitted"
sleep 1 # another time of making
release second 2>"$work/log"
grep -q "not committed are left out" "$work/log" || fail "expected a word on changes that are not committed"
cmp "$work/first/"*.tar.gz "$work/second/"*.tar.gz
[[ $(tar tf "$work/first/"*.tar.gz | grep -vc '/$') -eq 3 ]] || fail "expected the three files of the commit"
rm "$work/tree/uncommitted"

refused() { # HEADING REASON
    sed -i "0,/^## /s/^## .*/## $1/" "$work/tree/CHANGELOG.md"
    commit "$1"
    if release third 2>"$work/log"; then
        fail "\"$1\": expected a refusal"
    fi
    grep -q "$2" "$work/log" || fail "\"$1\": $(cat "$work/log")"
}
version=$(basename "$work/first/"*.tar.gz .tar.gz)
version=${version#libclmgk-}
refused "9.9.9 (unreleased)" "version.h has $version"
refused "$version (next month or so)" "is not a date"

for page in "$source"/docs/*.md; do
    grep -q ": docs/$(basename "$page")$" "$source/tools/site/mkdocs.yml" || fail "tools/site/mkdocs.yml does not have $page"
done
