# SPDX-License-Identifier: Apache-2.0
"""Plans: one problem on one device, compiled, and its passes on arrays in host memory."""
from __future__ import annotations

import os
import sys
import threading
import weakref
from concurrent.futures import Future
from threading import get_ident, main_thread
from typing import Any, Container, Iterable, Mapping, NamedTuple, Unpack

import numpy as np

from ._context import Context, Device, Kept, Opened, context_of
from ._descriptor import Descriptor, describe, validate
from ._library import (ARRAYS, GRADIENTS, NULL, UnsupportedError, begin_call, bits, c_string, call, check, check_seed, end_call,
                       ffi, from_name, initialised, is_usable, lib, name_of, name_set, new_error, text, use_opencl)
from ._sizes import Kind, sizes_of
from ._slots import Array, Pass, check_array

from_buffer = ffi.from_buffer
_PENDING = ffi.typeof("binding_pending **")
_PATIENCE_MS = 100  # between two looks for signals
_SILENT_SECONDS = 1.0  # that a compiler may take without a word
_has_said = False
_MOST_PREPARED = 64  # kinds of calls that a plan keeps
_MOST_OWN = 4  # sizes of a kind of call that have C plans of their own


class PlanInfo(NamedTuple):
    """The choices that the library made for a plan: the fields of ``clmgk_plan_info`` (include/clmgk/attention.h).

    "" and 0 stand for what the plan does not have, such as the backward pass of a plan without gradients.
    """

    engine: str
    engine_reason: str  #: why this engine, and why others cannot run all passes
    origin: str  #: of the programs: "memory", "shipped", "disk" or "built"
    compile_ms: float
    workspace_bytes: int
    parameters: str
    backward_parameters: str
    tuning: str  #: where the parameters come from: "class" (defaults), "bucket", "caller", ...
    backward_tuning: str
    keeper: str  #: of the programs for the next process: "library", "driver" or "nobody"
    precision: str  #: of the products: "exact", "tf32" or "bf16"
    cache_note: str  #: why a program is not kept
    local_bytes: int
    private_bytes: int
    driver_private_bytes: int
    options: str
    kernel: str
    backward_workspace_bytes: int
    backward_driver_private_bytes: int
    backward_options: str
    backward_kernel: str


# Fields of C's structure that are values of enumerations, and the enumerations.
_ENUMERATIONS = {"engine": "engine", "origin": "program_origin", "tuning": "tuning_source",
                 "backward_tuning": "tuning_source", "keeper": "program_keeper", "precision": "precision"}


def _plan_info(pointer: Any) -> PlanInfo:
    info = initialised("clmgk_plan_info")
    call(lib.clmgk_plan_get_info, pointer, info)
    values: list[Any] = []
    for name in PlanInfo._fields:
        value = getattr(info, name)
        if name in _ENUMERATIONS:
            value = name_of(_ENUMERATIONS[name], value)
        values.append(text(value) if isinstance(value, ffi.CData) else value)
    return PlanInfo(*values)


def _release(pointer: Any, opened: Opened) -> None:
    if is_usable():
        lib.clmgk_plan_release(pointer)


class Handle:
    """A C plan with what its calls use. It is released when no plan and no call holds it any more."""

    __slots__ = ("pointer", "opened", "workspace_bytes", "idle", "_owner", "__weakref__")

    def __init__(self, pointer: Any, opened: Opened) -> None:
        self.pointer, self.opened = pointer, opened
        self.workspace_bytes = lib.clmgk_plan_workspace_size(pointer)
        self.idle: list[tuple[Any, Any, Any]] = []  # what `take` gives
        self._owner: Handle | None = None
        weakref.finalize(self, _release, pointer, opened)

    def for_sizes(self, sizes: Any) -> Handle:
        """The same C plan, for calls of these sizes."""
        own = Handle.__new__(Handle)
        bytes_ = ffi.new("size_t *")
        call(lib.clmgk_plan_call_workspace_size, self.pointer, sizes, bytes_)
        own.pointer, own.opened, own.workspace_bytes, own.idle, own._owner = self.pointer, self.opened, bytes_[0], [], self
        return own

    def take(self) -> tuple[Any, Any, Any]:
        """A workspace, an error record and a place for a pass that is not over, which no other call uses; append all to
        `idle` after a call without an error."""
        try:
            return self.idle.pop()
        except IndexError:
            if self.workspace_bytes == 0:
                return NULL, new_error(), ffi.new(_PENDING)
            memory = ffi.new("cl_mem *")
            call(lib.binding_create_buffer, self.opened.native, self.workspace_bytes, memory)
            return ffi.gc(memory[0], _release_buffer), new_error(), ffi.new(_PENDING)


