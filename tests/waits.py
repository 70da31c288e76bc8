"""Counts where the host would wait for a GPU, and what it launches there, on the CPU.

A *wait* is a blocking copy either way, or an operation that needs a value on the host. A *look* is a copy to the host
that the host waits for later, and a *copy* one to the device that nobody waits for. On the CPU build of torch, data of
the host that become a tensor count as copied to the device. See :mod:`tests.pretended_cuda` for a stricter device.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import hf_lossy_assist
from hf_lossy_assist.decoding.loop import Decoding

# What needs a value on the host: reading one, and shapes that depend on values.
WAITING = {
    "_local_scalar_dense", "nonzero", "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive",
    "equal", "is_nonzero",
}  # fmt: skip
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
# What launches no kernel.
VIEWS = {
    "view", "_unsafe_view", "t", "transpose", "permute", "expand", "slice", "select", "unsqueeze", "squeeze", "detach",
    "as_strided", "alias", "split", "split_with_sizes", "unbind", "unfold", "diagonal", "_reshape_alias", "narrow",
    "empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "lift_fresh", "resize_", "set_",
    "is_same_size", "_has_compatible_shallow_copy_type", "squeeze_", "unsqueeze_", "t_", "transpose_", "detach_",
}  # fmt: skip
LAUNCHES = {"multinomial": 14, "sort": 2, "topk": 2}
"""Kernels of an operation, where there are several."""

PACKAGE = next(iter(hf_lossy_assist.__path__))
TRANSFERS = "/core/transfers.py"
"""The only file that copies without a wait."""


def _line() -> str:
    """Return the line of the package, and that of transformers which it has called, if any."""
    frame, called = sys._getframe(2), ""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(PACKAGE):
            return f"{name[len(PACKAGE) + 1 :]}:{frame.f_lineno}{called}"
        if not called and "/transformers/" in name:
            called = f" > {name.split('/transformers/')[-1]}:{frame.f_lineno}"
        frame = frame.f_back
    return called


class Counts:
    """What every round of a call waits for, looks at, copies and launches, each with its line."""

    def __init__(self, lines: bool = False) -> None:
        self.rounds: list[Counter[tuple[str, str]]] = [Counter()]
        self.inside = self.graphs = 0
        self._lines = lines

    def note(self, what: str, kind: str, times: int = 1) -> None:
        if what == "kernel" and self.inside:
            return
        at = f"{kind} at {_line()}" if self._lines or what != "kernel" else ""
        self.rounds[-1][what, at] += times

    def launch(self, body: Callable[[], Any]) -> None:
        """Run a graph, whose kernels are one; none of them may wait."""
        self.note("kernel", "graph")
        self.graphs += 1
        self.inside += 1
        body()
        self.inside -= 1

    def operation(self, func: Any, args: Any, kwargs: Any) -> None:
        name = func.overloadpacket.__name__
        if name in WAITING or (
            name == "repeat_interleave" and func._overloadname != "self_int" and kwargs.get("output_size") is None
        ):
            self.note("wait", name)
        elif name not in VIEWS:
            self.note("kernel", name, LAUNCHES.get(name, 1))
        if name in INDEXING and any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1]):
            self.note("wait", f"{name} by a mask")

    def per_round(self, what: str, *but: str) -> list[int]:
        """Return how many each round has, without the first two, which read prompts and prepare, and the last.

        Those at lines of the files ``but`` are not counted.
        """
        counted = [{at: n for (kind, at), n in of.items() if kind == what} for of in self.rounds[3:-1]]
        return [sum(n for at, n in of.items() if not any(f"{file}:" in at for file in but)) for of in counted]

    def where(self, what: str) -> dict[str, float]:
        """Return the mean number per round by line."""
        kept = self.rounds[3:-1]
        total = sum(kept, Counter())
        return {at: n / len(kept) for (kind, at), n in total.most_common() if kind == what}


class _Enough(Exception):
    pass


@contextmanager
def counted(
    models: dict[str, nn.Module], front: Callable[[Counts, Any], Any], lines: bool = False, most: float = float("inf")
) -> Iterator[Counts]:
    """Count inside the block, by a ``front`` such as :func:`on_cpu`, and leave it after ``most`` rounds."""
    counts, one_round = Counts(lines), Decoding.round

    def counted_round(decoding: Decoding) -> None:
        if len(counts.rounds) > most:
            raise _Enough
        counts.rounds.append(Counter())
        one_round(decoding)

    def moved(by: int, name: str) -> Callable[..., None]:
        def hook(*args: Any) -> None:
            counts.inside += by
            if by > 0:
                counts.note("forward", name)

        return hook

    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        for name, model in models.items():
            stack.callback(model.register_forward_pre_hook(moved(1, name)).remove)
            stack.callback(model.register_forward_hook(moved(-1, name)).remove)
        patch.setattr(Decoding, "round", counted_round)
        stack.enter_context(front(counts, patch))
        with suppress(_Enough):
            yield counts


class _Operations(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled inside, and each operation would look for a compiler

    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self.counts = counts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts.operation(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


class _Calls(TorchFunctionMode):
    """Functions of torch are not replaced: a class whose ``__getitem__`` once was has another slot for ever."""

    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self.counts = counts

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, note = kwargs or {}, self.counts.note
        if func in MAKING and not isinstance(args[MAKING[func]], Tensor):
            note("copy" if _asynchronous() else "wait", f"{func.__name__} of data")
        elif func in READING and not _asynchronous():
            note("wait", func.__name__)
        elif func in INDEXES and (lists := _lists(args[1])):
            note("wait", "list index", lists)
        elif func is Tensor.to and _is_host(kwargs.get("device", args[1] if args[1:] else None)):
            note("look" if kwargs.get("non_blocking") else "wait", "to the host")
        return func(*args, **kwargs)


MAKING = {torch.tensor: 0, torch.as_tensor: 0, torch.from_numpy: 0, Tensor.new_tensor: 1}
READING = {Tensor.tolist, Tensor.cpu, Tensor.numpy}
INDEXES = {Tensor.__getitem__, Tensor.__setitem__}


def _asynchronous() -> bool:
    return sys._getframe(2).f_code.co_filename.endswith(TRANSFERS)


def _lists(index: Any) -> int:
    """Return how many parts of an index are lists, each of which is copied to the device."""
    parts = index if isinstance(index, tuple) else (index,)
    return sum(isinstance(part, list | range) for part in parts)


def _is_host(device: Any) -> bool:
    return device == "cpu" and isinstance(device, str)


@contextmanager
def on_cpu(counts: Counts, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take the CPU for a GPU."""
    with _Calls(counts), _Operations(counts):
        yield
