# SPDX-License-Identifier: Apache-2.0
# Completion for bash: a program's options, as its --help lists them, the names that an option takes, and names of files.
# Installed under each program's name.

# Prints the names that the program expects after an option: it refuses '?' for each, before it does anything. Some options
# are looked at only beside others.
_clmgk_names() { # PROGRAM OPTION
    local -a beside=("" "--theorems" "--variant mgk --q . --k . --v ." "--variant linear --q . --k . --v ."
        "--variants linear --pass both")
    local options answer
    for options in "${beside[@]}"; do
        # shellcheck disable=SC2086 # words
        answer=$("$1" $options "$2" '?' 2>&1 >/dev/null)
        if [[ $answer == *"$2 '?': expected "* ]]; then
            answer=${answer##*: expected }
            answer=${answer#one of }
            printf '%s\n' "${answer//,/}"
            return
        fi
    done
}

_clmgk() {
    local word=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD - 1]} help names before=
    COMPREPLY=()
    # bash takes --option=value for three words.
    [[ $word != = ]] || word=
    [[ $option != = ]] || option=${COMP_WORDS[COMP_CWORD - 2]}
    help=$("$1" --help 2>/dev/null)
    if [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(grep -o '^  --[a-z0-9-]*' <<<"$help")" -- "$word")
        return
    fi
    [[ $option == --* && $help =~ $'\n'"  $option "([^ $'\n']+) ]] || return 0
    case ${BASH_REMATCH[1]} in
    SEL) names="cpu gpu pocl nvidia intel rusticl" ;;
    NAME | TYPE | WHERE | ORDER) names=$(_clmgk_names "$1" "$option") ;;
    "NAME,..." | "T,..." | "A,..." | "A,B:H,C:MxH,...")
        names=$(_clmgk_names "$1" "$option")
        [[ $word != *,* ]] || before=${word%,*},
        compopt -o nospace 2>/dev/null # a list may go on
        ;;
    *) return 0 ;;
    esac
    mapfile -t COMPREPLY < <(compgen -P "$before" -W "$names" -- "${word##*,}")
}
complete -o default -F _clmgk "${BASH_SOURCE[0]##*/}"