def _release_buffer(memory: Any) -> None:
    if is_usable():
        lib.binding_release_buffer(memory)


def _leave(pending: Any, error: Any, token: object, held: Any) -> None:
    """Lets a pass whose caller was interrupted end by itself: a thread waits, and holds what it uses."""
    def finish() -> None:
        lib.binding_finish(pending, error)
        end_call(token)
        held  # until here

    try:
        threading.Thread(target=finish, name="clmgk-run").start()
    except RuntimeError:  # the interpreter is ending
        finish()


def _say_that_it_compiles() -> None:
    """One line a process, on stderr."""
    global _has_said
    if not _has_said and sys.stderr is not None and os.environ.get("CLMGK_QUIET", "0") in ("", "0"):
        print("clmgk: compiling kernels, which is needed once for each kind of problem (CLMGK_QUIET=1: without this line)",
              file=sys.stderr, flush=True)
    _has_said = True


def _create(opened: Opened, desc: Any, options: Any) -> Handle:
    """Makes a C plan. Compiling takes seconds on some devices and cannot be interrupted; so the main thread has another
    thread do it, and Ctrl-C ends the wait (Python exits when the compiler has finished)."""
    out = ffi.new("clmgk_plan **")
    error = new_error()
    result: list[Handle | int] = []
    done = threading.Event()

    def make() -> None:
        token = None
        try:
            token = begin_call()
            status = lib.clmgk_plan_create(opened.native.clmgk, desc, options, out, error)
            result.append(Handle(out[0], opened) if status == lib.CLMGK_OK else status)
        finally:
            end_call(token)
            done.set()

    if threading.current_thread() is threading.main_thread():
        threading.Thread(target=make, name="clmgk-compile").start()
        # Not join(): in Python 3.11 an interrupted join takes the thread for ended.
        if not done.wait(_SILENT_SECONDS):
            _say_that_it_compiles()
            done.wait()
    else:
        make()
    if not result:
        raise RuntimeError("the interpreter is ending")
    made = result[0]
    if not isinstance(made, Handle):
        check(made, error)
        raise AssertionError(made)
    return made


