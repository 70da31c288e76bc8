"""Decoding by trees: lossless texts are plain ones, and a tree that is a chain does what the chain does."""

from __future__ import annotations

import pytest
import torch

from hf_lossy_assist import LossyUnsupportedError
from hf_lossy_assist.compat.models import forward_accepts
from hf_lossy_assist.compat.probe import obstacle_to_rollback
from hf_lossy_assist.drafting.tree import TreeDrafter
from tests.acceptors.fixtures import any_judge, assert_texts_have_the_law
from tests.acceptors.table import ROWS, Row, row_id
from tests.architectures import ATTENDING, RECURRENT, family
from tests.dflash_heads import random_dflash
from tests.eagle3_heads import layer, random_head, trained_pair
from tests.nightly import nightly, spread
from tests.parity import assert_same_rows
from tests.tiny_models import ARCHITECTURES, LENGTHS, noisy_copy, padded, prompt, resized, tiny
from tests.trees import path_to

GREEDY = {"do_sample": False, "return_dict_in_generate": True, "output_logits": True, "max_new_tokens": 24}
TREE = {"depth": 4, "top_k": 3, "nodes": 12}
SMALL = {"depth": 3, "top_k": 2, "nodes": 5}
DEEP = {"depth": 6, "top_k": 4, "nodes": 40}


def trees(target, draft, shape=TREE, mode="lossless", config=None, **kwargs):
    """Decode by trees."""
    settings = {"tree": shape, **(config or {})}
    return target.generate(assistant_model=draft, lossy_mode=mode, lossy_config=settings, **kwargs)


def lengths_of(output) -> set[int]:
    return {i for i, count in enumerate(output.lossy_stats.accepted_histogram) if count}


REFUSED = {"gpt_neo", "llama4_text", "lfm2", "lfm2_moe", *RECURRENT}  # by their attention or their states


# Rotary, learned and relative positions, windows, soft-capping, shared keys, sinks, experts, latent keys, decoders of
# an encoder; and what is refused.
FAMILIES = {
    "llama",
    "bloom",
    "mpt",
    "opt",
    "gemma2",
    "gemma4_text",
    "gpt_oss",
    "deepseek_v3",
    "bart",
    "roformer",
    "gpt2",
}
FAMILIES |= {"gpt_neo", "llama4_text", "lfm2", "mamba2", "qwen3_next"}


@pytest.mark.parametrize("name", nightly([*ATTENDING, *RECURRENT], but=FAMILIES))
def test_every_family_writes_plain_texts_or_is_refused_by_name(name: str):
    """With the attention that is used by default; batches have the eager one."""
    target, draft = family(name)
    kwargs = GREEDY | {"input_ids": prompt(), "eos_token_id": None, "max_new_tokens": 16}
    # Positions of a tree are depths; and older versions read some models one token at a time.
    chains_only = not forward_accepts(target, "position_ids") or obstacle_to_rollback(target, several=True)
    if name not in REFUSED and not chains_only:
        assert_same_rows(trees(target, draft, DEEP, **kwargs).sequences, target.generate(**kwargs))
        return
    handle = target.register_forward_pre_hook(lambda *_: pytest.fail("a forward pass"))
    with pytest.raises(LossyUnsupportedError, match=type(target).__name__):
        trees(target, draft, **kwargs)
    handle.remove()


