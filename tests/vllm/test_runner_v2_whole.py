"""vLLM's model runner V2 decides by rules as V1 and `generate()` do: its kernels are interpreted on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import mode

import pytest
from scipy import stats
from vllm.sampling_params import StructuredOutputsParams

from tests.acceptors.table import output_law
from tests.vllm import interpreted
from tests.vllm.asking import RULES, asking, prompts_of, reference
from tests.vllm.laws import CLOSED, TEMPERATURE, against, law_after

DRAWN = 80
ENSEMBLE = next(row for row in CLOSED if row.mode == "ensemble")


@pytest.fixture(scope="module")
def texts() -> Iterator[Callable]:
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=interpreted.begin) as engine:
        yield lambda prompts, params: engine.submit(interpreted.texts, prompts, params).result()


def test_greedy_texts_are_those_of_generate_and_keep_to_their_grammar(texts, pair):
    prompts = prompts_of(pair, len(RULES) + 1)
    grammar = asking("topk", {"k": 8}, structured_outputs=StructuredOutputsParams(regex="[0-9 +=]{12}"))
    *found, kept = texts(prompts, [*(asking(*rule) for rule in RULES), grammar])
    assert found == [reference(pair, prompt, *rule) for prompt, rule in zip(prompts[:-1], RULES, strict=True)]
    text = pair.tokenizer.decode(kept, skip_special_tokens=True)
    assert len(text) == 12
    assert set(text) <= set("0123456789 +=")


def test_drawn_tokens_have_the_rule_s_law(texts, prompt, pair):
    """As for V1, with fewer draws: the interpreter takes long."""
    params = [
        asking(ENSEMBLE.mode, ENSEMBLE.config, temperature=TEMPERATURE, seed=i, max_tokens=2, ignore_eos=True)
        for i in range(DRAWN)
    ]
    found = texts([prompt] * DRAWN, params)
    laws = {first: law_after(pair, [*prompt, first]) for first in {text[0] for text in found}}
    assert stats.chi2.sf(*against(found, lambda first: output_law(ENSEMBLE, laws[first]))) > 1e-5
    first = mode(text[0] for text in found)
    seconds, law = [text[1] for text in found if text[0] == first], output_law(ENSEMBLE, laws[first])
    likelier = law > laws[first].p
    by_rule, by_target = (
        stats.binomtest(int(likelier[seconds].sum()), len(seconds), float(x[likelier].sum())).pvalue
        for x in (law, laws[first].p)
    )
    assert by_rule > 1e-4
    assert by_target < 1e-6, "so many draws tell the target's own law apart"