class Shared:
    """The sizes that calls of a kind have had, until there are many; then the C plan that serves all, and its limits."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.seen: set[tuple[int, ...]] = set()
        self.limits: dict[str, int] = {}
        self.handle: Handle | None = None


def _shared(context: Context, engine: str, fields: Mapping[str, Any], resolved: Any, options: Any) -> Handle | None:
    """The C plan of all calls of the kind, with larger limits if these need them. None: these sizes have a plan of their
    own, because the kind has had few others, whose calls are faster so, or cannot have a plan of any size."""
    kind = Kind(fields, resolved)
    if not kind.is_usual:
        return None
    key = (engine, kind.key)
    entry: Shared = context._kinds.find(key) or context._kinds.keep(key, Shared())
    with entry.lock:
        if len(entry.seen) <= _MOST_OWN:
            entry.seen.add(tuple(kind.sizes.values()))
        if len(entry.seen) <= _MOST_OWN:
            return None
        if not entry.limits or not kind.fits(entry.limits):
            entry.limits = kind.limits(entry.limits)
            try:
                entry.handle = _create(context._opened, describe(kind.fields(entry.limits)), options)
            except (UnsupportedError, ValueError):
                entry.handle = None
        return entry.handle


class Plan:
    """One attention problem on one device, compiled once, for many calls.

    A plan is immutable, and threads may share it. `forward`, `backward`, `statistics`, `mask`, `append` and `combine` run
    its passes on NumPy arrays; ``clmgk.opencl`` enqueues them on OpenCL arrays. The functions ``clmgk.attention`` and others make plans
    themselves and keep the last ones; a plan of one's own saves their look at the arguments, and gives access to every
    field of the C library's descriptor.

    Parameters
    ----------
    device : str, Device or Context, optional
        As in ``clmgk.Context``.
    engine : {"auto", "lane", "simt", "matrix"}
        The kernel engine of all passes.
    parameters, backward_parameters : str, optional
        Kernel parameters, "name=value,name=value", as in ``clmgk_plan_options``.
    **fields
        The problem: the fields of ``clmgk_attention_desc``; see `Descriptor`.

    Raises
    ------
    ValueError
        A field has a value that is not legal; the message names the field, its value and the expected value.
    TypeError
        A field has another type, or there is no such field.
    NotImplementedError
        The problem is legal, but not offered.
    RuntimeError
        No device; a kernel failed to compile.

    Examples
    --------
    >>> plan = clmgk.Plan(variant="mgk", heads=4, length=1000, head_size=32, gradients=["q", "k", "v"])
    >>> forward = plan.forward(q=q, k=k, v=v)
    >>> forward["o"].shape, forward["lse"].shape
    ((1, 4, 1000, 32), (1, 4, 1000))
    >>> gradients = plan.backward(q=q, k=k, v=v, **forward, grad_o=grad_o)
    >>> gradients["grad_q"].shape
    (1, 4, 1000, 32)
    """

    def __init__(self, *, device: str | Device | Context | None = None, engine: str = "auto", parameters: str | None = None,
                 backward_parameters: str | None = None, **fields: Unpack[Descriptor]) -> None:
        self._make(device, engine, parameters, backward_parameters, fields, batched=True, shared=False)

    def _make(self, device: str | Device | Context | None, engine: str, parameters: str | None, backward_parameters: str | None,
              fields: Mapping[str, Any], batched: bool, shared: bool) -> None:
        use_opencl()
        desc = describe(fields)
        self._resolved = validate(fields)
        options = initialised("clmgk_plan_options")
        options.engine = lib.CLMGK_ENGINE_AUTO if engine == "auto" else from_name("engine", engine)
        kept = [NULL if words is None else ffi.new("char[]", c_string(name, words))
                for name, words in (("parameters", parameters), ("backward_parameters", backward_parameters))]
        options.parameters, options.backward_parameters = kept
        self._batched = batched
        self._passes: dict[tuple[str, int], Pass] = {}
        self._kept = Kept(_MOST_PREPARED)
        context = context_of(device)
        self._sizes: Any = NULL  # of every call
        owner = _shared(context, engine, fields, self._resolved, options) if shared else None
        if owner is not None:
            self._sizes = sizes_of(self._resolved)
        self._handle: Handle | None = _create(context._opened, desc, options) if owner is None else owner.for_sizes(self._sizes)

    @classmethod
    def _of(cls, device: str | Device | Context | None, engine: str, fields: Mapping[str, Any], batched: bool,
            shared: bool = False) -> Plan:
        """A plan for arrays that may lack the axis of the batch. `shared`: its C plan is that of all calls of the kind."""
        self = cls.__new__(cls)
        self._make(device, engine, None, None, fields, batched, shared)
        return self

    # ---- passes

    def _use(self) -> Handle:
        use_opencl()
        handle = self._handle
        if handle is None:
            raise RuntimeError("the plan was released")
        return handle

    def _pass(self, name: str, parts: int = 0) -> Pass:
        found = self._passes.get((name, parts))
        if found is None:
            found = self._passes[name, parts] = Pass(self._resolved, name, self._batched, parts, self._sizes)
        return found

    def _run(self, pass_: Pass, pointers: list[Any], seed: int, accumulate: int = 0, arrays: Any = None) -> None:
        """Runs a pass on memory at these pointers, in the order of ``pass_.slots``; NULL: no array. `arrays` own the memory,
        if the pointers do not. Ctrl-C ends the wait; what the pass uses lives until it is over."""
        handle = self._use()
        seed = check_seed(seed)
        patience = _PATIENCE_MS if get_ident() == main_thread().ident else -1  # signals come to the main thread
        pending: Any = None
        token: object = begin_call()
        try:
            workspace, error, pending = resources = handle.take()
            status = lib.binding_run(handle.opened.native, handle.pointer, pass_.native, pointers, seed, accumulate, workspace,
                                     patience, pending, error)
            while pending[0] != NULL:
                if lib.binding_wait(pending[0], _PATIENCE_MS):
                    status = lib.binding_finish(pending, error)
        except BaseException:
            if pending is not None and pending[0] != NULL:
                _leave(pending, error, token, (handle, pass_, pointers, arrays, resources))
                token = None
            raise
        finally:
            end_call(token)
        if status:
            check(status, error)
        handle.idle.append(resources)

    def _call(self, pass_name: str, arrays: Mapping[str, Array | None], *, seed: int = 0, accumulate: int = 0,
              parts: int = 0) -> dict[str, Array]:
        """Runs a pass on arrays; makes the outputs that are not given. Returns the outputs."""
        key = (pass_name, parts, *signature(arrays))
        prepared: Prepared | None = self._kept.find(key)
        if prepared is None:
            prepared = self._kept.keep(key, Prepared(self, self._pass(pass_name, parts), arrays))
        return prepared.run(self, arrays, seed, accumulate)

    def forward(self, *, seed: int = 0, **arrays: Array) -> dict[str, Array]:
        """Computes O.

        Parameters
        ----------
        seed : int
            Of dropout and noise; the same for forward and backward of one training step.
        **arrays
            The inputs by their names in C (``clmgk_attention_args``): q, k, v, prior, lengths, ... An output that is given
            is written and returned; the others are made.

        Returns
        -------
        dict
            Every output of the pass: "o", and "lse" (log-sum-exp; the linear family: "denominator"), "new_state_c", ...

        Raises
        ------
        ValueError
            An array is missing, not used by the plan, or has another shape or other strides; a value is not legal.
        TypeError
            An array has elements of another type.
        RuntimeError
            The plan was released; the process was forked after it used OpenCL.
        """
        return self._call("forward", arrays, seed=seed)

    def backward(self, *, seed: int = 0, accumulate: Iterable[str] = (), **arrays: Array) -> dict[str, Array]:
        """Computes the gradients that the plan was made for.

        Parameters
        ----------
        seed : int
            The forward pass's.
        accumulate : iterable of str
            Gradients ("q", "k", ...) that are added to the values in their arrays, which must be given (grad_q, grad_k,
            ...).
        **arrays
            The inputs of the forward pass, its outputs o and lse (the linear family: o and denominator), grad_o, and
            optionally grad_lse. A gradient that is given is written and returned.

        Returns
        -------
        dict
            "grad_q", "grad_k", ...

        Raises
        ------
        ValueError, TypeError, RuntimeError
            As in `forward`.
        """
        if not self._resolved.gradients:
            raise ValueError("gradients: the plan was made without any")
        names = name_set("accumulate", accumulate)
        for name in names:
            if f"grad_{name}" not in arrays:
                raise ValueError(f"grad_{name}: missing: accumulate adds to it")
        return self._call("backward", arrays, seed=seed, accumulate=bits("accumulate", names, GRADIENTS))

    def statistics(self, *, seed: int = 0, **arrays: Array) -> dict[str, Array]:
        """Computes the statistics that the plan was made for: responsibilities, counts, new_prior, nll.

        The arguments are the forward pass's without v. Raises as `forward`.
        """
        if not self._resolved.statistics:
            raise ValueError("statistics: the plan was made without any")
        return self._call("statistics", arrays, seed=seed)

    def mask(self, **arrays: Array) -> dict[str, Array]:
        """Classifies the blocks of the mask of a plan that has use_mask_blocks=True and mask_mod.

        Parameters
        ----------
        **arrays
            The captured arrays and the numbers: capture_0, ..., numbers.

        Returns
        -------
        dict
            "mask_blocks", which the other passes read: 0 for a hidden block, 2 for a whole one, else 1.
        """
        if not self._resolved.use_mask_blocks or self._resolved.mask_mod == NULL:
            raise ValueError("mask: the plan was made without use_mask_blocks and mask_mod")
        return self._call("mask", arrays)

    def append(self, *, k: Array, v: Array, append_k: Array, append_v: Array, append_slots: Array,
               **arrays: Array) -> dict[str, Array]:
        """Writes new keys and values into the pools or caches of a plan that has append > 0.

        Parameters
        ----------
        k, v : array
            The pools or caches, in which slots are written.
        append_k, append_v : array [R,G,D] and [R,G,E]
            The new keys and values of R tokens.
        append_slots : array of int32 [R]
            Each token's slot: page * page_size + row, or without pages batch * S + row. A token with a negative slot, or one
            beyond the last, is left out.
        **arrays
            append_positions, int32 [R], with append_rotary. scale_k and scale_v with use_scale_k and use_scale_v: those of int8
            are written, those of 8-bit floats read.

        Returns
        -------
        dict
            "k" and "v", and with them scales that were written.
        """
        if not self._resolved.append:
            raise ValueError("append: the plan was made without it")
        return self._call("append", {"k": k, "v": v, "append_k": append_k, "append_v": append_v,
                                     "append_slots": append_slots, **arrays})

    def combine(self, *, parts_o: Array, parts_lse: Array, **arrays: Array) -> dict[str, Array]:
        """Combines attentions over disjoint ranges of keys into the attention over all; the plan has combine=True.

        Parameters
        ----------
        parts_o : array [parts,B,H,N,E], dense
            The outputs of the parts.
        parts_lse : array [parts,B,H,N], dense
            Their log-sum-exps.

        Returns
        -------
        dict
            "o" and "lse".
        """
        if not self._resolved.combine:
            raise ValueError("combine: the plan was made without it")
        if not isinstance(parts_o, np.ndarray) or parts_o.ndim == 0:
            raise TypeError(f"parts_o: {type(parts_o).__name__}: expected a NumPy array of parts")
        return self._call("combine", {"parts_o": parts_o, "parts_lse": parts_lse, **arrays}, parts=parts_o.shape[0])

    @property
    def info(self) -> PlanInfo:
        """The choices that the library made."""
        return _plan_info(self._use().pointer)

    def release(self) -> None:
        """Releases the plan's programs, once the calls in progress have ended. Later calls raise RuntimeError."""
        self._handle = None

    def __copy__(self) -> Plan:
        return self

    def __deepcopy__(self, memo: Any) -> Plan:
        return self

    def __reduce__(self) -> Any:
        raise TypeError("a Plan cannot be pickled, because it belongs to this process: make another from the same arguments")

    def __repr__(self) -> str:
        variant = name_of("variant", self._resolved.variant)
        return f"<clmgk.Plan of {variant}{' (released)' if self._handle is None else ''}>"

    def __enter__(self) -> Plan:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def unsupported(*, device: str | Device | Context | None = None, engine: str = "auto",
                **fields: Unpack[Descriptor]) -> str | None:
    """Why the library offers no `Plan` of these fields on a device; None: it does. Compiles nothing.

    Raises
    ------
    ValueError, TypeError, RuntimeError
        As `Plan`, for fields that are not legal, and without a device.

    Examples
    --------
    >>> clmgk.unsupported(length=100, head_size=32, dtype="f16", dtype_o="f32", engine="matrix")
    "engine matrix: O in a finer type than V needs finer weights than those that multiply V, unless the precision is V's"
    """
    use_opencl()
    options = initialised("clmgk_plan_options")
    options.engine = lib.CLMGK_ENGINE_AUTO if engine == "auto" else from_name("engine", engine)
    try:
        call(lib.clmgk_attention_supported, context_of(device)._opened.native.clmgk, describe(fields), options)
    except UnsupportedError as error:
        return str(error)
    return None


