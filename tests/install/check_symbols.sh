#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The shared library exports exactly what the headers declare; the static one defines only clmgk_ and mgk_ names; and
# the fault layer knows every OpenCL call that the library makes. The shared library needs the C library and OpenCL alone.
# libclmgk-dist likewise, by CLMGK_DIST_API.
#   check_symbols.sh SOURCE_DIR SHARED_LIBRARY STATIC_LIBRARY DIST_SHARED DIST_STATIC
set -euo pipefail

source=$1
shared=$2
static=$3
dist_shared=$4
dist_static=$5
failed=0

complain() { # WHAT NAMES
    if [[ -n $2 ]]; then
        printf '%s:\n%s\n' "$1" "$2" >&2
        failed=1
    fi
}

check_names() { # DECLARATION SHARED STATIC
    local declared exported
    declared=$(cat "$source"/include/clmgk/*.h | tr '\n' ' ' | grep -oP "\b$1 (\w+ )+\*?\Kclmgk_\w+(?=\()" | sort -u)
    exported=$(nm -D --defined-only "$2" | awk '{ print $3 }' | sort -u)
    [[ -n $declared ]]
    complain "declared, not exported" "$(comm -23 <(echo "$declared") <(echo "$exported"))"
    complain "exported, not declared" "$(comm -13 <(echo "$declared") <(echo "$exported"))"
    complain "names of the static library outside clmgk_ and mgk_" \
        "$(nm -g --defined-only "$3" | awk 'NF == 3 && $3 !~ /^(clmgk|mgk)_/ { print $3 }')"
}

check_names CLMGK_API "$shared" "$static"
check_names CLMGK_DIST_API "$dist_shared" "$dist_static"

complain "libraries that every program would need" "$(readelf -d "$shared" | grep -oP 'NEEDED.*\[\K[^\]]+' |
    grep -vE '^(libOpenCL|libc|libm|libdl|libpthread|ld-linux.*|lib[a-z]*san)\.so')"
called=$(nm -D --undefined-only "$shared" | grep -oP '\bcl[A-Z]\w+' | sort -u)
known=$(grep -oP '\bcl[A-Z]\w+' "$source/tests/layers/fault_layer.c" | sort -u)
for kind in Context CommandQueue MemObject Program Kernel Event Device; do
    known+=$'\n'clRetain$kind$'\n'clRelease$kind
done
[[ -n $called ]]
complain "OpenCL calls that the fault layer does not know" "$(comm -23 <(echo "$called") <(echo "$known" | sort -u))"
exit "$failed"
