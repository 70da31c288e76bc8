"""What drafting gains on a hybrid of attention and state-space layers: ``python -m benchmarks.hybrid_speed``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Annotated

import torch
import transformers
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import FalconH1Config, FalconH1ForCausalLM, LogitsProcessor, LogitsProcessorList, PreTrainedModel

from hf_lossy_assist import enable
from hf_lossy_assist.cli.console import limit_threads, progress
from hf_lossy_assist.cli.options import Device, Gamma, Threads
from hf_lossy_assist.compat import CACHE, CacheSnapshot, CandidateGenerator, new_cache
from hf_lossy_assist.evaluation import records

from . import command

VOCAB, PROMPT = 32784, 32


@dataclass(frozen=True)
class Repeat:
    """Seconds of one thread that each way took for an equal text, one after the other."""

    plain: float
    lossless: float
    tokens_per_round: float
    accepted: float


@dataclass(frozen=True)
class Cost:
    """Time of one forward or one move of the state, in seconds, and beside a forward over one token."""

    what: str
    seconds: float
    ratio: float


class Dictated(LogitsProcessor):
    """Makes a known text the greedy one, whatever a model of random weights computes."""

    def __init__(self, text: Tensor) -> None:
        self.text = text

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        scores = scores.clone()
        scores[:, self.text[0, input_ids.shape[1]]] = 1e4
        return scores


class AgreeingDraft(CandidateGenerator):
    """Drafts at no cost: each token is the known text's with a given probability, otherwise another one."""

    def __init__(self, text: Tensor, gamma: int, agreement: float, seed: int) -> None:
        self.text, self.gamma, self.agreement = text, gamma, agreement
        self.generator = torch.Generator().manual_seed(seed)

    def get_candidates(self, input_ids: Tensor, **kwargs: object) -> tuple[Tensor, None]:
        known = self.text[:, input_ids.shape[1] : input_ids.shape[1] + self.gamma]
        wrong = (torch.rand(known.shape, generator=self.generator) >= self.agreement).to(known.device)
        return torch.cat([input_ids, (known + wrong) % VOCAB], dim=1), None

    def update_candidate_strategy(self, input_ids: Tensor, scores: Tensor, num_matches: int) -> None:
        return


def hybrid(layers: int, chunk: int, device: str) -> PreTrainedModel:
    """Return Falcon-H1 0.5B's geometry with some of its layers and random weights, in bfloat16."""
    config = FalconH1Config(
        vocab_size=VOCAB, hidden_size=1024, intermediate_size=2048, num_hidden_layers=layers, num_attention_heads=8,
        num_key_value_heads=2, head_dim=64, mamba_d_ssm=1536, mamba_n_heads=24, mamba_d_head=64, mamba_d_state=128,
        mamba_chunk_size=chunk, dtype=torch.bfloat16, pad_token_id=0,
    )  # fmt: skip
    torch.set_default_dtype(torch.bfloat16)
    try:
        return FalconH1ForCausalLM(config).to(device).eval()
    finally:
        torch.set_default_dtype(torch.float32)