def warm_up(problems: Iterable[Descriptor], *, device: str | Device | Context | None = None,
            engine: str = "auto") -> list[Future[Plan]]:
    """Makes plans in the background, one after another. Calls of other threads go on meanwhile.

    Equal plans, and functions without a plan on an equal problem, find the compiled programs on the same device (a `Context`
    of one's own: on this context) while one of these plans lives, and for a time afterwards; and on disk where programs are
    kept.

    Parameters
    ----------
    problems : iterable of dict
        The fields of each problem: `Descriptor`.
    device, engine
        As in `Plan`.

    Returns
    -------
    list of concurrent.futures.Future
        ``result()`` waits for a plan, and raises what `Plan` would; ``cancel()`` prevents one that was not begun. The end of
        the interpreter prevents those, too.

    Raises
    ------
    ValueError, TypeError, RuntimeError
        As `Plan`, for fields that are not legal, and without a device.

    Examples
    --------
    >>> plans = clmgk.warm_up([dict(heads=4, length=n, head_size=32, causal=True) for n in (1000, 1)])
    >>> plans[1].result().forward(q=q, k=k, v=v)["o"]
    """
    context = context_of(device)
    each = [dict(fields) for fields in problems]
    for fields in each:
        validate(fields)
    futures: list[Future[Plan]] = [Future() for _ in each]

    def make() -> None:
        for future, fields in zip(futures, each):
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(Plan._of(context, engine, fields, batched=True))
                except BaseException as error:
                    future.set_exception(error)

    threading.Thread(target=make, name="clmgk-warm-up", daemon=True).start()
    return futures


