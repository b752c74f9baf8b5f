# SPDX-License-Identifier: Apache-2.0
"""Threads, forks, interrupts, the interpreter's end, and memory."""
import os
import subprocess
import sys
import threading
import time
import tracemalloc

import numpy as np
import pytest

import clmgk
from conftest import normal

START = """
import os, signal, sys, threading, time, weakref
import numpy as np, clmgk
q = np.random.default_rng(1).standard_normal((1, 2, 9, 16)).astype(np.float32)
"""


def run(program, **environment):
    done = subprocess.run([sys.executable, "-c", START + program], capture_output=True, text=True, timeout=120,
                          env={**os.environ, **environment})
    return done.returncode, done.stdout.strip(), done.stderr


def check(program, expected="ok", **environment):
    code, out, err = run(program, **environment)
    assert (code, out) == (0, expected), err


def test_threads(rng):
    q, k, v = (normal(rng, 1, 2, 9, 16) for _ in range(3))
    expected = clmgk.attention(q, k, v)
    with clmgk.Plan(heads=2, length=9, head_size=16, gradients=["q", "k", "v"]) as plan:
        forward = plan.forward(q=q, k=k, v=v)
        gradients = plan.backward(q=q, k=k, v=v, **forward, grad_o=q)
        wrong = []

        def work():
            for _ in range(25):
                if not np.array_equal(clmgk.attention(q, k, v), expected):
                    wrong.append("attention")
                again = plan.backward(q=q, k=k, v=v, **forward, grad_o=q)
                wrong.extend(name for name in again if not np.array_equal(again[name], gradients[name]))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_calls_release_the_lock(rng):
    """Another thread runs Python while a call computes."""
    q = normal(rng, 1, 8, 700, 16)
    clmgk.attention(q, q, q)
    ticks, stop = [], threading.Event()

    def tick():
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.0005)

    thread = threading.Thread(target=tick)
    thread.start()
    start = time.perf_counter()
    clmgk.attention(q, q, q)
    end = time.perf_counter()
    stop.set()
    thread.join()
    assert sum(start < t < end for t in ticks) >= 3


def test_a_plan_is_released_during_calls(rng):
    q = normal(rng, 1, 2, 200, 16)
    plan = clmgk.Plan(heads=2, length=200, head_size=16)
    failures = []

    def work():
        try:
            while True:
                plan.forward(q=q, k=q, v=q)
        except RuntimeError as error:
            failures.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    plan.release()
    for thread in threads:
        thread.join()
    assert failures == ["the plan was released"] * 3


def test_forked_after_use():
    """The child of a process that used OpenCL gets an exception, and both end well."""
    check("""
o = clmgk.attention(q, q, q)
plan = clmgk.Plan(heads=2, length=9, head_size=16)
plan.forward(q=q, k=q, v=q)
if os.fork() == 0:
    for call in (lambda: clmgk.attention(q, q, q), lambda: plan.forward(q=q, k=q, v=q), clmgk.devices, clmgk.Context):
        try:
            call()
        except RuntimeError as error:
            assert "fork" in str(error), error
        else:
            os._exit(3)
    plan.release()
    os._exit(0)
_, status = os.wait()
assert status == 0, status
assert (clmgk.attention(q, q, q) == o).all()
print("ok")
""")


def test_forked_before_use():
    check("""
child = os.fork()
o = clmgk.attention(q, q, q)
if child == 0:
    sys.exit(0)
_, status = os.wait()
assert status == 0, status
print("ok")
""")


def test_end_of_the_interpreter():
    """With plans, contexts and a thread in a call, which ends before anything is released."""
    check("""
from clmgk import _library
plan = clmgk.Plan(heads=2, length=700, head_size=16)
context = clmgk.Context()
clmgk.attention(q, q, q, device=context)
x = np.ones((1, 2, 700, 16), np.float32)
def work():
    while True:
        plan.forward(q=x, k=x, v=x)
threading.Thread(target=work, daemon=True).start()
while not _library._calls:
    time.sleep(0.001)
weakref.finalize(plan, lambda: print("in a call" if _library._calls else "ok"))
""")


def test_interrupted_while_compiling(tmp_path):
    """The exception comes while the compiler runs, and the process goes on, and ends, as if nothing had happened."""
    check("""
clmgk.Context()
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    clmgk.Plan(variant="mgk", heads=2, length=9, head_size=16, gradients=["q", "k", "v"])
except KeyboardInterrupt:
    compiling = [t for t in threading.enumerate() if t.name == "clmgk-compile" and t.is_alive()]
    print("ok" if compiling else "too late")
clmgk.attention(q, q, q)
""", POCL_CACHE_DIR=str(tmp_path), CLMGK_CACHE_DIR="")


