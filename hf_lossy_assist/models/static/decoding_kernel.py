"""Attention of a few new tokens in one kernel: it turns queries and keys, writes the cache, and reads the slots in use.

Needs Triton. Only a GPU can say whether it is faster than what a compiler makes, so no call uses it by itself: see
:data:`~.layerwise.OWN_ATTENTION`.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.library import triton_op, wrap_triton
from transformers.cache_utils import StaticCache
from transformers.models.llama.modeling_llama import LlamaAttention

from ...compat import cache_of, count_in_layer
from ..few_rows import FEW_ROWS

_BLOCK = 64  # slots that a program reads at a time
_SIZES = (16, 32, 64, 128, 256)
_SLOTS_EACH, _MOST_PARTS = 512, 16  # of a long cache, several programs read a part each


@triton.jit
def _turned(at, dims, cos, sin, real, SIZE: tl.constexpr):
    """Load vectors and turn them by their positions."""
    own, other = tl.load(at + dims, real, 0.0), tl.load(at + (dims + SIZE // 2) % SIZE, real, 0.0)
    own, other = own.to(tl.float32), tl.where(dims < SIZE // 2, -other, other).to(tl.float32)
    return own * tl.load(cos + dims, real, 0.0).to(tl.float32) + other * tl.load(sin + dims, real, 0.0).to(tl.float32)


@triton.jit
def _seen(scores, values, best, total, sums):
    """Add what queries see in some slots to what they saw in others: a softmax in parts."""
    higher = tl.maximum(best, tl.max(scores, 1))
    weights, before = tl.exp(scores - higher[:, None]), tl.exp(best - higher)
    seen = tl.dot(weights.to(values.dtype), values, input_precision="ieee")
    return higher, total * before + tl.sum(weights, 1), sums * before[:, None] + seen


@triton.jit
def _kernel(
    query, key, value, cos, sin, keys, values, position, mask, sums_out, best_out, total_out, scaling,
    q_row, q_token, k_row, k_token, v_row, v_token, c_row, c_token, cache_row, cache_head, m_row, m_token,
    SHARED: tl.constexpr, GROUP: tl.constexpr, COUNT: tl.constexpr, SIZE: tl.constexpr,
    QUERIES: tl.constexpr, NEW: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """One program attends for the queries that share a head's keys, to one part of the slots; the first writes."""
    row, head, part = tl.program_id(0) // SHARED, tl.program_id(0) % SHARED, tl.program_id(1)
    dims, one, new = tl.arange(0, SIZE)[None], tl.arange(0, QUERIES), tl.arange(0, NEW)
    token, real = one % COUNT, (one < GROUP * COUNT)[:, None]
    start = tl.load(position)
    turn = row * c_row + token[:, None] * c_token
    own = query + row * q_row + token[:, None] * q_token + (head * GROUP + one // COUNT)[:, None] * SIZE
    asked = _turned(own, dims, cos + turn, sin + turn, real, SIZE).to(keys.dtype.element_ty)
    cached = row * cache_row + head * cache_head
    seen_by = mask + row * m_row + token[:, None] * m_token

    best = tl.full([QUERIES], -1e30, tl.float32)  # finite: a query that sees nothing has no weights
    total, sums = tl.zeros([QUERIES], tl.float32), tl.zeros([QUERIES, SIZE], tl.float32)
    if part == 0:
        there = (new < COUNT)[:, None]
        turned_by = row * c_row + new[:, None] * c_token
        k_at = key + row * k_row + new[:, None] * k_token + head * SIZE
        v_at = value + row * v_row + new[:, None] * v_token + head * SIZE
        k_new = _turned(k_at, dims, cos + turned_by, sin + turned_by, there, SIZE).to(keys.dtype.element_ty)
        v_new = tl.load(v_at + dims, there, 0.0)
        written = cached + (start + new)[:, None] * SIZE + dims
        tl.store(keys + written, k_new, there)
        tl.store(values + written, v_new, there)
        shown_new = tl.load(seen_by + (start + new)[None], real & (new < COUNT)[None], 0)
        own_scores = tl.dot(asked, tl.trans(k_new), input_precision="ieee") * scaling
        own_scores = tl.where(shown_new != 0, own_scores, float("-inf"))
        best, total, sums = _seen(own_scores, v_new, best, total, sums)

    each = tl.cdiv(start, PARTS * BLOCK) * BLOCK
    end = tl.minimum(start, (part + 1) * each)
    for first in range(part * each, end, BLOCK):
        slot = first + tl.arange(0, BLOCK)
        used = slot < end
        slots = cached + slot[:, None] * SIZE + dims
        k, v = tl.load(keys + slots, used[:, None], 0.0), tl.load(values + slots, used[:, None], 0.0)
        scores = tl.dot(asked, tl.trans(k), input_precision="ieee") * scaling
        shown = tl.load(seen_by + slot[None], real & used[None], 0)
        best, total, sums = _seen(tl.where(shown != 0, scores, float("-inf")), v, best, total, sums)

    # (B, n, H, d), or (parts, B, n, H, …) where there are several
    place = (part * (tl.num_programs(0) // SHARED) + row) * COUNT + token
    where = place * (SHARED * GROUP) + head * GROUP + one // COUNT
    if PARTS == 1:
        sums = sums / tl.maximum(total, 1e-30)[:, None]
    else:
        tl.store(best_out + where, best, one < GROUP * COUNT)
        tl.store(total_out + where, total, one < GROUP * COUNT)
    tl.store(sums_out + where[:, None] * SIZE + dims, sums.to(sums_out.dtype.element_ty), real)


@triton_op("hf_lossy_assist::decode", mutates_args={"keys", "values"})
def decode(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    position: Tensor,
    mask: Tensor,
    scaling: float,
) -> Tensor:
    """Write ``key`` and ``value`` ``(B, n, H'·d)``, and return what ``query`` ``(B, n, H·d)`` sees, in its shape.

    ``keys`` and ``values`` ``(B, H', S, d)`` are written from the slot ``position`` ``()`` on. ``cos`` and ``sin``
    ``(B, n, d)`` turn queries and keys. ``mask`` ``(B, 1, n, S)`` says which slots a token sees; those after the newest
    are not read.
    """
    rows, count = query.shape[:2]
    _, shared, capacity, size = keys.shape
    heads = query.shape[2] // size
    parts = max(1, min(_MOST_PARTS, capacity // _SLOTS_EACH))
    several = (parts, rows, count, heads)
    sums = torch.empty(rows, count, heads, size, dtype=query.dtype, device=query.device)
    best = total = None
    if parts > 1:
        best, total = (torch.empty(several, dtype=torch.float32, device=query.device) for _ in range(2))
        sums = torch.empty(*several, size, dtype=torch.float32, device=query.device)
    row_of = [x.stride(0) if len(x) > 1 else 0 for x in (cos, mask)]
    wrap_triton(_kernel)[rows * shared, parts](
        query, key, value, cos, sin, keys, values, position, mask, sums, best, total, scaling,
        *query.stride()[:2], *key.stride()[:2], *value.stride()[:2], row_of[0], cos.stride(1), *keys.stride()[:2],
        row_of[1], mask.stride(2),
        SHARED=shared, GROUP=heads // shared, COUNT=count, SIZE=size,
        QUERIES=max(16, triton.next_power_of_2(heads // shared * count)), NEW=16, BLOCK=_BLOCK, PARTS=parts,
    )  # fmt: skip
    if parts > 1:
        weights = (best - best.amax(0)).exp()
        sums = (sums * weights[..., None]).sum(0) / (total * weights).sum(0).clamp(min=1e-30)[..., None]
    return sums.to(query.dtype).view(rows, count, heads * size)


class DecodingAttention(LlamaAttention):
    """A Llama's attention, by :func:`decode` where few tokens follow a text on a static cache."""

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        cache, count = cache_of(options), hidden_states.shape[1]
        shown = isinstance(attention_mask, Tensor) and attention_mask.dtype == torch.bool
        if not (shown and count <= FEW_ROWS and type(cache) is StaticCache):
            return super().forward(hidden_states, position_embeddings, attention_mask, **options)
        layer = cache.layers[self.layer_idx]
        projected = (x(hidden_states) for x in (self.q_proj, self.k_proj, self.v_proj))
        written = layer.keys, layer.values, layer.cumulative_length
        states = decode(*projected, *position_embeddings, *written, attention_mask, self.scaling)
        count_in_layer(layer, count)
        return self.o_proj(states), None


def decodes_by_kernel(module: nn.Module) -> None:
    """Let a module decode by :func:`decode`, if it is a Llama's attention of a size that the kernel has."""
    if type(module) is LlamaAttention and module.head_dim in _SIZES:
        module.__class__ = DecodingAttention