# ---- calls on arrays


def signature(arrays: Mapping[str, Array | None]) -> list[Any]:
    """What `Prepared` checks of arrays; raises for one that is no array."""
    found: list[Any] = []
    for name, array in arrays.items():
        if array is None:
            found += (name, None)
            continue
        if type(array) is not np.ndarray:
            check_array(name, array)
        found += (name, array.shape, array.strides, array.dtype)
    return found


class Prepared:
    """A pass of a plan on arrays of one `signature`. What depends on the signature alone is checked when this is made; what
    does not (values, read-only and overlapping memory), by each call."""

    __slots__ = ("_pass", "_inputs", "_outputs", "_given", "_paged", "_pooled")

    def __init__(self, plan: Plan, pass_: Pass, arrays: Mapping[str, Array | None], unwanted: Container[str] = ()) -> None:
        self._pass = pass_
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        for place, slot in enumerate(pass_.slots):
            array = arrays.get(slot.name)
            if array is not None:
                slot.check(array)
            elif slot.required and slot.bytes > 0 and not slot.is_output:
                raise ValueError(f"{slot.name}: missing: the pass {pass_.name} needs it")
            row = None if slot.is_dense else slot.first_row
            if slot.is_output and (array is not None or slot.name not in unwanted):
                self._outputs.append((place, slot, row))
            elif array is not None:
                self._inputs.append((place, slot.name, row, slot.check_values))
        _refuse(plan, pass_, arrays)
        self._paged = "page_table" in pass_.by_name and arrays.get("page_table") is not None
        self._given = [slot.name for _, slot, _ in self._outputs if arrays.get(slot.name) is not None]
        self._pooled = plan._resolved.state_pool > 0

    def run(self, plan: Plan, arrays: Mapping[str, Any], seed: int, accumulate: int = 0) -> dict[str, Array]:
        """Runs the pass on arrays of the signature; makes the outputs that are not among them. Returns the outputs."""
        pointers = self._pass.nothing.copy()
        for place, name, row, check_values in self._inputs:
            array = arrays[name]
            if check_values is not None:
                check_values(array)
            pointers[place] = from_buffer(array if row is None else array[row])
        if self._paged:
            _check_pages(plan, arrays)
        if self._pooled:
            _check_state_slots(plan, arrays)
        for name in self._given:
            _check_output(name, arrays, self._pooled)
        outputs = {}
        for place, slot, row in self._outputs:
            array = arrays.get(slot.name)
            if array is None:
                array = slot.new()
            outputs[slot.name] = array
            pointers[place] = from_buffer(array if row is None else array[row])
        plan._run(self._pass, pointers, seed, accumulate)
        return outputs


