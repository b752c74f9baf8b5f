#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the site of README.md, docs/, the other pages and the public headers: tools/site.sh
# The result, which needs no server: build/site/html/index.html. Warnings are errors.
# MkDocs makes the pages as they lie in the repository, and checks the links between them with their anchors; Doxygen makes the
# C interface from the headers (tools/site/). It needs the Debian packages doxygen, git and python3-venv, and PyPI: without it
# (and without a filled environment) the script says so, and passes. The pictures are files of docs/; the text beside each names
# the command that makes it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tools/install-packages.sh site

# A copy of the list says which packages the environment has.
folder=${XDG_CACHE_HOME:-$HOME/.cache}/clmgk-test/site
if ! cmp -s tools/site/packages.txt "$folder/packages.txt"; then
    rm -rf "$folder"
    /usr/bin/python3 -m venv "$folder"
    if ! "$folder/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: -r tools/site/packages.txt; then
        echo "skipped: the site needs packages from PyPI"
        exit 0
    fi
    cp tools/site/packages.txt "$folder"
fi

pages=build/site/pages
rm -rf build/site
mkdir -p $pages
# Pages, and the files that they link to.
git ls-files -z '*.md' LICENSE docs examples include/clmgk python/examples | xargs -0 cp --parents -t $pages
cp tools/site/pages.css $pages
style=$("$folder/bin/python" -c 'import doxygen_awesome_css, os; print(os.path.dirname(doxygen_awesome_css.__file__))')
{
    cat tools/site/Doxyfile
    echo "OUTPUT_DIRECTORY = $pages"
    echo "HTML_EXTRA_STYLESHEET = $style/doxygen-awesome.css tools/site/names.css"
} | doxygen -
# With --quiet it would not count warnings.
NO_MKDOCS_2_WARNING=1 "$folder/bin/mkdocs" build --strict --config-file tools/site/mkdocs.yml
echo "made build/site/html/index.html"
