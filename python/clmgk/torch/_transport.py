# SPDX-License-Identifier: Apache-2.0
"""libclmgk-dist's transport over a group of torch.distributed: bytes between processes."""
from __future__ import annotations

import datetime
import itertools
import time
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .._library import NULL, ffi, initialised, lib


def _tensor(memory: Any, count: int) -> Tensor:
    return torch.frombuffer(ffi.buffer(memory, count), dtype=torch.uint8)


def _wait(works: list[Any], seconds: float) -> None:
    last = time.monotonic() + seconds
    for work in works:
        work.wait(datetime.timedelta(seconds=max(0.001, last - time.monotonic())))


class Transport:
    """What C calls back; `native` is C's table."""

    def __init__(self, group: Any) -> None:
        self._group = weakref.ref(group)  # plans live in a table by groups
        self._works: dict[int, list[Any]] = {}
        self._numbers = itertools.count(1)
        self.failure: BaseException | None = None  # the last call's
        self._handle = ffi.new_handle(self)
        self.native = initialised("clmgk_dist_transport")
        self.native.state = self._handle
        self.native.rank, self.native.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.native.begin, self.native.wait, self.native.cancel = lib.binding_begin, lib.binding_end, lib.binding_cancel

    def _message(self, function: Any, tensor: Tensor, rank: int, tag: int) -> Any:
        group = self._group()
        if group is None:
            raise RuntimeError("group: torch.distributed.destroy_process_group ended it")
        return function(tensor, dist.get_global_rank(group, rank), group, tag)

    def _send(self, tensor: Tensor, rank: int, tag: int) -> Any:
        return self._message(dist.isend, tensor, rank, tag)

    def _receive(self, tensor: Tensor, rank: int, tag: int) -> Any:
        return self._message(dist.irecv, tensor, rank, tag)

    def begin(self, exchange: Any) -> int:
        """Begins an exchange; its number."""
        works = []
        if exchange.receive_bytes:
            works.append(self._receive(_tensor(exchange.receive, exchange.receive_bytes), getattr(exchange, "from"), exchange.tag))
        if exchange.send_bytes:
            works.append(self._send(_tensor(exchange.send, exchange.send_bytes), exchange.to, exchange.tag))
        number = next(self._numbers)
        self._works[number] = works
        return number

    def end(self, number: int, seconds: float) -> None:
        """Waits for an exchange, at most this time."""
        _wait(self._works.pop(number), seconds)

    def share(self, numbers: list[int], seconds: float) -> list[list[int]]:
        """These numbers, of each process."""
        all_ = [torch.tensor(numbers) for _ in range(self.native.ranks)]
        own = self.native.rank
        others = [rank for rank in range(self.native.ranks) if rank != own]
        works = [self._receive(all_[rank], rank, 0) for rank in others]
        _wait(works + [self._send(all_[own], rank, 0) for rank in others], seconds)
        return [tensor.tolist() for tensor in all_]

    def fail(self, failure: BaseException, error: Any) -> int:
        """Keeps an exception for the caller in Python, and tells C."""
        self.failure = failure
        status: int = lib.CLMGK_ERROR_COMMUNICATION
        if error != NULL:
            error.status, error.opencl_code = status, 0
            error.message = f"{type(failure).__name__}: {failure}".encode()[:ffi.sizeof(error.message) - 1]
        return status


@ffi.def_extern(error=lib.CLMGK_ERROR_COMMUNICATION)  # type: ignore[untyped-decorator]
def binding_begin(state: Any, exchange: Any, request: Any, error: Any) -> int:
    transport: Transport = ffi.from_handle(state)
    try:
        request[0] = ffi.cast("void *", transport.begin(exchange))
        return int(lib.CLMGK_OK)
    except BaseException as failure:
        return transport.fail(failure, error)


@ffi.def_extern(error=lib.CLMGK_ERROR_COMMUNICATION)  # type: ignore[untyped-decorator]
def binding_end(state: Any, request: Any, seconds: float, error: Any) -> int:
    transport: Transport = ffi.from_handle(state)
    try:
        transport.end(int(ffi.cast("uintptr_t", request)), seconds)
        return int(lib.CLMGK_OK)
    except BaseException as failure:
        return transport.fail(failure, error)


@ffi.def_extern()  # type: ignore[untyped-decorator]
def binding_cancel(state: Any) -> None:
    """A group has no message that others would look for: they wait for the time that the caller gave."""
