# SPDX-License-Identifier: Apache-2.0
"""The examples, and the code in docs/python.md."""
import importlib.util
import math
import pathlib
import random
import re
import statistics
import subprocess
import sys

import pytest

PYTHON = pathlib.Path(__file__).resolve().parents[1]
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")


def run(name, *arguments):
    done = subprocess.run([sys.executable, PYTHON / "examples" / name, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_torch
def test_listops(tmp_path):
    """The losses fall below that of guessing, and clmgk-analyze reads the heads."""
    pytest.importorskip("matplotlib")
    curve, heads = tmp_path / "curve.svg", tmp_path / "heads"
    out = run("listops.py", "--variants", "softmax:2,mgk:1,hard-fish:1x2", "--steps", "30", "--plot", curve, "--export", heads)
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", out)]
    assert len(losses) == 3 and max(losses) < 2.2 < math.log(10)
    assert "mgk:1" in curve.read_text()
    of = heads / "mgk:1"
    arrays = [f"--{name}={of}/{name}.2.npy" for name in ("q", "k", "prior")]
    lengths = [f"--{name}={of}/lengths.npy" for name in ("lengths", "lengths-q")]
    done = subprocess.run([sys.executable, "-m", "clmgk.analyze", "--variant=mgk", *arrays, *lengths, "--json"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def value_of(tokens):
    """The value of an expression, which is taken from the front of its tokens."""
    digits, operation = [], tokens.pop(0)
    while tokens[0] != 14:
        digits.append(tokens.pop(0) if tokens[0] < 10 else value_of(tokens))
    tokens.pop(0)
    return int((min, max, statistics.median, sum)[operation - 10](digits)) % 10


@needs_torch
def test_expressions_of_listops():
    sys.path.insert(0, str(PYTHON / "examples"))
    listops = importlib.import_module("listops")
    sys.path.pop(0)
    rng = random.Random(1)
    for _ in range(200):
        tokens, value = listops.write(rng)
        assert value_of(tokens) == value and tokens == []


BLOCKS = re.findall(r"```python\n(.*?)```", (PYTHON.parent / "docs" / "python.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("block", range(len(BLOCKS)))
def test_the_code_of_the_page(block, monkeypatch):
    """Each block runs after the first one, or alone: PyTorch's."""
    for package in ("torch", "transformers", "pyopencl"):
        if package in BLOCKS[block]:
            pytest.importorskip(package)
    names = {}
    if "torch" not in BLOCKS[block]:
        exec(compile(BLOCKS[0], "docs/python.md", "exec"), names)
    exec(compile(BLOCKS[block], "docs/python.md", "exec"), names)
