"""A pretended H200 for torch's compiler: its kernels are generated and counted, and none runs.

It needs a CUDA build of torch with Triton, but no GPU. Tensors have shapes and no values. Attention counts as one
kernel, as does each operation outside of compiled code that is no view.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch import Tensor
from torch._dynamo.device_interface import CudaInterface
from torch._inductor.graph import GraphLowering
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from triton import runtime
from triton.backends.compiler import GPUTarget

from hf_lossy_assist.compat import kernels
from hf_lossy_assist.models.static import fixed, layerwise

_H200 = SimpleNamespace(
    name="NVIDIA H200", type="cuda", index=0, uuid="", gcnArchName="", major=9, minor=0, multi_processor_count=132,
    total_memory=141 << 30, warp_size=32, regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048,
    max_threads_per_block=1024, L2_cache_size=60 << 20, shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448, shared_memory_per_multiprocessor=233472, clock_rate=1980000,
    memory_clock_rate=3201000, memory_bus_width=6144,
)  # fmt: skip
_LAUNCH = re.compile(r"^\s+(?:\w+ = )?(?:(\w+)\.run|(extern_kernels\.\w+)|(torch\.ops\.[\w.]+))\(", re.M)
_NUMBER = re.compile(r"_\d+$")
_FREE = {"device", "detach", "empty", "empty_like", "empty_strided", "new_empty", "lift_fresh", "alias"}


@torch.library.custom_op("pretended::attention", mutates_args=())
def _attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
    raise NotImplementedError


@_attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
    rows, heads, count, size = query.shape
    return query.new_empty(rows, count, heads, size).transpose(1, 2)


def _one_kernel(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **_: Any) -> Tensor:
    """Attend in one kernel, as a GPU's does: it takes its mask as numbers."""
    return _attention(query, key, value, None if attn_mask is None else attn_mask.to(query.dtype))


class Launches(TorchDispatchMode):
    """Counts kernels by name: those of generated code whenever it is called, and operations outside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Counter[str] = Counter()
        self.code: list[str] = []

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True  # under others, nothing is compiled

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if not (func.is_view or name in _FREE):
            self.kernels[f"aten.{name}"] += 1
        return func(*args, **kwargs or {})

    def module_of(self, lowering: GraphLowering) -> Any:
        """Return what stands for the generated module: calls count its kernels, and return tensors of its shapes."""
        code, _ = lowering.codegen()
        self.code.append(text := getattr(code, "value", code))
        body = text[text.index("def call(") :]
        found = Counter(_NUMBER.sub("", next(filter(None, names))) for names in _LAUNCH.findall(body))
        shapes = [
            (tuple(map(int, x.get_size())), tuple(map(int, x.get_stride())), x.get_dtype(), x.get_device())
            for x in lowering.graph_outputs
        ]

        def call(args: list[Any]) -> list[Tensor]:
            args.clear()
            self.kernels += found
            return [torch.empty_strided(*x[:2], dtype=x[2], device=x[3]) for x in shapes]

        return SimpleNamespace(call=call, __file__="", key="", __name__="generated")


@contextmanager
def pretended_h200() -> Iterator[Launches]:
    """Count what is launched inside the block, where tensors are on the pretended device by default."""
    launches = Launches()
    driver = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32), get_current_device=lambda: 0,
        get_device_interface=lambda: torch.cuda, is_active=lambda: True,
    )  # fmt: skip
    answers = {"get_device_properties": _H200, "current_device": 0, "device_count": 1, "is_bf16_supported": True}
    more = {"is_available": True, "get_compute_capability": 90, "is_triton_capable": True}
    more["raise_if_triton_unavailable"] = None
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (answers | {"get_device_capability": (9, 0), "get_device_name": _H200.name}).items():
            patch.setattr(torch.cuda, name, lambda *_, value=value, **__: value)
        for name, value in (answers | more).items():
            patch.setattr(CudaInterface, name, staticmethod(lambda *_, value=value, **__: value))
        for name in ("get_device_properties", "current_device"):
            patch.setattr(CudaInterface.Worker, name, staticmethod(lambda *_, value=answers[name], **__: value))
        patch.setattr(runtime.driver, "_active", driver, raising=False)
        patch.setattr(runtime.driver, "_default", driver, raising=False)
        patch.setattr(GraphLowering, "compile_to_module", lambda lowering: launches.module_of(lowering))
        for place in (torch.nn.functional, kernels):
            patch.setattr(place, "scaled_dot_product_attention", _one_kernel)
        # These look at values, which are not there.
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        patch.setattr(fixed, "weights_of", id)
        patch.setattr(fixed.FixedForwards, "_warm_up", lambda *_: None)
        patch.setattr(layerwise, "_run_apart", lambda *_: True)
        torch._dynamo.reset()
        with (
            torch._inductor.config.patch(fx_graph_cache=False, compile_threads=1, shape_padding=False),
            FakeTensorMode(allow_non_fake_inputs=True),
            torch.device("cuda:0"),
            torch.no_grad(),
            launches,
        ):
            yield launches
        torch._dynamo.reset()