def main(
    agreement: Annotated[float, typer.Option(min=0, max=1, help="How often a drafted token is the target's.")] = 0.7,
    gamma: Gamma = 5,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Length of each response.")] = 64,
    layers: Annotated[int, typer.Option(min=1, help="Number of layers; Falcon-H1 0.5B has 36.")] = 22,
    chunk: Annotated[int, typer.Option(min=1, help="Chunk of the state-space scan in tokens.")] = 16,
    repeats: Annotated[int, typer.Option(min=1, help="Repeats; both ways decode in each, one after the other.")] = 3,
    threads: Threads = None,
    device: Device = "cpu",
    out: Annotated[Path | None, typer.Option(help="Write all rows to this file, as JSON lines.")] = None,
) -> None:
    """Time a hybrid with and without a draft that costs nothing, interleaved, and saving and replaying of its state."""
    limit_threads(threads)
    transformers.logging.set_verbosity_error()
    model, screen = hybrid(layers, chunk, device), Console()
    enable(model)
    text = torch.randint(3, VOCAB, (1, PROMPT + max_new_tokens + gamma + 1), device=device)
    settings = {
        "input_ids": text[:, :PROMPT], "attention_mask": torch.ones_like(text[:, :PROMPT]), "do_sample": False,
        "max_new_tokens": max_new_tokens, "eos_token_id": None, "return_dict_in_generate": True,
        "logits_processor": LogitsProcessorList([Dictated(text)]),
    }  # fmt: skip
    parameters = sum(p.numel() for p in model.parameters())
    origin = records.provenance(
        device, agreement=agreement, gamma=gamma, max_new_tokens=max_new_tokens, layers=layers, chunk=chunk,
        parameters=parameters,
    )  # fmt: skip
    done = []
    with records.written(out, origin) as write, progress(screen) as bar:
        for i in bar.track(range(repeats + 1), description="repeats"):
            draft = AgreeingDraft(text, gamma, agreement, seed=i)
            lossy = {"candidate_generator": draft, "lossy_mode": "lossless", "lossy_config": {"break_even": False}}
            stats = []
            alone = _seconds(lambda: model.generate(**settings))
            both = _seconds(lambda lossy=lossy, stats=stats: stats.append(model.generate(**settings, **lossy)))
            if i:  # the first does not count
                said = stats[0].lossy_stats
                done.append(Repeat(alone, both, said.tokens_per_round, said.acceptance_rate))
                write(done[-1])
        costs = list(_costs(model, text, gamma, repeats))
        for cost in costs:
            write(cost)
    screen.print(_speeds(done, max_new_tokens, f"{parameters / 1e9:.2f} B in bfloat16, γ = {gamma}"))
    gains = [x.plain / x.lossless for x in done]
    rate = mean(x.accepted for x in done)
    screen.print(f"{median(gains):.2f} × ({min(gains):.2f} to {max(gains):.2f}); {rate:.0%} of the draft accepted")
    table = Table("what", "ms", "beside one token")
    for cost in costs:
        table.add_row(cost.what, f"{1e3 * cost.seconds:.1f}", f"{cost.ratio:.2f}")
    screen.print(table)


def _speeds(done: list[Repeat], tokens: int, title: str) -> Table:
    table = Table("", "tokens/s", "seconds", "tokens per round", title=title)
    plain, lossless = median(x.plain for x in done), median(x.lossless for x in done)
    rounds = mean(x.tokens_per_round for x in done)
    table.add_row("target alone", f"{tokens / plain:.2f}", f"{plain:.1f}", "1")
    table.add_row("lossless", f"{tokens / lossless:.2f}", f"{lossless:.1f}", f"{rounds:.2f}")
    return table


@torch.inference_mode()
def _costs(model: PreTrainedModel, text: Tensor, gamma: int, repeats: int) -> Iterator[Cost]:
    """Time forwards over some numbers of tokens, and saving a state and bringing it back."""
    cache = new_cache(model)
    model(input_ids=text[:, :PROMPT], **{CACHE: cache}, use_cache=True)
    snapshot = CacheSnapshot(cache)

    def forward(tokens: int) -> Callable[[], object]:
        return lambda: model(input_ids=text[:, :tokens], **{CACHE: cache}, use_cache=True)

    def timed(action: Callable[[], object]) -> float:
        seconds = []
        for _ in range(2 * repeats + 1):
            seconds.append(_seconds(action))
            snapshot.restore(cache)
        return median(seconds[1:])

    one = timed(forward(1))
    rows = {f"forward over {n}": forward(n) for n in (1, gamma + 1, 2 * gamma + 1, 4 * gamma + 1) if n <= len(text[0])}
    rows |= {"saving the state": lambda: CacheSnapshot(cache), "bringing it back": lambda: snapshot.restore(cache)}
    for what, action in rows.items():
        seconds = timed(action)
        yield Cost(what, seconds, seconds / one)


def _seconds(action: Callable[[], object]) -> float:
    """Return this process's computing time in one thread, in seconds: the machine may be busy."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    begin = clock()
    action()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return clock() - begin


app = command(main)

if __name__ == "__main__":
    app()
