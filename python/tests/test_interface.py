# SPDX-License-Identifier: Apache-2.0
"""The Python package offers every field of the C structures, or this file says why it does not."""
import copy
import inspect
import pickle

import numpy as np
import pytest

import clmgk
from clmgk._library import ffi
from clmgk._options import LINEAR_OPTIONS, OPTIONS

OFFERED = {
    "clmgk_attention_desc": clmgk.Descriptor.__annotations__,
    "clmgk_context_options": inspect.signature(clmgk.Context).parameters,
    "clmgk_device_info": clmgk.Device._fields,
    "clmgk_layout": clmgk.Layout._fields,
    "clmgk_matrix_unit_info": clmgk.MatrixUnit._fields,
    "clmgk_plan_info": clmgk.PlanInfo._fields,
    "clmgk_plan_options": inspect.signature(clmgk.Plan).parameters,
}
ABSENT = {
    "clmgk_attention_desc": {"resolved", "sizes_at_call"},  # for the library itself, and for functions without a plan
    "clmgk_context_options": {"allocator"},  # functions in C, of objects that Python does not see
    # Device.selector has the indices; handles belong to clmgk.opencl; a matrix_unit of "" says that there is none.
    "clmgk_device_info": {"platform_id", "device_id", "platform_index", "device_index", "matrix_units"},
    "clmgk_layout": {"strided"},  # None in the place of a Layout
    "clmgk_matrix_unit_info": set(),
    "clmgk_plan_info": {"backward_engine"},  # the same as `engine`
    "clmgk_plan_options": set(),
}
# Fields of a problem that the functions without a plan read off their arrays.
FROM_ARRAYS = {"dtype", "dtype_o", "use_scale_k", "use_scale_v", "batch", "kv_heads", "components", "length", "length_k", "head_size",
               "value_size", "q", "k", "v", "o", "lse", "grad_o", "grad_q", "grad_k", "grad_v", "prior_shape",
               "variance_shape", "sequences", "use_offsets_k", "use_positions", "use_lengths", "use_lengths_q", "use_window", "use_bias",
               "bias_batch", "bias_heads", "bias_length", "bias_length_k", "use_alibi", "use_sinks", "use_mix_weight",
               "use_mix_offset", "use_mix_hidden_offset", "mix_after_heads", "features", "use_state", "use_new_state",
               "page_size", "pages", "table_pages", "use_page_offsets",
               "use_mask_blocks", "mask_block_q", "mask_block_k", "mask_blocks_batch", "mask_blocks_heads"}
# Fields that stand for a function of their own, or its argument.
FUNCTIONS = {"gradients", "statistics", "combine"}
# For rows whose weights need more than f32's L, where the functions return one L; gradients to be added up; parts of a batch; pools
# that calls write.
PLANS_ALONE = {"use_lse_low", "dtype_grad_q", "dtype_grad_k", "dtype_grad_v", "first_batch", "first_head", "all_heads", "partial_keys",
               "append", "append_k", "append_v", "append_rotary", "append_rotary_size", "append_rotary_base",
               "prefix_pages", "state_pool"}


@pytest.mark.parametrize("name", OFFERED)
def test_every_field(name):
    fields = {field for field, _ in ffi.typeof(name).fields} - {"struct_size"}
    assert fields - set(OFFERED[name]) == ABSENT[name]


def test_every_field_of_a_problem_in_the_functions():
    assert set(clmgk.Descriptor.__annotations__) - OPTIONS - LINEAR_OPTIONS == FROM_ARRAYS | FUNCTIONS | PLANS_ALONE


def test_contexts_options(tmp_path):
    """no_amx switches the matrix unit of x86 CPUs off; folders may be paths."""
    context = clmgk.Context(no_amx=True, cache_dir=tmp_path, cache_max_bytes=1 << 20)
    units = ("amx", "amx-fp16", "avx512-bf16")
    assert context.matrix_unit.name not in units
    assert isinstance(context.first_use, str) and (context.device.device_class != "cpu" or context.first_use == "")
    assert context.device.matrix_unit not in units or "switched off" in context.matrix_unit.reason
    q = np.ones((1, 1, 5, 16), np.float32)
    with clmgk.Plan(device=context, length=5, head_size=16, precision="tf32") as plan:
        assert (plan.forward(q=q, k=q, v=q)["o"] == 1).all()
        assert plan.info.precision in ("exact", "tf32") and plan.info.kernel and plan.info.backward_kernel == ""
    np.testing.assert_array_equal(clmgk.attention(q, q, q, device=context, precision="exact"), q)


