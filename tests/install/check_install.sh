#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs a build to a temporary prefix, then builds and runs programs against it: CMake package and pkg-config, C and
# C++, shared and static, the README's example, and the installed examples as a project of their own, with gcc by CMake and
# with clang by pkg-config. The links of the installed documents must lead somewhere.
#   check_install.sh SOURCE_DIR BUILD_DIR
set -euo pipefail

source=$1
build=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix
warnings=(-Wall -Wextra -Wpedantic -Wshadow -Werror)

echo "== install"
cmake --install "$build" --prefix "$prefix" >"$work/install.log" || { cat "$work/install.log"; exit 1; }
for program in clmgk-run clmgk-analyze clmgk-info clmgk-bench; do
    "$prefix/bin/$program" --version
done
"$prefix/bin/clmgk-analyze" --theorems --tokens 2 --trials 1 >"$work/theorems" || { cat "$work/theorems"; exit 1; }

echo "== documents, manual pages, completion"
for file in doc/clmgk/LICENSE doc/clmgk/docs/training.md doc/clmgk/examples/training.c; do
    [[ -s $prefix/share/$file ]] || { echo "$file is not installed" >&2; exit 1; }
done
while IFS=: read -r file link; do
    [[ -e $(dirname "$file")/$link ]] || { echo "$file links to $link, which is not installed" >&2; exit 1; }
