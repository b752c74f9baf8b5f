#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# clmgk-bench beside PyTorch on the CPU, in one sitting. Makes a virtual environment with PyTorch from PyPI where
# there is none, beside the build: PEERS_VENV names another. Arguments go to peers.py (--help).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
venv=${PEERS_VENV:-$here/../../build/peers}
if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -c 'import torch, numpy' 2>/dev/null; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet torch numpy
fi
exec "$venv/bin/python" "$here/peers.py" "$@"