def test_says_that_it_compiles(tmp_path):
    """Once a process, on stderr, and not where the environment says no."""
    program = """
clmgk._plan._SILENT_SECONDS = 0
for length in (9, 10):
    clmgk.Plan(length=length, head_size=16, precision="tf32" if length == 9 else "exact")
"""
    for quiet, lines in (("0", 1), ("1", 0)):
        fresh = tmp_path / quiet
        code, out, err = run(program, POCL_CACHE_DIR=str(fresh), CLMGK_CACHE_DIR="", CLMGK_QUIET=quiet)
        assert (code, out, err.count("clmgk: compiling kernels")) == (0, "", lines), err


def test_warm_up_at_the_end_of_the_interpreter(monkeypatch):
    """The plan being made is the last one, and the end waits for it."""
    check("""
plans = clmgk.warm_up([dict(length=9, head_size=16), dict(variant="mgk", length=9, head_size=16)])
while not plans[0].running() and not plans[0].done():
    time.sleep(0.001)
print("ok")
""")
    context = clmgk.Context()
    monkeypatch.setattr("clmgk._library._ending", True)
    plan, = clmgk.warm_up([dict(length=9, head_size=16)], device=context)
    with pytest.raises(RuntimeError, match="the interpreter is ending"):
        plan.result()


INTERRUPTED = """
import gc
import pyopencl as cl
from clmgk import _library
expected = attend(q)
queue = cl.CommandQueue.from_int_ptr(int(_library.ffi.cast("intptr_t", context._opened.native.queue)))
gate = cl.UserEvent(queue.context)
cl.enqueue_marker(queue, wait_for=[gate])  # in an ordered queue nothing behind it begins
waits = threading.Event()

class Watched:
    def __getattr__(self, name):
        if name == "binding_wait":
            waits.set()
        return getattr(_library.lib, name)

clmgk._plan.lib = Watched()

def interrupt():
    waits.wait()
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt).start()
try:
    attend(x)
except KeyboardInterrupt:
    print("interrupted")
del x
gc.collect()
assert lives() is not None
thread, = [t for t in threading.enumerate() if t.name == "clmgk-run"]
assert thread.is_alive()
gate.set_status(cl.command_execution_status.COMPLETE)
assert (attend(q) == expected).all()
thread.join()
del thread
gc.collect()
assert lives() is None and not _library._calls
print("ok")
"""


def test_interrupted_in_a_kernel():
    """The exception comes while the kernel runs; its arrays live until it ends, and the process goes on."""
    pytest.importorskip("pyopencl")
    check("""
context, x = clmgk.Context(), q.copy()
lives = weakref.ref(x)
attend = lambda q: clmgk.attention(q, q, q, device=context)
""" + INTERRUPTED, "interrupted\nok")


def test_torch_interrupted_in_a_kernel():
    pytest.importorskip("pyopencl")
    pytest.importorskip("torch")
    check("""
import torch, clmgk.torch
context, q = clmgk.torch._operators.cpu_context(), torch.from_numpy(q)
x = q.clone()
lives = weakref.ref(x.untyped_storage())
attend = lambda q: clmgk.torch.attention(q, q, q)
""" + INTERRUPTED, "interrupted\nok")


def test_no_growth(rng):
    """1,000 calls keep nothing, neither in Python nor in C."""
    q = normal(rng, 1, 2, 9, 16)

    def calls(count):
        for _ in range(count):
            o, lse = clmgk.attention(q, q, q, return_lse=True, causal=True)
            clmgk.attention_backward(o, q, q, q, o, lse, causal=True)

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    calls(100)
    tracemalloc.start()
    try:
        calls(20)
        before, memory = tracemalloc.take_snapshot(), resident()
        calls(1000)
        growth = sum(line.size_diff for line in tracemalloc.take_snapshot().compare_to(before, "filename")
                     if "tracemalloc" not in line.traceback[0].filename)
    finally:
        tracemalloc.stop()
    assert growth < 20_000
    assert resident() - memory < 8 << 20


def test_plans_are_few(rng, monkeypatch):
    """A context drops the plans that were not used for longest, and those that its owner drops."""
    monkeypatch.setattr("clmgk._context._MOST_PLANS", 3)
    context = clmgk.Context()
    for n in (1, 2, 3, 1, 4):
        q = normal(rng, 1, 1, n, 16)
        clmgk.attention(q, q, q, device=context)
    assert sorted(plan._resolved.length for plan, *_ in context._kept) == [1, 3, 4]
    context.clear()
    assert not list(context._kept)
    with pytest.raises(RuntimeError):
        clmgk.Context("no such device")
