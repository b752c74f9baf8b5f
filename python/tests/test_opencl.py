# SPDX-License-Identifier: Apache-2.0
"""Arrays, queues and events of PyOpenCL."""
import numpy as np
import pytest

cl = pytest.importorskip("pyopencl")
import pyopencl.array  # noqa: E402

import clmgk  # noqa: E402
import clmgk.opencl  # noqa: E402
from conftest import normal  # noqa: E402


@pytest.fixture(scope="module")
def queue():
    chosen = clmgk.Context().device
    for platform in cl.get_platforms():
        for device in platform.get_devices():
            if device.name == chosen.name and platform.name == chosen.platform:
                return cl.CommandQueue(cl.Context([device]),
                                       properties=cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE)
    pytest.skip("PyOpenCL does not see the device")


def to_device(queue, array):
    return cl.array.to_device(queue, array)


def test_passes(rng, queue):
    """Events chain the passes on a queue that is out of order; the bits are those of the calls on host arrays."""
    context = clmgk.opencl.adopt(queue.context)
    plan = clmgk.Plan(device=context, heads=2, length=9, head_size=16, gradients=["q", "k", "v"])
    q, k, v, grad_o = (normal(rng, 1, 2, 9, 16) for _ in range(4))
    device = {name: to_device(queue, array) for name, array in dict(q=q, k=k, v=v, grad_o=grad_o).items()}
    o, lse = cl.array.empty(queue, q.shape, np.float32), cl.array.empty(queue, (1, 2, 9), np.float32)
    outputs = {f"grad_{name}": cl.array.empty(queue, q.shape, np.float32) for name in "qkv"}
    queue.finish()
    inputs = {name: device[name] for name in "qkv"}
    gate = cl.UserEvent(queue.context)
    first = clmgk.opencl.forward(plan, queue, wait_for=[gate], o=o, lse=lse, **inputs)
    second = clmgk.opencl.backward(plan, queue, wait_for=[first], o=o, lse=lse, grad_o=device["grad_o"], **inputs,
                                   **outputs)
    assert second.command_execution_status != cl.command_execution_status.COMPLETE  # nothing waited for the device
    gate.set_status(cl.command_execution_status.COMPLETE)
    second.wait()
    expected = plan_on_host(plan, q, k, v, grad_o)
    np.testing.assert_array_equal(o.get(queue), expected["o"])
    for name, array in outputs.items():
        np.testing.assert_array_equal(array.get(queue), expected[name])


def plan_on_host(plan, q, k, v, grad_o):
    host = clmgk.Plan(heads=2, length=9, head_size=16, gradients=["q", "k", "v"])
    forward = host.forward(q=q, k=k, v=v)
    return {**forward, **host.backward(q=q, k=k, v=v, grad_o=grad_o, **forward)}


def test_a_part_of_an_array(rng, queue):
    """An array that begins inside a buffer."""
    plan = clmgk.Plan(device=clmgk.opencl.adopt(queue.context), heads=2, length=9, head_size=16)
    qkv = normal(rng, 3, 1, 2, 9, 16)
    whole = to_device(queue, qkv)
    o = cl.array.empty(queue, qkv.shape[1:], np.float32)
    queue.finish()
    clmgk.opencl.forward(plan, queue, q=whole[0], k=whole[1], v=whole[2], o=o).wait()
    np.testing.assert_array_equal(o.get(queue), clmgk.attention(*qkv))


def test_misuse(queue):
    plan = clmgk.Plan(device=clmgk.opencl.adopt(queue.context), heads=2, length=9, head_size=16)
    a = cl.array.zeros(queue, (1, 2, 9, 16), np.float32)
    queue.finish()
    small = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, 64)
    other = clmgk.Plan(heads=2, length=9, head_size=16)
    for exception, words, where, arrays in (
            (ValueError, "o: ", plan, dict(q=a, k=a, v=a)),
            (ValueError, "o: ", plan, dict(q=a, k=a, v=a, o=small)),
            (ValueError, "q: shape", plan, dict(q=a[:, :1], k=a, v=a, o=a)),
            (TypeError, "q: elements", plan, dict(q=a.astype(np.float64), k=a, v=a, o=a)),
            (TypeError, "q: ndarray", plan, dict(q=np.ones(3), k=a, v=a, o=a)),
            (TypeError, "no such array", plan, dict(w=a)),
            (ValueError, "bias: given", plan, dict(bias=a)),
            (ValueError, "", plan, dict(q=a, k=a, v=a, o=a)),  # an output that is an input
            (ValueError, "queue", other, dict(q=a, k=a, v=a, o=a))):
        with pytest.raises(exception) as caught:
            clmgk.opencl.forward(where, queue, **arrays)
        assert words in str(caught.value)
    arrays = dict(q=a, k=a, v=a, o=cl.array.empty_like(a))
    forward, adopt = clmgk.opencl.forward, clmgk.opencl.adopt
    for words, call in (("plan: int: expected a clmgk.Plan", lambda: forward(3, queue, **arrays)),
                        ("queue: Context: expected a pyopencl.CommandQueue", lambda: forward(plan, queue.context, **arrays)),
                        ("wait_for: int: expected a pyopencl.Event", lambda: forward(plan, queue, wait_for=[3], **arrays)),
                        ("wait_for: UserEvent: expected a sequence of",
                         lambda: forward(plan, queue, wait_for=cl.UserEvent(queue.context), **arrays)),
                        ("context: CommandQueue: expected a pyopencl.Context", lambda: adopt(queue)),
                        ("device: int: expected a pyopencl.Device", lambda: adopt(queue.context, 0))):
        with pytest.raises(TypeError) as caught:
            call()
        assert words in str(caught.value)
    with pytest.raises(ValueError, match="device: an adopted context"):
        host = np.ones((1, 2, 9, 16), np.float32)
        plan.forward(q=host, k=host, v=host)
    plan.release()
    with pytest.raises(RuntimeError, match="released"):
        clmgk.opencl.forward(plan, queue, q=a, k=a, v=a, o=a)


def test_classes_of_blocks(queue):
    """The pass `mask`, of a mask without arrays."""
    plan = clmgk.Plan(device=clmgk.opencl.adopt(queue.context), heads=2, length=40, head_size=16, mask_mod="j <= i",
                      use_mask_blocks=True, mask_block_q=16, mask_block_k=16, mask_blocks_heads=1)
    classes = cl.array.empty(queue, (1, 1, 3, 3), np.int32)
    clmgk.opencl.mask(plan, queue, mask_blocks=classes).wait()
    np.testing.assert_array_equal(classes.get()[0, 0], [[1, 0, 0], [2, 1, 0], [2, 2, 1]])