@spread(architecture=ARCHITECTURES, shape=[TREE, None])
def test_rows_of_a_batch_are_plain_ones_and_so_is_what_is_recorded(architecture: str, shape: dict | None):
    target = tiny(architecture)
    target.set_attn_implementation("eager")
    draft = noisy_copy(target, 0.01)
    kwargs = GREEDY | {"eos_token_id": [5, 9], "repetition_penalty": 1.1, **padded()}
    kwargs |= dict.fromkeys(("output_scores", "output_hidden_states", "output_attentions"), True)
    plain, ours = target.generate(**kwargs), trees(target, draft, shape, **kwargs)
    assert_same_rows(ours.sequences, plain)
    assert len(lengths_of(ours)) > 1
    mask = padded()["attention_mask"]
    for name in ("scores", "logits", "hidden_states", "attentions"):
        for step, (a, b) in enumerate(zip(getattr(plain, name), getattr(ours, name), strict=True)):
            for row, length in enumerate(LENGTHS):
                if step >= len(ours.lossy_stats.rows[row].trace):
                    continue  # the row has ended
                if name in ("scores", "logits"):
                    torch.testing.assert_close(a[row], b[row], atol=1e-4, rtol=1e-4)
                    continue
                for one, other in zip(a, b, strict=True):
                    one, other = one[row], other[row]
                    if step == 0:  # what padding says and looks at is nobody's business
                        one, other = one[..., -length:, :], other[..., -length:, :]
                    torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4, msg=f"{name} of {step}, row {row}")
    assert mask.sum() == sum(LENGTHS)


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_eagle3_heads_draft_trees(architecture: str):
    target, head = trained_pair(architecture)
    rounds = 0
    for seed in range(2):
        kwargs = GREEDY | {"input_ids": prompt(seed=seed), "eos_token_id": None}
        plain, ours = target.generate(**kwargs), trees(target, head, {**TREE, "nodes": 30}, **kwargs)
        assert_same_rows(ours.sequences, plain)
        chained = target.generate(assistant_model=head, lossy_mode="lossless", num_assistant_tokens=4, **kwargs)
        rounds += chained.lossy_stats.rounds - ours.lossy_stats.rounds
    assert rounds > 0 or architecture == "gemma3", "more is kept than of chains of that depth"
    kwargs = GREEDY | {"eos_token_id": [5, 9], **padded()}
    assert_same_rows(trees(target, head, **kwargs).sequences, target.generate(**kwargs))


CHAIN = {"depth": 5, "top_k": 1, "nodes": 5}
# The chain that they are compared with has a q, the tree has point masses.
WITHOUT_Q = [row for row in ROWS if not {"draft_probs", "draft_or_point_mass"} & row.rule(tiny()).needs]


@pytest.mark.parametrize(
    ("row", "inputs"),
    [
        *((row, padded()) for row in WITHOUT_Q),
        *((row, {"input_ids": prompt()}) for row in WITHOUT_Q if row.mode in ("lossless", "dropmatch", "judge")),
    ],
    ids=lambda value: row_id(value) if isinstance(value, Row) else "batch" if len(value) > 1 else "one",
)
def test_a_tree_that_is_a_chain_keeps_what_the_chain_keeps(row: Row, inputs: dict):
    target = tiny()
    draft = noisy_copy(target, 0.02)
    kwargs = GREEDY | {"eos_token_id": None, "max_new_tokens": 20, **inputs}
    ways = {"lossy_mode": row.mode, "lossy_head": row.head(target, draft), "assistant_model": draft}
    config = {"seed": 0, **row.config}
    one = target.generate(**ways, lossy_config=config, num_assistant_tokens=5, **kwargs)
    other = target.generate(**ways, lossy_config=config | {"tree": CHAIN}, **kwargs)
    assert other.sequences.equal(one.sequences)
    for name in ("trace", "accepted_histogram", "accepted_by", "draft_calls", "target_calls", "rounds"):
        assert getattr(other.lossy_stats, name) == getattr(one.lossy_stats, name), name


