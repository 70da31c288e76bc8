"""Drafts made from the target itself: some of its layers, or all of them with coarser weights.

python -m benchmarks.made_drafts --model M --draft-bits 4 --out draft
python -m benchmarks.acceptance --model M --assistant draft
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from hf_lossy_assist.cli.models import load_model, pretrained
from hf_lossy_assist.cli.options import numbers
from hf_lossy_assist.errors import LossyUnsupportedError, LossyValueError
from hf_lossy_assist.models.replacing import sharing_copy
from hf_lossy_assist.pairs.pair import bundled_folder, task_of

from . import command

# Which dimension of the weight counts the outputs.
_OUTPUT_DIM = {nn.Linear: 0, Conv1D: 1}


def drop_layers(model: PreTrainedModel, keep: Sequence[int]) -> PreTrainedModel:
    """Return a draft that consists of some of a model's layers.

    The draft shares its weights with ``model``, so it costs no memory, and training one would change the other.
    Its modules and configuration are its own: a cache counts only the layers that are left.

    Parameters
    ----------
    model
        A decoder-only model.
    keep
        Indices of the layers to keep, in ascending order.

    Raises
    ------
    LossyValueError
        When ``keep`` is empty, not ascending, or names a layer that the model does not have.
    LossyUnsupportedError
        When the model does not keep its layers in one list.
    """
    draft = sharing_copy(model)
    config = draft.config.get_text_config(decoder=True)
    total = config.num_hidden_layers
    keep = list(keep)
    if not keep or keep != sorted(set(keep)) or not 0 <= keep[0] <= keep[-1] < total:
        raise LossyValueError(f"`keep` has to be ascending layer indices >= 0 and < {total}, but is {keep!r}")
    parent, name = _find_layers(draft, total)
    layers = nn.ModuleList(getattr(parent, name)[i] for i in keep)
    setattr(parent, name, layers)
    for index, layer in enumerate(layers):
        for module in layer.modules():
            # The cache and the attention mask are looked up by it.
            if hasattr(module, "layer_idx"):
                module.layer_idx = index
    per_layer = {
        key: [value[i] for i in keep]
        for key, value in config.to_dict().items()
        if "layer" in key and isinstance(value, list) and len(value) == total
    }
    for key, value in {"num_hidden_layers": len(keep), **per_layer}.items():
        setattr(config, key, value)
    return draft


def round_weights(model: PreTrainedModel, bits: int) -> PreTrainedModel:
    """Return a draft whose linear weights are rounded to ``bits`` bits, per output channel and symmetrically.

    Every weight becomes ``s·round(w / s)`` with ``s = max|w| / (2^(bits-1) - 1)`` over its channel, stored in the
    model's own precision, so it shows the loss of information, not the speed of a quantised kernel.
    Embeddings, norms and the output head stay as they are, and are shared with ``model``.

    Parameters
    ----------
    model
        Any model with linear layers.
    bits
        Bits per weight, 2 to 16.

    Raises
    ------
    LossyValueError
        When ``bits`` is out of range.
    """
    if isinstance(bits, bool) or not isinstance(bits, int) or not 2 <= bits <= 16:
        raise LossyValueError(f"`bits` has to be an int >= 2 and <= 16, but is {bits!r}")
    draft = sharing_copy(model)
    head = draft.get_output_embeddings()
    for module in draft.modules():
        dim = next((dim for kind, dim in _OUTPUT_DIM.items() if isinstance(module, kind)), None)
        if dim is not None and module is not head:
            rounded = _round(module.weight.detach(), bits, dim)
            module.weight = nn.Parameter(rounded, requires_grad=False)
    return draft


def _round(weight: Tensor, bits: int, dim: int) -> Tensor:
    levels = 2 ** (bits - 1) - 1
    wide = weight.float()
    scale = wide.abs().amax(1 - dim, keepdim=True) / levels
    scale = torch.where(scale > 0, scale, 1.0)  # a channel of zeros stays one
    return (scale * (wide / scale).round()).to(weight.dtype)


def _find_layers(model: PreTrainedModel, total: int) -> tuple[nn.Module, str]:
    for parent in model.modules():
        for name, child in parent.named_children():
            if isinstance(child, nn.ModuleList) and len(child) == total:
                return parent, name
    raise LossyUnsupportedError(f"{type(model).__name__} has no list of its {total} layers to drop some from")


def main(
    out: Annotated[Path, typer.Option(help="The draft's folder, for --assistant of any command.")],
    model: Annotated[str | None, typer.Option(help="The target: a folder or a Hub id.")] = None,
    pair: Annotated[str | None, typer.Option(help="A bundled pair, to use its target.")] = None,
    draft_layers: Annotated[str | None, typer.Option(help="Keep these layers of the target, e.g. 0,2,4.")] = None,
    draft_bits: Annotated[int | None, typer.Option(help="Round its linear weights to this number of bits.")] = None,
) -> None:
    """Make a draft of some of a target's layers, of its rounded weights, or of both, and save it in float32."""
    if (model is None) == (pair is None):
        raise LossyValueError("either `--model` or `--pair` has to be given, and not both")
    if draft_layers is None and draft_bits is None:
        raise LossyValueError("`--draft-layers` or `--draft-bits` has to be given")
    layers = None if draft_layers is None else numbers("--draft-layers", draft_layers, int)
    if pair is not None:
        task_of(pair)
        model = str(bundled_folder(pair) / "target")
    draft = load_model("--model", model, "float32", "cpu")
    if layers is not None:
        draft = drop_layers(draft, layers)
    if draft_bits is not None:
        draft = round_weights(draft, draft_bits)
    draft.save_pretrained(out)
    pretrained("--model", model, AutoTokenizer).save_pretrained(out)


app = command(main)

if __name__ == "__main__":
    app()