def _check_pages(plan: Plan, arrays: Mapping[str, Any]) -> None:
    """Raises for numbers that are no pages, of the entries in use."""
    names = ("page_table", "page_offsets", "last_page", "lengths")
    call(lib.clmgk_check_pages, plan._resolved,
         *[NULL if arrays.get(name) is None else from_buffer("int32_t[]", arrays[name]) for name in names])


def _check_state_slots(plan: Plan, arrays: Mapping[str, Any]) -> None:
    """Raises for places that states cannot be read from, or left at."""
    slots = [NULL if arrays.get(name) is None else from_buffer("int32_t[]", arrays[name]) for name in ("state_slots", "new_state_slots")]
    one_pool = arrays.get("new_state_c") is not None and arrays["new_state_c"] is arrays.get("state_c")
    call(lib.clmgk_check_state_slots, plan._resolved, *slots, one_pool)


def _refuse(plan: Plan, pass_: Pass, arrays: Mapping[str, Array | None]) -> None:
    """Raises for arrays that the pass does not use; ignores those of other passes, as the C library does."""
    for name, array in arrays.items():
        if name not in ARRAYS or name == "workspace":
            raise TypeError(f"{name}: no such array: expected one of {', '.join(pass_.by_name)}")
        is_of_pass = lib.clmgk_array_shape(plan._resolved, ARRAYS[name]).rank > 0
        if array is not None and name not in pass_.by_name and not is_of_pass:
            raise ValueError(f"{name}: given, but the plan does not use it")


def _check_output(output: str, arrays: Mapping[str, Array | None], pooled: bool) -> None:
    """Raises if an output that the caller gave is read-only, or shares memory with another array, if that is not its pool."""
    given: Any = arrays[output]
    if not given.flags.writeable:
        raise ValueError(f"{output}: read-only: expected an array that can be written")
    for name, array in arrays.items():
        if pooled and array is given and output == f"new_{name}":
            continue
        if name != output and array is not None and _shares_memory(given, array):
            raise ValueError(f"{output}: shares memory with {name}")


def _shares_memory(a: Array, b: Array) -> bool:
    """As the C library does for buffers, accepts layouts for which the search would take long."""
    if not np.may_share_memory(a, b):
        return False
    try:
        return np.shares_memory(a, b, max_work=10**5)  # type: ignore[arg-type]
    except Exception as error:  # NumPy's TooHardError, which has moved between its modules
        if type(error).__name__ == "TooHardError":
            return False
        raise