done < <(grep -roP --include='*.md' '\]\(\K(?!https?:)[^)#\s]+(?=[)#])' "$prefix/share/doc/clmgk")
expect_completion() { # EXPECTED PROGRAM WORDS...: of the last word
    local found
    # shellcheck disable=SC2016 # of the inner shell
    found=$(cd "$work/empty" && PATH=$prefix/bin:$PATH bash -c 'source "$1"; COMP_WORDS=("${@:2}"); COMP_CWORD=$(($# - 2))
        _clmgk "$2"; echo "${COMPREPLY[*]}"' bash "$prefix/share/bash-completion/completions/$2" "${@:2}")
    [[ $found == "$1" ]] || { echo "${*:2}: completion gives '$found', expected '$1'" >&2; exit 1; }
}
mkdir "$work/empty"
for program in clmgk-run clmgk-analyze clmgk-info clmgk-bench clmgk-tune; do
    expect_completion "--device" "$program" --dev
    expect_completion "pocl" "$program" --device poc
    manual=$prefix/share/man/man1/$program.1 # not where sanitizers or another machine's compiler build it
    [[ ! -e $manual ]] || grep -q '^  \\-\\-device' "$manual" || { echo "$manual lacks --device" >&2; exit 1; }
done

expect_completion "softmax" clmgk-run --variant so
expect_completion "softmax" clmgk-run --variant = so
expect_completion "elu1 relu exp dpfp favor" clmgk-run --feature ""
expect_completion "dot" clmgk-run --q q.npy --score "do"
expect_completion "f32 f16" clmgk-run --dtype-k f
expect_completion "bottom-right" clmgk-run --causal-align b
expect_completion "" clmgk-run --q ""
expect_completion "" clmgk-run --window 1
expect_completion "soft" clmgk-analyze --estep s
expect_completion "svg" clmgk-analyze --plot-format s
expect_completion "softmax,hard-fish" clmgk-bench --variants softmax,hard-fi
expect_completion "mix mix-weight mix-offset mix-hidden-offset mix-after" clmgk-bench --gradients mi
expect_completion "quick" clmgk-tune --suite q
expect_completion "" clmgk-tune --export ""
[[ -z $(ls "$work/empty") ]] || { echo "completion writes files" >&2; exit 1; }

echo "== CMake package"
cmake -S "$source/tests/install/consumer" -B "$work/consumer" -DCMAKE_PREFIX_PATH="$prefix" >"$work/cmake.log" ||
    { cat "$work/cmake.log"; exit 1; }
cmake --build "$work/consumer" >"$work/build.log" || { cat "$work/build.log"; exit 1; }
for program in c_shared c_static cxx_shared cxx_static c_default c_dist; do
    echo "$program"
    "$work/consumer/$program"
done
# A static program must not need the shared library, nor a shared one go without it.
readelf -d "$work/consumer/c_shared" | grep -q libclmgk
if readelf -d "$work/consumer/c_static" | grep -q libclmgk; then
    echo "c_static needs libclmgk.so" >&2
    exit 1
fi

echo "== pkg-config"
pc_folder=$(dirname "$(find "$prefix" -name clmgk.pc)")
lib_folder=$(dirname "$pc_folder")
export PKG_CONFIG_PATH=$pc_folder
[[ $(pkg-config --modversion clmgk) == "$("$prefix/bin/clmgk-run" --version | grep -o '[0-9][0-9.]*' | head -n 1)" ]]
read -ra flags <<<"$(pkg-config --cflags clmgk)"
read -ra shared <<<"$(pkg-config --libs clmgk) -Wl,-rpath,$lib_folder"
read -ra static <<<"$(pkg-config --static --libs clmgk)"
consumer=$source/tests/install/consumer/consumer

build_and_run() { # NAME COMPILER...
    echo "$1"
    "${@:2}" "${warnings[@]}" -o "$work/$1"
    "$work/$1"
}
build_and_run pc_c_shared gcc -std=c11 "${flags[@]}" "$consumer.c" "${shared[@]}"
read -ra dist <<<"$(pkg-config --libs clmgk-dist) -Wl,-rpath,$lib_folder"
build_and_run pc_c_dist gcc -std=c11 "${flags[@]}" "$source/tests/install/consumer/dist.c" "${dist[@]}"
build_and_run pc_cxx_shared g++ -std=c++11 "${flags[@]}" "$consumer.cpp" "${shared[@]}"
read -ra inside <<<"$(pkg-config --libs clmgk-static)"
build_and_run pc_c_inside gcc -std=c11 "${flags[@]}" "$consumer.c" "${inside[@]}"
if readelf -d "$work/pc_c_inside" | grep -q libclmgk; then
    echo "clmgk-static gives a program that needs libclmgk.so" >&2
    exit 1
fi

echo "== code of the documents: every block of C compiles as it stands, the README's first one and the recipes' run"
mkdir "$work/blocks"
for text in "$source"/README.md "$source"/docs/*.md; do
    awk -v name="$work/blocks/$(basename "$text" .md)" \
        '/^```c$/ { file = name (++count) ".c"; next } /^```/ { file = "" } file { print > file }' "$text"
done
for block in "$work"/blocks/*.c; do
    basename "$block"
    gcc -std=c11 "${warnings[@]}" "${flags[@]}" -c "$block" -o "$work/block.o"
done
build_and_run example gcc -std=c11 "${flags[@]}" "$work/blocks/README1.c" "${shared[@]}" -lm
cat "$work"/blocks/recipes*.c >"$work/recipes.h"
build_and_run recipes gcc -std=c11 "${flags[@]}" -I"$work" "$source/tests/install/recipes.c" "${shared[@]}" -lm

echo "== examples"
cp -r "$prefix/share/doc/clmgk/examples" "$work/examples"
cmake -S "$work/examples" -B "$work/examples/build" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER=gcc \
    -DCMAKE_CXX_COMPILER=g++ -DCMAKE_C_FLAGS="${warnings[*]}" -DCMAKE_CXX_FLAGS="${warnings[*]}" >"$work/cmake.log" || { cat "$work/cmake.log"; exit 1; }
cmake --build "$work/examples/build" >"$work/build.log" || { cat "$work/build.log"; exit 1; }
ctest --test-dir "$work/examples/build" --no-tests=error --verbose
make -C "$work/examples" CC=clang CXX=clang++ CFLAGS="${warnings[*]}" CXXFLAGS="${warnings[*]}" \
    LDFLAGS="-Wl,-rpath,$lib_folder" all raii.checked
for example in "$work"/examples/*.{c,cpp,h,hpp}; do
    if [[ -e $example && $(wc -l <"$example") -ge 150 ]]; then
        echo "$example: expected fewer than 150 lines" >&2
        exit 1
    fi
done

# Last: without the shared library beside it, -lclmgk is the static one.
rm "$lib_folder"/libclmgk.so*
build_and_run pc_c_static gcc -std=c11 "${flags[@]}" "$consumer.c" "${static[@]}"
build_and_run pc_cxx_static g++ -std=c++11 "${flags[@]}" "$consumer.cpp" "${static[@]}"

echo "== uninstall, after a package was made"
(cd "$build" && cpack -G TGZ -D CPACK_STRIP_FILES=OFF -B "$work/package") >"$work/cpack.log" || { cat "$work/cpack.log"; exit 1; }
tar -tf "$work"/package/*.tar.gz >"$work/packed"
grep -q '/usr/share/doc/libclmgk/copyright$' "$work/packed" || { echo "the package lacks copyright" >&2; exit 1; }
cmake --build "$build" --target uninstall >"$work/uninstall.log" || { cat "$work/uninstall.log"; exit 1; }
if [[ -n $(find "$prefix" -not -type d) || -e $prefix/share/doc/clmgk ]]; then
    echo "uninstall leaves:" >&2
    find "$prefix" -not -type d >&2
    exit 1
fi
