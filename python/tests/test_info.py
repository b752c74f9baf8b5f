# SPDX-License-Identifier: Apache-2.0
"""What `python -m clmgk` prints, and what importing costs."""
import os
import pathlib
import subprocess
import sys

import pytest

import clmgk


def run(*command, **environment):
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


def test_the_lines_of_clmgk_info():
    program = pathlib.Path(os.environ.get("CLMGK_BIN", "")) / "clmgk-info"
    if not program.is_file():
        pytest.skip("clmgk-info is not built")
    expected, actual = run(program), run(sys.executable, "-m", "clmgk")
    assert (actual.returncode, actual.stdout) == (expected.returncode, expected.stdout)


def test_without_a_device(tmp_path):
    """The reason, and a package that brings a device."""
    done = run(sys.executable, "-m", "clmgk", OCL_ICD_VENDORS=str(tmp_path), PYTHONNOUSERSITE="1")
    if "pocl_binary" in done.stdout or done.returncode == 0:
        pytest.skip("the extra [cpu] is installed")
    assert done.returncode == 3
    assert f"libclmgk {clmgk.__version__}" in done.stdout and "pip install" in done.stdout


def test_imports():
    """Neither PyTorch nor anything else that is optional."""
    done = run(sys.executable, "-c", "import sys, clmgk; print(*sorted(sys.modules))")
    assert not {"torch", "pyopencl", "ml_dtypes", "pocl_binary_distribution"} & set(done.stdout.split())
