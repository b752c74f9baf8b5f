#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The headers' comments in Doxygen's form: the one after the licence describes the file, and those behind code describe the code
# before them. Titles of sections describe nothing. Names like _host are no emphasis.
exec sed -E -e 1d -e '2s,^/\*( |$),/** @file\n * @brief ,' -e '/^ *\/\* (---|NOLINT)/b' \
    -e 's,^( *)/\*( |$),\1/** @brief\2,' -e 's,^(.*[^ ].*)/\*( |$),\1/**< @brief\2,' -e 's,( |\()_([a-z]),\1\\_\2,g' "$1"