@pytest.mark.parametrize("inputs", [{"input_ids": prompt()}, padded()], ids=["one", "batch"])
def test_a_judge_that_reads_both_models_states_judges_nodes(inputs: dict, watch_drafts):
    target = tiny()
    draft = noisy_copy(target, 0.02)
    kwargs = GREEDY | {"eos_token_id": None, **inputs}
    ways = {"lossy_mode": "judge", "lossy_head": any_judge(target, draft, "both", "both"), "assistant_model": draft}
    one = target.generate(**ways, lossy_config={"seed": 0}, num_assistant_tokens=5, **kwargs)
    other = target.generate(**ways, lossy_config={"seed": 0, "tree": CHAIN}, **kwargs)
    assert one.lossy_stats.accepted_by["judge"] > 0
    assert other.sequences.equal(one.sequences)
    assert other.lossy_stats.trace == one.lossy_stats.trace

    drafted = []

    def compare(draft, drafter, ids, *_):
        if draft.tree is not None and not drafted:
            for node in range(len(draft)):
                path = draft.tokens[0, path_to(draft.tree, 0, node)][:-1]
                text = torch.cat([ids[0, inputs["input_ids"].shape[1] - LENGTHS[0] if len(ids) > 1 else 0 :], path])
                read = drafter.source.model(text[None], output_hidden_states=True, use_cache=False)
                torch.testing.assert_close(draft.hidden[0, node], read.hidden_states[-1][0, -1], atol=1e-4, rtol=1e-4)
                drafted.append(node)

    watch_drafts(TreeDrafter, compare)
    trees(target, draft, mode="judge", lossy_head=ways["lossy_head"], **kwargs)
    assert len(drafted) == 12


@pytest.mark.parametrize(
    ("drafts", "shape"), [("model", SMALL), ("eagle3", SMALL), ("eagle3", None), ("dflash", None)], ids=str
)
def test_the_law_of_sampled_texts_is_the_target_s(drafts: str, shape: dict | None):
    """4,000 texts of 4 tokens: chi-square at p > 1e-4."""
    target = resized(tiny("llama"), 5)
    draft = noisy_copy(target, 0.1)
    if drafts == "eagle3":
        draft = random_head(layer(vocab_size=5), drafted=3, own_embeddings=False)
    elif drafts == "dflash":  # a product of marginals
        draft = random_dflash(layers={"vocab_size": 5}, output_multiplier=0.2)
    output = trees(
        target, draft, shape, config={"seed": 0}, input_ids=torch.tensor([[1, 3, 2]]).repeat(4000, 1), do_sample=True,
        top_k=4, temperature=1.3, max_new_tokens=4, num_assistant_tokens=3, return_dict_in_generate=True,
        eos_token_id=None,
    )  # fmt: skip
    kept = output.lossy_stats.accepted_histogram
    assert kept[1] > 1000
    assert kept[2] > 50
    assert_texts_have_the_law(target, [1, 3, 2], output.sequences, 4, 4, temperature=1.3)


@pytest.mark.parametrize(
    "processing",
    [
        {"repetition_penalty": 1.3},
        {"no_repeat_ngram_size": 2},
        {"prefix_allowed_tokens_fn": lambda batch_id, ids: [3 + (len(ids) * 7) % 40, 4, 5]},
        {"bad_words_ids": [[7], [9, 11]]},
        {"min_new_tokens": 20, "eos_token_id": list(range(3, 20))},
    ],
    ids=lambda processing: next(iter(processing)),
)
def test_processors_see_each_node_s_path_as_its_text(processing: dict):
    target = tiny()
    kwargs = GREEDY | {"eos_token_id": None} | processing | padded()
    ours = trees(target, noisy_copy(target, 0.01), **kwargs)
    assert_same_rows(ours.sequences, target.generate(**kwargs))
    assert ours.lossy_stats.mean_accepted > 1


@pytest.mark.parametrize("length", [1, 5, 6])
def test_length_is_never_overshot(length: int):
    target = tiny()
    kwargs = GREEDY | {"max_new_tokens": length, "eos_token_id": None, "input_ids": prompt()}
    assert_same_rows(trees(target, target, **kwargs).sequences, target.generate(**kwargs))


def test_half_precision_runs():
    target = tiny().to(torch.bfloat16)
    for mode in ("lossless", "dropmatch"):
        config = {"criterion": "naive"} if mode == "dropmatch" else {}
        out = trees(target, noisy_copy(target, 0.01), mode=mode, config=config, input_ids=prompt(), **GREEDY)
        assert out.logits[0].dtype == torch.float32
        assert out.lossy_stats.accepted > 0
