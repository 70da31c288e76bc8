"""``python -m benchmarks.fly_windows FOLDER FILE``: how many drafted tokens match after each labelled mismatch.

``fly`` keeps a mismatch only if draft and target agree afterwards, which labels do not tell. So both models read each
text once. Then the draft goes on from all its mismatches at the same time, and the target reads these tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from benchmarks import PairName, command
from benchmarks.mined_labels import labels_of_mismatches
from benchmarks.rule_curves import read_rows, write_rows
from hf_lossy_assist import prepack
from hf_lossy_assist.acceptors import Fly
from hf_lossy_assist.cli.console import Console, limit_threads, progress
from hf_lossy_assist.cli.models import ModelOptions
from hf_lossy_assist.cli.options import Threads
from hf_lossy_assist.compat import cache_name


class Branches:
    """One text that a model has read, and one branch from each of ``starts`` ``(M,)``, which reads only what is before.

    ``text`` ``(L,)`` are the tokens; the branch at a start replaces the token there and all that follow.
    """

    def __init__(self, model: PreTrainedModel, text: Tensor, starts: Tensor) -> None:
        self._model = model
        self._given = {cache_name(model): DynamicCache(config=model.config), "use_cache": True}
        model(input_ids=text[None], logits_to_keep=1, **self._given)
        self._seen = torch.arange(len(text)) < starts[:, None]

    def read(self, tokens: Tensor) -> Tensor:
        """Return ``(M, k)`` the likeliest tokens after each of the next ``tokens`` ``(M, k)`` of the branches."""
        count, width = tokens.shape
        read = self._seen.sum(-1)  # by each branch
        own, before = torch.eye(count, dtype=torch.bool), torch.ones(width, width, dtype=torch.bool).tril()
        new = torch.kron(own, before)
        sees = torch.cat([self._seen.repeat_interleave(width, 0), new], dim=1)
        positions = read[:, None] + torch.arange(width)
        said = self._model(
            input_ids=tokens.reshape(1, -1), attention_mask=sees[None, None], position_ids=positions.reshape(1, -1),
            **self._given,
        ).logits.argmax(-1)  # fmt: skip
        self._seen = torch.cat([self._seen, own.repeat_interleave(width, 1)], dim=1)
        return said.view(count, width)


def followed(
    target: PreTrainedModel, draft: PreTrainedModel, text: Sequence[int], starts: Sequence[int], x: Sequence[int],
    most: int,
) -> list[int]:  # fmt: skip
    """Return for each drafted token of ``x``, in place of those of ``text`` at ``starts``, how many more then match.

    The draft goes on for ``most`` tokens. A match is the target's likeliest token, given the draft as it stands.
    """
    ids, at = torch.tensor(text), torch.tensor(starts)
    branches, drafted = Branches(draft, ids, at), [torch.tensor(x)[:, None]]
    for _ in range(most):
        drafted.append(branches.read(drafted[-1]))
    tokens = torch.cat(drafted, dim=1)
    matches = Branches(target, ids, at).read(tokens[:, :-1]) == tokens[:, 1:]
    return matches.int().cumprod(-1).sum(-1).tolist()


def main(
    folder: Annotated[Path, typer.Argument(help="A folder of `mine --labels judge`, or of `mined_labels restore`.")],
    rows: Annotated[Path, typer.Argument(metavar="FILE", help="What `rule_curves read` has written of it.")],
    pair: PairName = "qwen-coder",
    threads: Threads = None,
) -> None:
    """Add to each row how many drafted tokens match after its mismatch, up to the window of `fly`."""
    limit_threads(threads)
    mined = labels_of_mismatches("folder", folder)
    records = read_rows(rows)
    loaded = ModelOptions(pair, dtype=mined.manifest["settings"]["dtype"]["target"]).load()
    target = prepack(loaded.target)
    labels: dict[int, list[tuple[int, int, int]]] = {}
    columns = (mined.tokens[name] for name in ("prompt_id", "index", "draft_token"))
    for row, (prompt, index, token) in enumerate(zip(*columns, strict=True)):
        labels.setdefault(prompt, []).append((row, index, token))
    with torch.inference_mode(), progress(Console()) as bar:
        for text in bar.track([text for text in mined.prompts if text["prompt_id"] in labels], description="reading"):
            row, index, token = zip(*labels[text["prompt_id"]], strict=True)
            before = text["prompt_tokens"]
            starts = [len(before) + i for i in index]
            found = followed(target, loaded.draft, [*before, *text["last_response"]], starts, token, Fly().window - 1)
            for i, count in zip(row, found, strict=True):
                records[i]["followed"] = count
    write_rows(rows, records)
    full = sum(record["followed"] == Fly().window - 1 for record in records)
    typer.echo(f"{full} of {len(records)} mismatches have a full window")


app = command(main)

if __name__ == "__main__":
    app()
