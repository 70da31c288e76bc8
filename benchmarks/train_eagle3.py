"""Train an EAGLE-3 head for the bundled target: ``python -m benchmarks.train_eagle3 --help``.

A recipe of its own, for a target of this size on one CPU core. For real targets, use speculators or SpecForge.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import embedding, pad
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig, get_wsd_schedule

from benchmarks.bundled_pair.pretraining import load_checkpoint, save_checkpoint
from hf_lossy_assist import DFlash, Eagle3, pairs

Drafting = Eagle3 | DFlash
Text = tuple[Tensor, int]
"""The tokens of a prompt and its answer, and where the answer begins."""


@dataclass(frozen=True)
class Recipe:
    """Sizes and schedule; with the seed they determine the head."""

    layers: tuple[int, ...] = (1, 2, 4)  # what it reads: the states that enter layers 1 and 2, and leave layer 3
    intermediate: int = 384
    key_value_heads: int = 4
    written: int = 2000  # problems that the target answers greedily
    chunk: int = 250  # of them in a file
    batch: int = 24  # texts in a step: half are the target's answers, half new solutions of the task
    pool: int = 8  # steps whose texts are sorted by length together, so that little of a batch is padding
    single: int = 429  # steps at the highest learning rate, on one drafted token, which is faster
    cosine: int = 231  # steps in which the learning rate then falls to zero
    steps: int = 550  # of both; the end of the cosine is left out
    unrolled: int = 4  # drafted tokens in a row that the steps of the cosine train on
    decay: float = 0.9  # of the weight, for each token further on
    peak_lr: float = 2e-3
    warmup: int = 50
    weight_decay: float = 0.01
    seed: int = 0


def answers(pair: pairs.Pair, recipe: Recipe, folder: Path) -> list[Text]:
    """Return the target's greedy answers; chunks that the folder lacks are written first."""
    texts: list[Text] = []
    folder.mkdir(parents=True, exist_ok=True)
    for chunk in range(recipe.written // recipe.chunk):
        path = folder / f"answers-{chunk:03d}.safetensors"
        if not path.exists():
            draws = random.Random(f"{recipe.seed}/answers/{chunk}")
            prompts = [example.prompt for example in pair.task.draw("train", recipe.chunk, draws)]
            inputs = pair.tokenizer(prompts, return_tensors="pt", padding=True)
            output = pair.target.generate(**inputs, do_sample=False, max_new_tokens=pair.task.max_new_tokens)
            rows = [row[row != pair.tokenizer.pad_token_id] for row in output]
            whole = {"ids": pad_sequence(rows, batch_first=True), "starts": inputs["attention_mask"].sum(-1)}
            save_file(whole, path.with_suffix(".partial"))
            os.replace(path.with_suffix(".partial"), path)
            typer.echo(f"answered {(chunk + 1) * recipe.chunk} problems")
        tensors = load_file(path)
        for row, start in zip(tensors["ids"], tensors["starts"].tolist(), strict=True):
            texts.append((row[row != pair.tokenizer.pad_token_id], start))
    return texts


def batches(pair: pairs.Pair, recipe: Recipe, written: list[Text], first: int) -> Iterator[list[Text]]:
    """Yield the texts of every step from ``first`` on; step ``i`` always has the same."""
    half = recipe.batch // 2
    for pool in range(first // recipe.pool, -(-recipe.steps // recipe.pool)):
        draws = random.Random(f"{recipe.seed}/{pool}")
        texts = draws.sample(written, recipe.pool * half)
        for example in pair.task.draw("train", recipe.pool * (recipe.batch - half), draws):
            start = pair.tokenizer(example.prompt)["input_ids"]
            answer = pair.tokenizer(example.solution, add_special_tokens=False)["input_ids"]
            texts.append((torch.tensor([*start, *answer, pair.tokenizer.eos_token_id]), len(start)))
        texts.sort(key=lambda text: len(text[0]))
        cut = [texts[i : i + recipe.batch] for i in range(0, len(texts), recipe.batch)]
        draws.shuffle(cut)
        for step, batch in enumerate(cut, start=pool * recipe.pool):
            if first <= step < recipe.steps:
                yield batch


class LayerStates:
    """Reads hidden states of forward passes: those that enter each of some layers, or leave the last one."""

    def __init__(self, model: nn.Module, layers: Sequence[int]) -> None:
        modules = [model.model.embed_tokens, *model.model.layers]
        self._modules = [modules[i] for i in layers]
        self._read: dict[nn.Module, Tensor] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside the block, keep the states of the last forward."""
        hooks = [x.register_forward_hook(lambda own, _, state: self._read.update({own: state})) for x in self._modules]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def pop(self) -> Tensor:
        """Return ``(B, S, k·d)`` the states of the last forward, side by side, and forget them."""
        return torch.cat([self._read.pop(x) for x in self._modules], dim=-1)


def new_head(pair: pairs.Pair, recipe: Recipe, texts: list[Text]) -> Eagle3:
    """Return an untrained head, which drafts the tokens that answers have."""
    torch.manual_seed(recipe.seed)
    config = pair.target.config
    layer = LlamaConfig(
        vocab_size=config.vocab_size, hidden_size=config.hidden_size, num_hidden_layers=1,
        intermediate_size=recipe.intermediate, num_attention_heads=config.num_attention_heads,
        num_key_value_heads=recipe.key_value_heads, head_dim=config.head_dim, rms_norm_eps=config.rms_norm_eps,
        max_position_embeddings=config.max_position_embeddings, rope_parameters=config.rope_parameters,
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id,
    )  # fmt: skip
    new = (example.solution for example in pair.task.draw("train", 2000, random.Random(f"{recipe.seed}/vocabulary")))
    drafted = {pair.tokenizer.eos_token_id, *(token for ids, start in texts for token in ids[start:].tolist())}
    drafted.update(token for ids in pair.tokenizer([*new], add_special_tokens=False)["input_ids"] for token in ids)
    ids = torch.tensor(sorted(drafted))
    bundled = Eagle3.from_pretrained(pairs.hub_cards() / "arithmetic-eagle3").config  # whose conventions it keeps
    head = Eagle3(replace(
        bundled, layer=layer, draft_vocab_size=len(ids), target_hidden_size=config.hidden_size,
        target_layers=recipe.layers,
    ))  # fmt: skip
    states = LayerStates(pair.target, recipe.layers)
    with torch.no_grad(), states.watched():
        pair.target(texts[0][0][None])
        sample = states.pop()[0]
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.02)
        read_evenly(head, sample)
        look_back(head)
        head.d2t.copy_(ids - torch.arange(len(ids)))
        head.lm_head.weight.copy_(pair.target.lm_head.weight[ids])
        head.norm.weight.copy_(0.3 * pair.target.model.norm.weight)  # untrained, it should hardly be sure of a token
    return head.float().train()


def read_evenly(head: Eagle3, states: Tensor) -> None:
    """Scale all entries of the fused states alike, and confine what is constant to the first entry of g.

    A few entries of a model's states are much larger than the others, and nearly constant. Adam's steps are equally
    long for every weight, so these entries would dominate g, and its norm would hide what differs between tokens.
    """
    sizes = []
    for norm, part in zip(head.fc_norm, states.chunk(len(head.fc_norm), dim=-1), strict=True):
        size = part.square().mean(0).sqrt().clamp(min=1e-6)
        norm.weight.copy_(part.square().mean(-1).sqrt().median() / size)
        sizes.append(size)
    mean = (states / torch.cat(sizes)).mean(0)
    direction = mean / mean.norm()
    matrix = torch.randn_like(head.fc.weight) / mean.numel() ** 0.5
    matrix -= torch.outer(matrix @ direction, direction)
    matrix[0] = CONSTANT * direction / mean.norm()
    head.fc.weight.copy_(matrix)


CONSTANT, SHARPNESS = 3.0, 5.7
LOOKS = (0, 1, 2)


def look_back(head: Eagle3) -> None:
    """Let groups of attention heads look at the latest token, the one before it, and so on.

    The head sees the latest token through attention alone, which would otherwise start as an average over the text. The
    first entry of g is constant, so it gives queries and keys that depend on positions only.
    """
    attention, layer = head.layers[0].self_attn, head.config.layer
    size, width = layer.head_dim, layer.hidden_size
    group = layer.num_attention_heads // layer.num_key_value_heads
    speeds = head.rotary_emb.inv_freq[: size // 4]
    there = torch.arange(len(speeds))
    for i, distance in enumerate(LOOKS[: layer.num_key_value_heads]):
        rows = slice(i * size, (i + 1) * size)
        key = attention.k_proj.weight[rows, width]
        key.zero_()
        key[there] = SHARPNESS / CONSTANT
        attention.v_proj.weight[rows, :width].normal_(std=width**-0.5)
        query = attention.q_proj.weight[i * group * size : (i * group + 1) * size, width]  # the others learn to look
        query.zero_()
        query[there] = SHARPNESS / CONSTANT * torch.cos(distance * speeds)
        query[there + size // 2] = -SHARPNESS / CONSTANT * torch.sin(distance * speeds)


def loss_of(head: Eagle3, target, states: LayerStates, texts: list[Text], steps: int, decay: float) -> Tensor:
    """Return the training-time test's loss (EAGLE-3, arXiv 2503.01840, section 3.2): -Σ p log q, a mean over tokens.

    At every position the head is unrolled as in drafting. The first step reads the target's states, each later one the
    output before it. ``p`` is the target's distribution, renormalised over the tokens that the head drafts.
    """
    ids = pad_sequence([text for text, _ in texts], batch_first=True)
    places = torch.arange(ids.shape[1])
    begin, end = torch.tensor([[start, len(text)] for text, start in texts]).T[..., None]
    answer = (places >= begin) & (places < end)
    with torch.no_grad(), states.watched():
        p = target(ids, use_cache=False).logits[..., head.target_ids].float().softmax(-1)
        read = states.pop()
    slots = ids.shape[1] - 1
    embeds = pad(embedding(ids, head.embeddings(target)), (0, 0, 0, steps))
    causal, own = torch.ones(slots, slots, dtype=torch.bool).tril(), torch.eye(slots, dtype=torch.bool)
    cache, positions = head.new_cache(), torch.arange(slots)[None]
    output, total, count = head.fuse(read[:, :-1]), 0.0, 0.0
    for step in range(steps):
        # A slot sees what the first step saw of the text, and its own outputs of the steps between.
        mask = torch.cat([causal, *[own] * step], dim=-1)[None, None]
        output = head(embeds[:, step + 1 : step + 1 + slots], output, positions + step, mask, cache)
        wanted = pad(answer, (0, step + 1))[:, step + 2 :]  # slot t drafts token t + step + 2
        row, slot = wanted.nonzero().T
        logs = head.logits(output[row, slot]).float().log_softmax(-1)
        weight = decay**step
        total = total - weight * (p[row, slot + step + 1] * logs).sum()
        count += weight * len(row)
    return total / count


def fit(pair: pairs.Pair, recipe: Recipe, folder: Path, checkpoint_every: int = 50) -> Eagle3:
    """Return the trained head; a run that was interrupted goes on from its last checkpoint."""
    written = answers(pair, recipe, folder)
    head, states = new_head(pair, recipe, written), LayerStates(pair.target, recipe.layers)

    def loss(step: int, texts: list[Text]) -> Tensor:
        unrolled = 1 if step < recipe.single else recipe.unrolled
        return loss_of(head, pair.target, states, texts, unrolled, recipe.decay)

    descend(pair, recipe, head, written, loss, recipe.single + recipe.cosine, folder, checkpoint_every)
    return head.eval()


def descend(
    pair: pairs.Pair, recipe: Any, head: Drafting, written: list[Text],
    loss_of: Callable[[int, list[Text]], Tensor], whole: int, folder: Path, checkpoint_every: int,
) -> None:  # fmt: skip
    """Train a head by AdamW, from its last checkpoint on; the learning rate would be zero after ``whole`` steps.

    ``loss_of`` gives the loss of a step's texts.
    """
    checkpoint, first = folder / "checkpoint.safetensors", 0
    decayed = [x for x in head.parameters() if x.dim() > 1]
    plain = [x for x in head.parameters() if x.dim() <= 1]
    groups = [{"params": decayed}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, recipe.peak_lr, betas=(0.9, 0.95), weight_decay=recipe.weight_decay)
    if checkpoint.exists():
        first = load_checkpoint(checkpoint, head, optimizer, recipe)
        for group in optimizer.param_groups:
            group["initial_lr"] = recipe.peak_lr
    schedule = get_wsd_schedule(
        optimizer, recipe.warmup, recipe.cosine, whole, decay_type="cosine", last_epoch=first - 1
    )
    for step, texts in enumerate(batches(pair, recipe, written, first), start=first):
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(step, texts)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % 10 == 0:
            typer.echo(f"step {step + 1} of {recipe.steps}: loss {loss.item():.3f}")
        if (step + 1) % checkpoint_every == 0:
            save_checkpoint(checkpoint, step + 1, head, optimizer, recipe)


BUNDLED = Path(__file__).parent / "bundled_pair"
TREE = "tree.depth=5:tree.top_k=4:tree.nodes=16"
ROWS = {
    "target alone": "plain",
    "`lossless`, chain": "lossless@5",
    "`lossless`, tree": f"lossless:{TREE}",
    "`dropmatch`, naive, ρ = 0.3, chain": "dropmatch@5:criterion=naive:dropout=0.3",
    "`dropmatch`, naive, ρ = 0.3, tree": f"dropmatch:criterion=naive:dropout=0.3:{TREE}",
    "`judge`, chain": "judge@5",
    "`judge`, tree": f"judge:{TREE}",
}
COMMAND = f"""lossy-assist evaluate --pair arithmetic --assistant eagle3 --batch-size 50 --limit 100 \\
    --modes {",".join(ROWS.values())} --threads 1 --out kept"""
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def answered(folder: Path) -> int:
    """Return how many problems ``evaluate`` wrote answers to."""
    return len({json.loads(line)["id"] for line in (folder / "results.jsonl").read_text(encoding="utf-8").splitlines()})


def kept_rows(folder: Path, rows: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of a table: what rounds kept, and how many answers were right, of the modes in ``rows``."""
    by_mode: dict[str, list[dict]] = {}
    for line in (folder / "results.jsonl").read_text(encoding="utf-8").splitlines():
        by_mode.setdefault(json.loads(line)["mode"], []).append(json.loads(line))
    for (row, mode), said in zip(rows.items(), by_mode.values(), strict=True):
        rounds, right = sum(x["rounds"] for x in said), sum(x["score"] for x in said) / len(said)
        mean = sum(x["accepted"] for x in said) / rounds
        error = 1.96 * sum((x["accepted"] - mean * x["rounds"]) ** 2 for x in said) ** 0.5 / rounds
        kept = "" if mode == "plain" else f"{mean:.2f} ({mean - error:.2f} to {mean + error:.2f})"
        yield f"| {row} | {kept} | {100 * right:.1f} % |"


def write_card(folder: Path, head: Drafting, recipe: Any, rows: Iterable[str], first: str, **values: Any) -> None:
    """Write a head's card: what rounds keep, and ``values`` of the text; ``first`` is the table's first heading."""
    table = [f"| {first} | kept, 95 % | right answers |", "|---|---|---|", *rows]
    text = (BUNDLED / f"{head.config.model_type}_card.md").read_text(encoding="utf-8").format(
        parameters=sum(x.numel() for x in head.parameters()), layers=", ".join(map(str, recipe.layers)),
        steps=recipe.steps, batch=recipe.batch, written=recipe.written, table="\n".join(table), **values,
    )  # fmt: skip
    (folder / "README.md").write_text(text, encoding="utf-8")


def write_head(fit: Callable[..., Drafting], recipe: Any, out: Path, threads: int) -> None:
    """Train a head of the bundled target from its seed, and write it as speculators does."""
    torch.set_num_threads(threads)
    head = fit(pairs.load("arithmetic"), recipe, out / "training")
    head.to(torch.bfloat16).save_pretrained(out)


Out = Annotated[Path, typer.Option(help="Folder for the head; texts and checkpoints are in OUT/training.")]
Answers = Annotated[Path, typer.Option(help="Folder that the commands of the card wrote.")]
Threads = Annotated[int, typer.Option(min=1, help="Threads of the CPU.")]


@app.command()
def card(out: Out, answers: Answers) -> None:
    """Write the head's card, with what rounds keep."""
    head, recipe = Eagle3.from_pretrained(out), Recipe()
    write_card(
        out, head, recipe, kept_rows(answers, ROWS), "rule", drafted=head.config.draft_vocab_size,
        vocabulary=head.config.layer.vocab_size, last=recipe.steps - recipe.single, unrolled=recipe.unrolled,
        n=answered(answers), command=COMMAND,
    )  # fmt: skip


@app.command()
def train(out: Out, threads: Threads = 1) -> None:
    """Train the EAGLE-3 head of the bundled target from its seed, and write it as speculators does."""
    write_head(fit, Recipe(), out, threads)


if __name__ == "__main__":
    app()
