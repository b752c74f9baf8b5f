# SPDX-License-Identifier: Apache-2.0
"""PyTorch's custom operators: a forward and a backward pass for each family of variants."""
from __future__ import annotations

import ast
import functools
import math
import os
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence

import numpy as np
import torch
from torch import Tensor

from .._context import Context, context_of, devices
from .._library import check_seed, ffi, lib, name_of
from .._options import Call, head_source, traits_of
from .._plan import Plan
from .._slots import Array, numpy_dtype
from . import _cuda

_DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
_CACHE_DTYPES = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2", torch.int8: "int8"}  # of k and v alone
_POINTER, _cast = ffi.typeof("void *"), ffi.cast
STORAGE = ("q", "k", "v")
INTEGERS = ("lengths", "lengths_q", "offsets", "offsets_k", "positions", "positions_k", "page_table", "page_offsets", "last_page",
            "mask_blocks")


@functools.lru_cache(maxsize=None)
def cpu_context() -> Context:
    """The device for CPU tensors: CLMGK_DEVICE, else a CPU, which uses them in place, else any."""
    if not os.environ.get("CLMGK_DEVICE"):
        for device in devices():
            if device.device_class == "cpu":
                return context_of(device.selector)
    return context_of(None)


def context_for(tensor: Tensor) -> Context:
    """The device for tensors beside this one."""
    return cpu_context() if tensor.is_cpu else _cuda.context_of_number(tensor.device.index)


# ---- options as one string, which an operator can take


def to_string(options: Mapping[str, Any]) -> str:
    """The text of a dictionary without its braces; "" for none."""
    return ", ".join([f"{name!r}: {options[name]!r}" for name in sorted(options)]) if options else ""


@functools.lru_cache(maxsize=1024)
def from_string(options: str) -> dict[str, Any]:
    found: dict[str, Any] = ast.literal_eval(f"{{{options}}}")
    return found


@functools.lru_cache(maxsize=1024)
def traits_in(options: str, default: str) -> int:
    """The traits of the variant that the options name."""
    return traits_of(from_string(options).get("variant", default))


# ---- shapes


class Inputs(NamedTuple):
    """The tensors and options from which the shapes of outputs follow."""

    q: Tensor
    v: Tensor
    extras: Mapping[str, Tensor]
    options: Mapping[str, Any]
    traits: int
    gradients: str

    @property
    def heads(self) -> Any:
        """Heads of the output."""
        if not self.traits & lib.CLMGK_TRAIT_ADMIXTURE:
            return self.q.shape[1]
        mix = self.extras.get(head_source(self.options, self.extras))
        return mix.shape[0] if mix is not None and mix.ndim == 2 else self.options.get("heads", self.v.shape[1])

    def new(self, *shape: Any) -> Tensor:
        return self.q.new_empty(shape, dtype=torch.float32)

    def new_o(self) -> Tensor:
        """O has the order of q's axes in memory."""
        batch, length, size = self.q.shape[0], self.q.shape[2], self.v.shape[-1]
        if self.q.stride(1) < self.q.stride(2):
            return self.q.new_empty((batch, length, self.heads, size)).transpose(1, 2)
        return self.q.new_empty((batch, self.heads, length, size))


def check_dtype(name: str, tensor: Tensor) -> None:
    if tensor.dtype not in _DTYPES:
        advice = "" if tensor.is_complex() else f": convert it by {name}.float()"
        raise TypeError(f"{name}: a tensor of {tensor.dtype}: expected torch.float32, float16 or bfloat16{advice}")


def cache_types(k: Tensor, v: Tensor) -> dict[str, str]:
    """The options that name the types of caches: C takes codes of floats as bytes."""
    return {f"dtype_{name}": _CACHE_DTYPES[tensor.dtype] for name, tensor in (("k", k), ("v", v)) if tensor.dtype in _CACHE_DTYPES}


def like(name: str, tensor: Tensor, caches: bool = False) -> Array:
    """An array of a tensor's shape, strides and type, without its memory. `caches`: k and v may have the types of caches."""
    if caches and name in ("k", "v") and tensor.dtype in _CACHE_DTYPES:
        dtype = numpy_dtype(_CACHE_DTYPES[tensor.dtype])
    else:
        check_dtype(name, tensor)
        dtype = numpy_dtype(_DTYPES[tensor.dtype])
    strides = [stride * dtype.itemsize for stride in tensor.stride()]
    return np.lib.stride_tricks.as_strided(np.zeros(1, dtype), tuple(tensor.shape), strides)


