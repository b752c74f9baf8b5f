# SPDX-License-Identifier: Apache-2.0
"""The examples, and the code in docs/python.md."""
import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

from conftest import FULL

PYTHON = pathlib.Path(__file__).resolve().parents[1]
in_full = pytest.mark.skipif(not FULL, reason="an example: in --full only")
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")


def run(name, *arguments):
    done = subprocess.run([sys.executable, PYTHON / "examples" / name, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@in_full
def test_decoding():
    assert "40 tokens" in run("decoding.py")


@needs_torch
def test_beside_eager():
    """Its memory grows as N alone."""
    line = run("beside_eager.py", "512").splitlines()[-1].split()
    assert line[0] == "512" and float(line[7]) < 0.2 * float(line[3])


@needs_torch
def test_replace_attention():
    theirs, softmax, mgk = (float(loss) for loss in re.findall(r"loss ([\d.]+)", run("replace_attention.py", "150")))
    assert abs(softmax - theirs) < 0.01
    assert mgk < theirs + 0.1 and theirs < 2.0


BLOCKS = re.findall(r"```python\n(.*?)```", (PYTHON.parent / "docs" / "python.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("block", range(len(BLOCKS)))
def test_the_code_of_the_page(block, monkeypatch):
    """Each block runs after the first one, or alone: PyTorch's."""
    for package in ("torch", "pyopencl"):
        if package in BLOCKS[block]:
            pytest.importorskip(package)
    names = {}
    if "torch" not in BLOCKS[block]:
        exec(compile(BLOCKS[0], "docs/python.md", "exec"), names)
    exec(compile(BLOCKS[block], "docs/python.md", "exec"), names)
