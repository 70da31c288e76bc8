"""Train a DFlash head for the bundled target: ``python -m benchmarks.train_dflash --help``.

A recipe of its own, for a target of this size on one CPU core. For real targets, use speculators.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import typer
from torch import Tensor
from torch.nn.functional import embedding
from torch.nn.utils.rnn import pad_sequence
from transformers import Qwen3Config

from benchmarks.train_eagle3 import (
    Answers,
    LayerStates,
    Out,
    Text,
    Threads,
    answered,
    answers,
    descend,
    kept_rows,
    write_card,
    write_head,
)
from hf_lossy_assist import DFlash, pairs


@dataclass(frozen=True)
class Recipe:
    """Sizes and schedule; with the seed they determine the head."""

    layers: tuple[int, ...] = (1, 2, 4)  # what it reads: the states that enter layers 1 and 2, and leave layer 3
    own_layers: int = 2
    intermediate: int = 256
    key_value_heads: int = 4
    block_size: int = 8
    written: int = 500  # problems that the target answers greedily
    chunk: int = 250  # of them in a file
    batch: int = 12  # texts in a step: half are the target's answers, half new solutions of the task
    pool: int = 8  # steps whose texts are sorted by length together, so that little of a batch is padding
    anchors: int = 32  # blocks in a text
    steps: int = 650
    cosine: int = 300  # steps in which the learning rate falls to zero in the end
    decay: float = 0.85  # of the weight, for each token further on
    peak_lr: float = 2e-3
    warmup: int = 50
    weight_decay: float = 0.01
    seed: int = 0


def new_head(pair: pairs.Pair, recipe: Recipe) -> DFlash:
    """Return an untrained head."""
    torch.manual_seed(recipe.seed)
    config = pair.target.config
    layer = Qwen3Config(
        vocab_size=config.vocab_size, hidden_size=config.hidden_size, num_hidden_layers=recipe.own_layers,
        intermediate_size=recipe.intermediate, num_attention_heads=config.num_attention_heads,
        num_key_value_heads=recipe.key_value_heads, head_dim=config.head_dim, rms_norm_eps=config.rms_norm_eps,
        max_position_embeddings=config.max_position_embeddings, rope_parameters=config.rope_parameters,
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id,
    )  # fmt: skip
    bundled = DFlash.from_pretrained(pairs.hub_cards() / "arithmetic-dflash").config  # whose conventions it keeps
    head = DFlash(replace(
        bundled, layer=layer, draft_vocab_size=config.vocab_size, target_hidden_size=config.hidden_size,
        target_layers=recipe.layers, block_size=recipe.block_size, mask_token_id=pair.tokenizer.pad_token_id,
    ))  # fmt: skip
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=parameter.shape[1] ** -0.5)
        head.norm.weight.copy_(0.3 * pair.target.model.norm.weight)  # untrained, it should hardly be sure of a token
    return head.float().train()


def scales_of(pair: pairs.Pair, recipe: Recipe, text: Text) -> Tensor:
    """Return what makes all entries of the states that are read alike in size.

    Adam's steps are equally long for every weight, so entries that are much larger than others would dominate. In
    training the states are scaled, and then the weights that read them.
    """
    states = LayerStates(pair.target, recipe.layers)
    with torch.no_grad(), states.watched():
        pair.target(text[0][None])
        return states.pop()[0].square().mean(0).sqrt().clamp(min=1e-6).reciprocal()


def loss_of(
    head: DFlash, target, states: LayerStates, scales: Tensor, texts: list[Text], recipe: Recipe, draws: torch.Generator
) -> Tensor:
    """Return the loss of blocks after random tokens of the answers: -Σ p log q, a mean over positions.

    ``p`` is the target's distribution after the text as it is. Tokens further on in a block count less, because they
    are kept only together with those before (DFlash, arXiv 2602.06036).
    """
    ids = pad_sequence([text for text, _ in texts], batch_first=True)
    rows, length = ids.shape
    begin, end = torch.tensor([[start, len(text)] for text, start in texts]).T[..., None]
    with torch.no_grad(), states.watched():
        p = target(ids, use_cache=False).logits.float().softmax(-1)
        read = states.pop() * scales
    # A block begins with the newest token, which the target has written.
    anchors = begin + (torch.rand(rows, recipe.anchors, generator=draws) * (end - begin - 1)).long()
    block = torch.arange(recipe.block_size).repeat(recipe.anchors)
    number = torch.arange(recipe.anchors).repeat_interleave(recipe.block_size)
    places = anchors[:, number] + block  # (B, A·b)
    inside = places.clamp(max=length - 1)
    tokens = torch.where(block == 0, ids.gather(1, inside), head.config.mask_token_id)
    before = torch.arange(length) < anchors[:, number, None]
    own = (number[:, None] == number).expand(rows, -1, -1)
    mask = torch.cat([before, own], dim=-1)[:, None]
    cache = head.new_cache()
    head.remember(head.fuse(read), torch.arange(length)[None], cache)
    embeds = embedding(tokens, head.embeddings(target))
    output = head(embeds, places, dict.fromkeys(head.config.kinds, mask), cache)
    row, slot = ((block > 0) & (places < end)).nonzero().T
    logs = head.scores(output[row, slot], target.get_output_embeddings()).log_softmax(-1)
    weight = recipe.decay ** (block[slot] - 1)
    wanted = (p[row, places[row, slot] - 1] * logs).sum(-1)
    return -(weight * wanted).sum() / weight.sum()


def fit(pair: pairs.Pair, recipe: Recipe, folder: Path, checkpoint_every: int = 50) -> DFlash:
    """Return the trained head; a run that was interrupted goes on from its last checkpoint."""
    written = answers(pair, recipe, folder)
    head, scales = new_head(pair, recipe), scales_of(pair, recipe, written[0])
    states = LayerStates(pair.target, recipe.layers)
    pair.target.requires_grad_(False)

    def loss(step: int, texts: list[Text]) -> Tensor:
        draws = torch.Generator().manual_seed(random.Random(f"{recipe.seed}/{step}").getrandbits(63))
        return loss_of(head, pair.target, states, scales, texts, recipe, draws)

    descend(pair, recipe, head, written, loss, recipe.steps, folder, checkpoint_every)
    with torch.no_grad():
        head.fc.weight *= scales
    return head.eval()


ROWS = {
    "dflash": {
        "target alone": "plain",
        "DFlash, `lossless`": "lossless@5",
        "DFlash, `dropmatch`, naive, ρ = 0.3": "dropmatch@5:criterion=naive:dropout=0.3",
        "DFlash, `judge`": "judge@5",
        "DFlash, `lossless`, 7 tokens": "lossless@7",
    },
    "eagle3": {"EAGLE-3, `lossless`": "lossless@5"},
    "draft": {"the pair's draft, `lossless`": "lossless@5"},
}
COMMANDS = [
    f"lossy-assist evaluate --pair arithmetic{'' if draft == 'draft' else f' --assistant {draft}'} --batch-size 50 \\\n"
    f"    --limit 100 --modes {','.join(rows.values())} \\\n    --threads 1 --out kept/{draft}"
    for draft, rows in ROWS.items()
]
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def card(out: Out, answers: Answers) -> None:
    """Write the head's card, with what rounds keep beside other drafts."""
    head, recipe = DFlash.from_pretrained(out), Recipe()
    kept = (row for draft, rows in ROWS.items() for row in kept_rows(answers / draft, rows))
    write_card(
        out, head, recipe, kept, "draft", own=recipe.own_layers, longest=head.longest, anchors=recipe.anchors,
        n=answered(answers / "dflash"), commands="\n".join(COMMANDS),
    )  # fmt: skip


@app.command()
def train(out: Out, threads: Threads = 1) -> None:
    """Train the DFlash head of the bundled target from its seed, and write it as speculators does."""
    write_head(fit, Recipe(), out, threads)


if __name__ == "__main__":
    app()
