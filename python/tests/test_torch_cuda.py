# SPDX-License-Identifier: Apache-2.0
"""CUDA tensors, as far as they go without a card: the launcher's Python side on the stand-ins for NVIDIA's drivers that
the C tests build, whose device memory is the host's."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from clmgk.torch import _cuda  # noqa: E402

BUILD = pathlib.Path(__file__).parents[2] / "build"
LAYER, LIBRARY = BUILD / "lib" / "nvidia_layer.so", BUILD / "tests" / "cuda" / "libcuda.so.1"
POCL = pathlib.Path("/etc/OpenCL/vendors/pocl.icd")

PROGRAM = """
import ctypes, types
import numpy as np, torch
from clmgk.torch import _cuda
from clmgk import Plan

class State(ctypes.Structure):
    _fields_ = [("fails", ctypes.c_char_p)] + [(name, ctypes.c_int) for name in (
        "after", "code", "hidden", "most_items", "any_memory", "retained", "modules", "allocations", "current", "loads",
        "launches")]

library = ctypes.CDLL("libcuda.so.1")
library.cuda_stand_in_state.restype = ctypes.POINTER(State)
state = library.cuda_stand_in_state().contents
state.any_memory = 1
torch.cuda.current_stream = lambda device: types.SimpleNamespace(cuda_stream=2)

plan = Plan(device=_cuda.context_of_number(1), heads=2, length=20, length_k=30, head_size=16, causal=True, dropout=0.5)
q, k, v = (torch.randn(1, 2, n, 16) for n in (20, 30, 30))
expected = plan.forward(q=q.numpy(), k=k.numpy(), v=v.numpy(), seed=7)
o, lse = torch.zeros(1, 2, 20, 16), torch.zeros(1, 2, 20)
tensors = dict(q=q, k=k, v=v, o=o, lse=lse)
addresses = [tensors[slot.name].data_ptr() for slot in plan._pass("forward").slots]

def run(addresses):
    _cuda.run(plan, plan._pass("forward"), torch.device("cpu"), addresses, 7)

def refused(kind, words, addresses):
    try:
        run(addresses)
    except kind as failure:
        assert words in str(failure), failure
    else:
        raise AssertionError(words)

refused(ValueError, "clmgk_plan_prepare_cuda", addresses)
_cuda.prepare(plan)
before = state.launches
run(addresses)
assert state.launches > before and state.current == 0
assert np.array_equal(o.numpy(), expected["o"]) and np.array_equal(lse.numpy(), expected["lse"])
refused(ValueError, "q: ", [0] + addresses[1:])
state.fails, state.code = b"cuLaunchKernel", 999
refused(RuntimeError, "CUDA_ERROR_OF_THE_STAND_IN (999)", addresses)
state.fails = None
try:
    _cuda.context_of_number(0)
except RuntimeError as failure:
    assert "no platform of NVIDIA's OpenCL driver" in str(failure), failure
else:
    raise AssertionError("device 0")
print("done")
"""


@pytest.mark.skipif(not (LAYER.exists() and LIBRARY.exists() and POCL.exists()), reason="no PoCL, or no build of the C tests")
def test_passes_on_the_stand_ins():
    environment = {**os.environ, "OPENCL_LAYERS": str(LAYER), "LD_LIBRARY_PATH": str(LIBRARY.parent), "CLMGK_DEVICE": "",
                   "OCL_ICD_VENDORS": str(POCL), "CLMGK_CACHE_DIR": ""}  # the layer's binaries serve one process
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_cuda_tensors_without_a_driver():
    """The reason why there is no device comes from the library."""
    if torch.cuda.is_available():
        pytest.skip("there is CUDA")
    with pytest.raises((NotImplementedError, RuntimeError), match="CUDA|cu[A-Z]"):
        _cuda.context_of_number(0)


def test_the_checks_for_a_card(tmp_path):
    """What cuda_tensors.py checks on a card is right for the CPU's tensors; a second run leaves out what has a result."""
    command = [sys.executable, pathlib.Path(__file__).with_name("cuda_tensors.py"), "--device", "cpu", "--output",
               tmp_path / "tensors.jsonl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in (tmp_path / "tensors.jsonl").read_text().splitlines()]
    assert len(lines) > 10 and {line["status"] for line in lines} == {0}
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == ""