def test_types_of_caches(rng):
    """Keys that are integers with scales, and values in ggml's blocks, a structure of 34 bytes each."""
    q = rng.standard_normal((1, 1, 3, 32)).astype(np.float32)
    k = rng.integers(-127, 128, (1, 1, 9, 32), np.int8)
    scale_k = (rng.random((1, 1, 9)) / 64).astype(np.float32)
    v = np.zeros((1, 1, 9, 1), [("d", np.float16), ("q", np.int8, 32)])
    v["d"], v["q"] = rng.random(v.shape), rng.integers(-127, 128, (*v.shape, 32), np.int8)
    with clmgk.Plan(length=3, length_k=9, head_size=32, dtype_k="int8", use_scale_k=True, dtype_v="q8_0") as plan:
        o = plan.forward(q=q, k=k, scale_k=scale_k, v=v.view("V34"))["o"]
    numbers = v["q"][..., 0, :] * v["d"].astype(np.float32)
    np.testing.assert_array_equal(clmgk.attention(q, k, v.view("V34"), scale_k=scale_k), o)
    with pytest.raises(ValueError, match="scale_k"):
        clmgk.attention(q, k, v.view("V34"), scale_k=scale_k[..., :4])
    with pytest.raises(TypeError, match="uint8.*dtype_k"):
        clmgk.attention(q, k.view(np.uint8), numbers)
    with pytest.raises(ValueError, match="dtype_k.*int8"):
        clmgk.attention(q, k, numbers, dtype_k="e4m3")
    np.testing.assert_allclose(o, clmgk.attention(q, k * scale_k[..., None], numbers), rtol=1e-5, atol=1e-5)
    new = rng.standard_normal((9, 1, 32)).astype(np.float32)
    with clmgk.Plan(length=3, length_k=9, head_size=32, dtype_k="int8", use_scale_k=True, dtype_v="q8_0", append=9) as plan:
        outputs = plan.append(k=k, v=v.view("V34"), scale_k=scale_k, append_k=new, append_v=new,
                              append_slots=np.arange(9, dtype=np.int32)[::-1].copy())
    assert set(outputs) == {"k", "v", "scale_k"} and outputs["scale_k"] is scale_k
    steps = np.abs(new[::-1]).max(-1) / 127
    assert (np.abs(scale_k[0, 0] - steps[:, 0]) <= 1e-6 * steps[:, 0]).all()
    assert (np.abs(k[0, 0] * scale_k[0, 0, :, None] - new[::-1, 0]) <= 0.501 * steps).all()
    assert (np.abs(v["q"][0, 0, :, 0] * v["d"][0, 0].astype(np.float32) - new[::-1, 0]) <= 0.6 * steps).all()


def test_floats_of_8_bits(rng):
    """Their own types, or bytes whose type is named; a scale of each head, by strides, and one of all."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    q, k, v = (rng.standard_normal((2, 2, 5, 16)).astype(np.float32) for _ in range(3))
    codes, values = k.astype(ml_dtypes.float8_e4m3fn), v.astype(ml_dtypes.float8_e5m2)
    scales = np.array([[0.5], [3]])
    expected = clmgk.attention(q, codes.astype(np.float32) * scales[..., None].astype(np.float32), 2 * values.astype(np.float32))
    o = clmgk.attention(q, codes, values, scale_k=scales, scale_v=2)
    np.testing.assert_allclose(o, expected, rtol=1e-5, atol=1e-5)
    bytes_ = codes.view(np.uint8).swapaxes(1, 2).copy().swapaxes(1, 2)
    again = clmgk.attention(q, bytes_, values, dtype_k="e4m3", scale_k=scales, scale_v=[[2], [2]])
    np.testing.assert_array_equal(again, o)
    with pytest.raises(NotImplementedError, match="dtype_k"):
        clmgk.attention_backward(o, q, codes, values, o, np.zeros((2, 2, 5), np.float32))


def test_programs_made_ahead(tmp_path):
    context = clmgk.Context()
    with clmgk.Plan(device=context, length=5, head_size=16):
        assert context.save_programs(tmp_path / "ahead") >= 1
    with clmgk.Plan(device=clmgk.Context(program_dir=tmp_path / "ahead"), length=5, head_size=16) as plan:
        assert plan.info.origin == "shipped"


def test_warm_up(rng):
    """Plans in the background: the programs of calls that follow. Errors come at once, or with the plan."""
    context = clmgk.Context(cache_dir="")
    q = rng.standard_normal((1, 2, 5, 16)).astype(np.float32)
    problem = dict(heads=2, length=5, head_size=16)
    plans = clmgk.warm_up([problem, problem], device=context)
    o = plans[0].result().forward(q=q, k=q, v=q)["o"]
    assert plans[1].result().info.origin == "memory"
    np.testing.assert_array_equal(clmgk.attention(q, q, q, device=context), o)
    with pytest.raises(ValueError, match="head_size"):
        clmgk.warm_up([problem, {"length": 5}], device=context)
    refused, = clmgk.warm_up([problem | {"value_size": 129}], device=context, engine="matrix")
    with pytest.raises(NotImplementedError) as refusal:
        refused.result()
    assert clmgk.unsupported(device=context, engine="matrix", **problem, value_size=129) == str(refusal.value)
    assert clmgk.unsupported(device=context, **problem) is None
    with pytest.raises(ValueError, match="head_size"):
        clmgk.unsupported(length=5)
    assert clmgk.warm_up([], device=context) == []


def test_copies_of_plans_and_contexts():
    """Both are handles: a copy is the same, and a pickled one is refused with the reason."""
    context = clmgk.Context()
    plan = clmgk.Plan(device=context, length=5, head_size=16)
    for handle in (context, plan):
        assert copy.copy(handle) is handle and copy.deepcopy({"a": handle})["a"] is handle
        with pytest.raises(TypeError, match="cannot be pickled, because"):
            pickle.dumps(handle)
    plan.release()
    assert repr(plan) == "<clmgk.Plan of softmax (released)>"


def test_noise(rng):
    """The noise that "fish" draws, by the formula of its scores."""
    q, k, v = (rng.standard_normal((1, 2, 9, 16)).astype(np.float32) for _ in range(3))
    mix, noise = rng.standard_normal((2, 2)), np.array([0.5, 0.2])
    o = clmgk.attention(q, k, v, variant="fish", mix=mix, noise=noise, seed=7)
    drawn = np.stack([clmgk.noise_tile(seed=7, heads=2, b=0, h=h, rows=range(9), keys=range(9)) for h in range(2)])
    scores = np.einsum("bknd,bksd->bkns", q.astype(float), k.astype(float))[0]
    a = np.einsum("hk,hkns->hns", mix, scores[None] + noise[None, :, None, None] * drawn[:, None]) / 4
    p = np.exp(a - a.max(-1, keepdims=True))
    np.testing.assert_allclose(o[0], p / p.sum(-1, keepdims=True) @ v[0], rtol=2e-4, atol=2e-5)