def _placeholder(name: str, tensor: Tensor) -> Array:
    """An array of a tensor of parameters, of its shape and type; of scales only one where they repeat."""
    if name.startswith("capture_") and tensor.dtype in _DTYPES:
        return np.zeros(tuple(tensor.shape), numpy_dtype(_DTYPES[tensor.dtype]))
    if name in ("scale_k", "scale_v"):  # they may repeat, by strides of 0
        return np.zeros([size if stride else 1 for size, stride in zip(tensor.shape, tensor.stride())], np.float32)
    return np.zeros(tuple(tensor.shape), np.int32 if name in INTEGERS or tensor.dtype == torch.int32 else np.float32)


# ---- passes


class _Prepared:
    """A pass of a plan for tensors of certain shapes and layouts on one device, which were checked."""

    def __init__(self, plan: Plan, pass_name: str, names: Sequence[str], inputs: Sequence[Optional[Tensor]],
                 outputs: Mapping[str, Tensor]) -> None:
        tensors = {name: tensor for name, tensor in zip(names, inputs) if tensor is not None}
        self.device = next(iter(outputs.values())).device
        self.plan = plan
        self.is_cuda = self.device.type == "cuda"
        if self.is_cuda:
            _cuda.prepare(self.plan)
        self.pass_ = self.plan._pass(pass_name)
        places = {slot.name: i for i, slot in enumerate(self.pass_.slots)}
        unused = [name for name in (*tensors, *outputs) if name not in places and (name in tensors or outputs[name].numel())]
        if unused:
            raise ValueError(f"{unused[0]}: given, but the problem does not use it")
        for slot in self.pass_.slots:
            given = tensors.get(slot.name, outputs.get(slot.name))
            if given is not None:
                slot.check_shape(tuple(given.shape))
            elif slot.required and slot.bytes > 0:
                raise ValueError(f"{slot.name}: missing: variant {name_of('variant', self.plan._resolved.variant)} needs it")
        self.inputs = [(places[name], i) for i, name in enumerate(names) if name in tensors]
        # Rows outside every packed sequence are not written.
        rest = {"lse": -math.inf} if "offsets" in tensors else None
        self.outputs = [(places.get(name), output.shape, output.stride(), output.dtype, None if rest is None else rest.get(name, 0))
                        for name, output in outputs.items()]

    def run(self, inputs: Sequence[Any], seed: Optional[Tensor]) -> list[Tensor]:
        addresses = [0] * len(self.pass_.slots)
        for place, i in self.inputs:
            addresses[place] = inputs[i].data_ptr()
        made = []
        for to, shape, strides, dtype, rest in self.outputs:
            output = torch.empty_strided(shape, strides, dtype=dtype, device=self.device)
            if rest is not None:
                output.fill_(rest)
            if to is not None:
                addresses[to] = output.data_ptr()
            made.append(output)
        number = 0 if seed is None else int(seed.item()) % 2**64
        if self.is_cuda:
            _cuda.run(self.plan, self.pass_, self.device, addresses, number)
        else:
            self.plan._run(self.pass_, [_cast(_POINTER, address) for address in addresses], number, arrays=(inputs, made))
        return made


def check_devices(tensors: Mapping[str, Tensor | None], beside: str = "q") -> None:
    """Raises for a tensor on another device than the tensor of the name `beside`."""
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    device = given[beside].device
    for name, tensor in given.items():
        if tensor.device != device:
            raise RuntimeError(f"{name}: a tensor on {tensor.device}: expected all tensors of a call on one device, here {device}")


