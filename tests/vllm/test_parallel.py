"""Two ranks that share a model decide alike."""

from __future__ import annotations

from tests.vllm.asking import RULES, asking, prompts_of, texts
from tests.vllm.conftest import start

DROPPED = ("dropmatch", {"criterion": "naive", "num_paths": 3, "dropout": 0.3, "seed": 1})


def test_two_ranks_have_the_texts_of_one(engine, pair):
    asked = [asking(mode, config) for mode, config in [*RULES, DROPPED, ("lossless", {})]]
    asked += [asking(mode, temperature=1.0, seed=i) for i, mode in enumerate(("lossless", "typical", "ears"))]
    prompts = prompts_of(pair, len(asked))
    both = start(tensor_parallel_size=2, distributed_executor_backend="mp")
    assert texts(both, prompts, *asked) == texts(engine, prompts, *asked)
