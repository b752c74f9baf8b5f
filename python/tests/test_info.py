# SPDX-License-Identifier: Apache-2.0
"""What `python -m clmgk` prints, and what importing costs."""
import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

import clmgk
from clmgk._library import check, lib, new_error


def run(*command, **environment):
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


def test_the_lines_of_clmgk_info():
    program = pathlib.Path(os.environ.get("CLMGK_BIN", "")) / "clmgk-info"
    if not program.is_file():
        pytest.skip("clmgk-info is not built")
    expected, actual = run(program), run(sys.executable, "-m", "clmgk")
    assert (actual.returncode, actual.stdout) == (expected.returncode, expected.stdout)


def test_a_reader_that_goes_away():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-m", "clmgk"], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert done.stderr == ""


def test_without_a_device(tmp_path):
    """The reason, and the extra that brings a device."""
    program = ("import sys; sys.modules['pocl_binary_distribution'] = None; from clmgk.__main__ import main; "
               "sys.argv = ['clmgk']; sys.exit(main())")
    done = run(sys.executable, "-c", program, OCL_ICD_VENDORS=str(tmp_path))
    assert done.returncode == 3
    assert f"libclmgk {clmgk.__version__}" in done.stdout and "pip install" in done.stdout


def test_the_runtime_of_the_extra_cpu(tmp_path):
    """Where the loader lists no device, a runtime from PyPI computes, and the environment stays as it is."""
    if importlib.util.find_spec("pocl_binary_distribution") is None:
        pytest.skip("pocl-binary-distribution is not installed")
    done = run(sys.executable, "-c", """
import os
import numpy as np, clmgk
before = dict(os.environ)
device, = clmgk.devices()
q = np.random.default_rng(1).standard_normal((1, 2, 9, 16)).astype(np.float32)
w = q.astype(float) @ q.swapaxes(-1, -2) / 4
p = np.exp(w - w.max(-1, keepdims=True))
assert np.abs(clmgk.attention(q, q, q) - p / p.sum(-1, keepdims=True) @ q).max() < 1e-5
assert os.environ == before and os.environ["OCL_ICD_VENDORS"] == os.environ["HERE"]
print(device.device_class)
""", OCL_ICD_VENDORS=str(tmp_path), HERE=str(tmp_path), POCL_CACHE_DIR=str(tmp_path))
    if "unknown target CPU" in done.stderr:
        assert done.stderr.endswith("apt install pocl-opencl-icd).\n")
        pytest.skip("the runtime from PyPI does not know this CPU")
    assert (done.returncode, done.stdout) == (0, "cpu\n"), done.stderr


def test_a_runtime_older_than_the_cpu():
    """Its compiler's message is followed by the way out."""
    error = new_error()
    for words, has_advice in (("error: unknown target CPU 'generic'", True), ("error: unknown type name", False)):
        error.message = words.encode()
        with pytest.raises(RuntimeError) as caught:
            check(lib.CLMGK_ERROR_COMPILE, error)
        assert str(caught.value).startswith(words) and ("pocl-opencl-icd" in str(caught.value)) == has_advice


def test_imports():
    """Neither PyTorch nor anything else that is optional."""
    done = run(sys.executable, "-c", "import sys, clmgk; print(*sorted(sys.modules))")
    assert not {"torch", "pyopencl", "ml_dtypes", "pocl_binary_distribution"} & set(done.stdout.split())