def _signature(inputs: Sequence[Optional[Tensor]]) -> list[Any]:
    """What `_Prepared` checks of tensors."""
    found: list[Any] = []
    for tensor in inputs:
        found += (None,) if tensor is None else (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
    return found


_LIBRARY = torch.library.Library("clmgk", "FRAGMENT")


def _operator(name: str, schema: str, run: Any, fake: Any) -> Any:
    """Makes an operator of the namespace clmgk. (torch.library.custom_op does the same, but adds checks to every call, which
    take some microseconds.)"""
    whole = f"clmgk::{name}"
    torch.library.define(whole, schema, tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.impl(whole, ("cpu", "cuda"), run)
    torch.library.register_fake(whole, fake)
    return getattr(torch.ops.clmgk, name).default


class _Tracked(torch.autograd.Function):
    """A forward pass whose outputs have gradients. (torch.library.register_autograd does the same, but reads the operator's
    schema at every call, which takes longer than all the rest.)"""

    @staticmethod
    def forward(ctx: Any, family: Family, *inputs: Any) -> Any:
        output = family.inference(*inputs)
        family.save(ctx, inputs, output)
        return tuple(output)

    @staticmethod
    def backward(ctx: Any, *grads: Optional[Tensor]) -> Any:
        return None, *ctx.family.differentiate(ctx, *grads)


class Family:
    """The operators clmgk::NAME and clmgk::NAME_backward, and clmgk::NAME_inference, which is NAME without autograd.

    Parameters
    ----------
    extras : sequence of str
        The optional tensors, after q, k and v.
    outputs : callable
        From `Inputs`, new tensors for the outputs of the forward pass by name; an empty vector for one that the call does
        not have.
    upstream : mapping
        For each output, o first, the name of its gradient, which the backward pass reads; None: it has no gradient.
    saved : sequence of str
        Outputs that the backward pass reads, o first.
    call : callable
        From arrays q, k, v (o and gradients), the extras, options, and the names of wanted gradients, the problem and
        further fields of its descriptor.
    variant : str
        The default variant.
    """

    def __init__(self, name: str, *, extras: Sequence[str], outputs: Callable[[Inputs], dict[str, Tensor]],
                 upstream: Mapping[str, str | None], saved: Sequence[str],
                 call: Callable[[dict[str, Array], dict[str, Array], dict[str, Any], str], tuple[Call, dict[str, Any]]],
                 variant: str) -> None:
        self.name, self.extras, self._new_outputs, self._call, self._variant = name, tuple(extras), outputs, call, variant
        self._upstream, self._saved = dict(upstream), tuple(saved)
        self._inputs = (*STORAGE, *self.extras)
        self._has_caches = "scale_k" in extras
        self._seen = (*[gradient for gradient in upstream.values() if gradient], *self._saved)
        optional = ", ".join(["Tensor? seed=None", *[f"Tensor? {extra}=None" for extra in extras]])
        common = f"Tensor q, Tensor k, Tensor v, str options, str gradients, {optional}"
        always = (self._seen[0], saved[0])
        seen = ", ".join([f"Tensor{'' if name in always else '?'} {name}" for name in self._seen])
        schema = f"({common}) -> ({', '.join(['Tensor'] * len(self._upstream))})"
        self.inference = _operator(f"{name}_inference", schema, self._run_forward, self._fake_forward)
        self._forward = _operator(name, schema, self._run_forward, self._fake_forward)
        _LIBRARY.impl(name, self._track, "Autograd")
        self._backward = _operator(f"{name}_backward", f"({seen}, {common}) -> Tensor[]", self._run_backward, self._fake_backward)
        torch.library.register_autograd(f"clmgk::{name}_backward", self._refuse_second)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, scalars: Mapping[str, Any], extras: Mapping[str, Tensor],
                 seed: Optional[Tensor]) -> Sequence[Tensor]:
        """The outputs of the forward pass."""
        gradients = _wanted(q, k, v, extras)
        if torch._C._is_tracing():  # torch.jit.is_tracing, with a type
            _refuse_onnx()
            if gradients:
                raise RuntimeError("torch.jit.trace: a graph without gradients is offered: trace under torch.no_grad()")
        operator = self._forward if gradients or is_transformed() else self.inference
        outputs: Sequence[Tensor] = operator(q, k, v, to_string(scalars), gradients, seed,
                                             *[extras.get(name) for name in self.extras] if extras else ())
        return outputs

    # ---- forward

    def _outputs(self, q: Tensor, k: Tensor, v: Tensor, options: str, gradients: str,
                 extras: Sequence[Optional[Tensor]]) -> dict[str, Tensor]:
        given = {name: tensor for name, tensor in zip(self.extras, extras) if tensor is not None}
        check_devices({"q": q, "k": k, "v": v, **given})
        return self._new_outputs(Inputs(q, v, given, from_string(options), traits_in(options, self._variant), gradients))

    def _run_forward(self, q: Tensor, k: Tensor, v: Tensor, options: str, gradients: str, seed: Optional[Tensor] = None,
                     *extras: Optional[Tensor]) -> tuple[Tensor, ...]:
        inputs = (q, k, v, *extras)
        self._refuse_unrecorded(gradients, inputs)
        context = context_for(q)
        key = (self, options, gradients, *_signature(inputs))
        prepared: _Prepared | None = context._kept.find(key)
        if prepared is None:
            outputs = self._outputs(q, k, v, options, gradients, extras)
            if q.shape[0] == 0:
                return tuple(outputs.values())
            prepared = context._kept.keep(key, self._prepare(context, "forward", options, gradients, inputs, outputs))
        return tuple(prepared.run(inputs, seed))

    def _fake_forward(self, q: Tensor, k: Tensor, v: Tensor, options: str, gradients: str, seed: Optional[Tensor] = None,
                      *extras: Optional[Tensor]) -> tuple[Tensor, ...]:
        _refuse_onnx()
        return tuple(self._outputs(q, k, v, options, gradients, extras).values())

    # ---- backward

    def _run_backward(self, *arguments: Any) -> list[Tensor]:
        count = len(self._seen)
        q, k, v, options, gradients, *rest = arguments[count:]
        inputs = (*arguments[:count], q, k, v, *rest[1:])
        context = context_for(q)
        key = (self, "backward", options, gradients, *_signature(inputs))
        prepared: _Prepared | None = context._kept.find(key)
        if prepared is None:
            outputs = self._new_gradients(gradients, inputs)
            if q.shape[0] == 0:
                return [gradient.zero_() for gradient in outputs.values()]
            prepared = context._kept.keep(key, self._prepare(context, "backward", options, gradients, inputs, outputs))
        return prepared.run(inputs, rest[0] if rest else None)

    def _new_gradients(self, gradients: str, inputs: Sequence[Any]) -> dict[str, Tensor]:
        tensors = dict(zip((*self._seen, *self._inputs), inputs))
        check_devices(tensors)
        return {f"grad_{name}": torch.empty_like(tensors[name]) for name in gradients.split(",")}

    def _fake_backward(self, *arguments: Any) -> list[Tensor]:
        count = len(self._seen)
        q, k, v, _, gradients, *rest = arguments[count:]
        return list(self._new_gradients(gradients, (*arguments[:count], q, k, v, *rest[1:])).values())

    # ---- classes of blocks

    def classify(self, q: Tensor, k: Tensor, v: Tensor, scalars: Mapping[str, Any], extras: Mapping[str, Tensor],
                 fields: Mapping[str, Any]) -> Tensor:
        """The classes of a mask's blocks, by a plan with these fields besides; not an operator."""
        check_devices({"q": q, "k": k, "v": v, **extras})
        read = {name: tensor.detach() for name, tensor in extras.items() if name.startswith(("capture_", "numbers"))}
        context, inputs = context_for(q), tuple(read.values())
        key = (self, "mask", to_string(scalars), *fields.values(), *extras, *_signature((q, k, v, *extras.values())))
        prepared: _Prepared | None = context._kept.find(key)
        if prepared is None:
            storage = {name: like(name, tensor, self._has_caches) for name, tensor in zip(STORAGE, (q, k, v))}
            made, more = self._call(storage, {name: _placeholder(name, tensor) for name, tensor in extras.items()},
                                    dict(scalars), "")
            plan = made.plan(context, {**more, **fields})
            shape = plan._pass("mask").by_name["mask_blocks"].shape
            output = torch.empty(shape, dtype=torch.int32, device=q.device)
            prepared = context._kept.keep(key, _Prepared(plan, "mask", tuple(read), inputs, {"mask_blocks": output}))
        with torch.inference_mode(False):  # a later call may have gradients
            return prepared.run(inputs, None)[0]

    # ---- plans

    def _prepare(self, context: Context, pass_name: str, options: str, gradients: str, inputs: Sequence[Optional[Tensor]],
                 outputs: dict[str, Tensor]) -> _Prepared:
        names = (*self._seen, *self._inputs) if pass_name == "backward" else self._inputs
        tensors = {name: tensor for name, tensor in {**dict(zip(names, inputs)), **outputs}.items() if tensor is not None}
        laid_out = (*STORAGE, "o", *[f"grad_{name}" for name in (*STORAGE, "o")])
        storage = {name: like(name, tensors[name], self._has_caches) for name in laid_out if name in tensors}
        extras = {name: _placeholder(name, tensors[name]) for name in self.extras if name in tensors}
        made, fields = self._call(storage, extras, dict(from_string(options)), gradients)
        if gradients:
            fields["gradients"] = gradients.split(",")
        return _Prepared(made.plan(context, fields), pass_name, names, inputs, outputs)

    # ---- autograd

    def _track(self, q: Tensor, k: Tensor, v: Tensor, options: str, gradients: str, *rest: Optional[Tensor]) -> Any:
        self._refuse_unrecorded(gradients, (q, k, v, *rest[1:]))
        if not gradients:
            return self.inference(q, k, v, options, gradients, *rest)
        if _has_transforms():
            raise RuntimeError(f"clmgk.torch.{self.name}: derivatives of torch.func are not offered: use torch.autograd")
        return _Tracked.apply(self, q, k, v, options, gradients, *rest)

    def _refuse_unrecorded(self, gradients: str, inputs: Sequence[Optional[Tensor]]) -> None:
        """Raises for a tensor that requires a gradient which the call did not ask for, and would not get."""
        if not torch.is_grad_enabled():
            return
        recorded = gradients.split(",")
        for name, tensor in zip(self._inputs, inputs):
            if tensor is not None and tensor.requires_grad and name not in recorded:
                raise RuntimeError(
                    f"{name}: requires a gradient, which clmgk.torch.{self.name} does not compute here: either the call was "
                    f"traced with a tensor that requires none (trace it with tensors that require gradients), or torch.vmap "
                    f"hides it (use an axis of the batch instead); torch.no_grad() allows the call")

    def save(self, ctx: Any, inputs: Any, output: Any) -> None:
        """Keeps what `differentiate` reads."""
        ctx.family = self
        q, k, v, ctx.options, ctx.gradients, *rest = inputs
        by_name = dict(zip(self._upstream, output))
        saved = [by_name[name] for name in self._saved]
        ctx.save_for_backward(*[None if _is_absent(tensor) else tensor for tensor in saved], q, k, v, *rest)
        ctx.mark_non_differentiable(*[by_name[name] for name, gradient in self._upstream.items() if gradient is None])
        ctx.set_materialize_grads(False)

    def differentiate(self, ctx: Any, *grads: Optional[Tensor]) -> tuple[Optional[Tensor], ...]:
        """The gradients of the inputs."""
        tensors = ctx.saved_tensors
        saved = dict(zip(self._saved, tensors))
        q, k, v, *rest = tensors[len(saved):]
        upstream = [grad for grad, name in zip(grads, self._upstream.values()) if name]
        grad_o = torch.zeros_like(saved["o"]) if upstream[0] is None else usable(upstream[0])
        others = [None if grad is None else grad.contiguous() for grad in upstream[1:]]
        found = self._backward(grad_o, *others, *saved.values(), q, k, v, ctx.options, ctx.gradients, *rest)
        by_name = dict(zip(ctx.gradients.split(","), found))
        inputs = (*STORAGE, "options", "gradients", "seed", *self.extras)  # an operator gets none behind the last one given
        return tuple([by_name.get(name) for name in inputs[:len(STORAGE) + 2 + len(rest)]])

    def _refuse_second(self, ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(f"clmgk.torch.{self.name}: a gradient of a gradient is not offered (create_graph=True)")


# ---- tensors of a call


def _is_absent(output: Tensor) -> bool:
    """Whether an output is the empty vector that stands for one that the call does not have."""
    return output.ndim == 1 and output.shape[0] == 0


def usable(tensor: Tensor) -> Tensor:
    """A tensor in a layout that the library takes: the innermost axis is contiguous."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def prepare(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v in the type of autocast and in usable layouts."""
    kind = "cpu" if q.is_cpu else "cuda"
    if torch.is_autocast_enabled(kind):
        target = torch.get_autocast_dtype(kind)
        q, k, v = (t.to(target) if t.dtype in _DTYPES else t for t in (q, k, v))
    return usable(q), usable(k), usable(v)


_has_transforms = torch._C._are_functorch_transforms_active


def _refuse_onnx() -> None:
    if torch.onnx.is_in_onnx_export():
        raise NotImplementedError("torch.onnx.export: ONNX has no operator for clmgk's attention: for softmax, load the state_dict "
                                  "of clmgk.torch.MultiheadAttention into torch.nn.MultiheadAttention, and export that; "
                                  "torch.export and torch.jit.trace save a graph that runs with clmgk")


def is_transformed() -> bool:
    """Whether tensors of a call may hide that they require gradients: within torch.func's transforms, and in a graph, which
    may be called with other tensors."""
    return torch.compiler.is_compiling() or _has_transforms()


def _wanted(q: Tensor, k: Tensor, v: Tensor, extras: Mapping[str, Tensor]) -> str:
    """The names of the tensors whose gradients are wanted."""
    if not torch.is_grad_enabled():
        return ""
    tensors = {"q": q, "k": k, "v": v, **extras}
    return ",".join([name for name, tensor in tensors.items() if tensor.requires_grad])


def draw_seed(seed: int | None, is_random: bool) -> Optional[Tensor]:
    """The operators' argument `seed`, on the CPU; drawn from PyTorch's generator where a call needs random numbers."""
    if seed is not None:
        number = check_seed(seed)
        return torch.tensor(number if number < 2**63 else number - 2**64, device="cpu")
    return torch.randint(2**63 - 1, (), device="cpu") if is_random else None
