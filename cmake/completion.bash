# SPDX-License-Identifier: Apache-2.0
# Completion for bash: a program's options, as its --help lists them, and names of files. Installed under each program's
# name.
_clmgk() {
    local word=${COMP_WORDS[COMP_CWORD]}
    COMPREPLY=()
    [[ $word == -* ]] || return 0
    mapfile -t COMPREPLY < <(compgen -W "$("$1" --help 2>/dev/null | grep -o '^  --[a-z0-9-]*')" -- "$word")
}
complete -o default -F _clmgk "${BASH_SOURCE[0]##*/}"
