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
import textwrap

import pytest

PYTHON = pathlib.Path(__file__).resolve().parents[1]
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")


def run(name, *arguments):
    done = subprocess.run([sys.executable, PYTHON / "examples" / name, *map(str, arguments)], capture_output=True, text=True)
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


@needs_torch
def test_paged_generation():
    """A model generates the tokens of its own cache, also over pages that the last token fills."""
    pytest.importorskip("transformers")
    for page in (8, 17):
        out = run("paged_generation.py", "--tokens", "40", "--page-size", page)
        assert "the same tokens as with the model's own cache" in out


@needs_torch
def test_sequence_parallel():
    """Two processes that share each sequence have the losses of one."""
    assert "largest difference" in run("sequence_parallel.py", "--steps", "6")


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


BLOCKS = {page: re.findall(r"```python\n(.*?)```", (PYTHON.parent / "docs" / page).read_text(), re.DOTALL)
          for page in ("python.md", "recipes.md")}


def run_block(page, number):
    """Runs a block after the page's first one, or alone: PyTorch's. Returns its names."""
    block = textwrap.dedent(BLOCKS[page][number])  # some are parts of lists
    for package in ("torch", "transformers", "pyopencl"):
        if package in block:
            pytest.importorskip(package)
    names = {}
    if "torch" not in block:
        exec(compile(BLOCKS[page][0], page, "exec"), names)
    exec(compile(block, page, "exec"), names)
    return names


@pytest.mark.parametrize("page, number", [(page, number) for page, blocks in BLOCKS.items() for number in range(len(blocks))])
def test_the_code_of_the_pages(page, number):
    run_block(page, number)


def test_buckets_of_t5():
    """The recipe's are those of transformers."""
    modeling = pytest.importorskip("transformers.models.t5.modeling_t5")
    number = next(i for i, block in enumerate(BLOCKS["recipes.md"]) if "t5_bucket" in block)
    names = run_block("recipes.md", number)
    distance = names["torch"].arange(-300, 300)
    assert names["t5_bucket"](distance).equal(modeling.T5Attention._relative_position_bucket(distance))
