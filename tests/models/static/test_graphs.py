"""Recorded graphs give the texts of the eager loop; a recorder for CPUs stands in for CUDA's."""

from __future__ import annotations

import contextlib
import copy
import gc
import warnings
import weakref
from unittest.mock import MagicMock

import pytest
import torch
from transformers import CompileConfig

from hf_lossy_assist import errors, last_stats
from hf_lossy_assist.compat.caches import CACHE
from hf_lossy_assist.drafting.chain import ChainDrafter
from hf_lossy_assist.generation import obstacles
from hf_lossy_assist.generation.prepared import Prepared
from hf_lossy_assist.models.static import cache_slot
from hf_lossy_assist.models.static import graphs as graph_recorders
from hf_lossy_assist.models.static.cache_slot import GraphMemory
from hf_lossy_assist.models.static.fixed import _difference
from hf_lossy_assist.models.static.graphs import RECORDERS, Graph, cuda_graph
from tests.acceptors.table import judge_head
from tests.dflash_heads import SLIDING, random_dflash
from tests.dflash_heads import trained_pair as dflash_pair
from tests.eagle3_heads import trained_pair
from tests.graphs import CASES, EAGER, NEW, RECORDINGS, Recorder, assert_same, generated, llamas, record
from tests.mtp_checkpoints import trained_pair as mtp_pair
from tests.nightly import nightly, spread
from tests.parity import assert_same_rows
from tests.tiny_models import ARCHITECTURES, VOCAB, noisy_copy, padded, prompt, resized, tiny


def test_a_graph_reads_and_writes_in_place(recorder):
    graph = Graph(lambda x, mask, by: ((x * by).masked_fill(mask["a"], 0),), recorder, GraphMemory())
    outputs = []
    for i in range(3):
        mask = torch.tensor([False, i == 2])
        outputs.append(graph(x=torch.tensor([1.0 + i, 5.0]), mask={"a": mask}, by=2)[0])
    assert outputs[0] is outputs[2]
    assert outputs[2].tolist() == [6.0, 0.0]
    assert (recorder.recordings, recorder.replays) == (1, 3)


@spread(case=[*CASES, "greedy"], inputs=[{"input_ids": prompt(5)}, padded()])
def test_equal_to_the_eager_loop(case, inputs, recorder, default_ends):
    """Also where the prompt is shorter than a round, and is filled up."""
    assert_same(recorder, *llamas(), **CASES[case] | inputs)
    assert recorder.recordings == RECORDINGS.get(case, recorder.recordings)


@pytest.mark.parametrize("seed", [8, 10, 15])
def test_rows_without_room_draw_nothing(seed, recorder):
    """Their positions end otherwise in graphs, so they would be sure of other tokens, and keep other rows drawing."""
    assert_same(recorder, *llamas(), config={"seed": seed}, **CASES["drawn, a threshold"] | padded())


@pytest.mark.parametrize(("pair", "sure"), [(llamas, 0.1), (trained_pair, 0.1), (mtp_pair, 0.1), (dflash_pair, 0.5)])
def test_no_draft_is_longer_than_those_of_its_rows(pair, sure, recorder, watch_drafts):
    unequal = []

    def compare(draft, _, ids, *more):
        lengths = [len(draft)] * len(ids) if draft.lengths is None else draft.lengths
        assert max(lengths) == len(draft)
        unequal.append(len(set(lengths)) > 1)

    watch_drafts(ChainDrafter, compare)
    assert_same(recorder, *pair(), **padded(), num_assistant_tokens=5, assistant_confidence_threshold=sure)
    assert any(unequal)


@spread(inputs=[{}, padded()], case=[(VOCAB - 9, False), (VOCAB + 7, True)])
def test_a_draft_of_another_vocabulary_is_one_graph(case, inputs, recorder):
    size, do_sample = case
    target, draft = llamas()
    draft = resized(draft, size)
    assert_same(recorder, target, draft, num_assistant_tokens=4, do_sample=do_sample, **inputs)
    assert recorder.recordings == 2


def test_a_draw_s_settings_have_a_graph_of_their_own(recorder):
    pair = llamas()
    for temperature, recordings in ((0.8, 2), (0.5, 1), (0.8, 0)):
        recorder.recordings = recorder.replays = 0
        assert_same(recorder, *pair, do_sample=True, temperature=temperature, num_assistant_tokens=4)
        assert recorder.recordings == recordings


@spread(architecture=[name for name in ARCHITECTURES if name != "llama"], case=["greedy", "tree"])
def test_equal_in_every_architecture(architecture, case, recorder):
    """Sliding windows shorter than the text, learned positions, soft-capping, two kinds of layers."""
    target = tiny(architecture)
    assert_same(recorder, target, noisy_copy(target), **CASES[case])


HEADS = [
    (trained_pair, "llama", "greedy, default length", padded()), (trained_pair, "llama", "drawn, processed", padded()),
    (trained_pair, "gemma3", "tree", {}), (dflash_pair, "llama", "greedy", {}),
    (dflash_pair, "llama", "greedy, default length", padded()), (dflash_pair, "llama", "a penalty", {}),
    (dflash_pair, "gpt2", "drawn", {}), (trained_pair, "llama", "a threshold", padded()),
    (trained_pair, "llama", "drawn, a threshold", {}), (mtp_pair, "mimo", "drawn, default length", padded()),
    (mtp_pair, "mimo", "a threshold", padded()), (mtp_pair, "mimo", "greedy, default length", {}),
]  # fmt: skip
MORE = [
    (trained_pair, "llama", "drawn, default length", {}), (dflash_pair, "llama", "drawn, default length", padded()),
    (trained_pair, "llama", "greedy", {}), (trained_pair, "llama", "tree", padded()),
    (trained_pair, "gemma3", "greedy", padded()), (trained_pair, "gpt2", "greedy", {}),
    (trained_pair, "gpt2", "tree", padded()), (dflash_pair, "llama", "greedy", padded()),
    (dflash_pair, "llama", "drawn, processed", padded()), (dflash_pair, "gemma3", "greedy", padded()),
]  # fmt: skip


@pytest.mark.parametrize(("pair", "architecture", "case", "inputs"), [*HEADS, *nightly(MORE)])
def test_heads_on_states(pair, architecture, case, inputs, recorder, default_ends):
    """A head's own layers are in graphs, too: for what a round has committed, and for drafts, nodes or a block."""
    target, head = pair(architecture)
    assert_same(recorder, target, head, **CASES[case] | inputs)
    assert last_stats(target).accepted > 0
    assert recorder.recordings == 3 + 2 * (pair is not dflash_pair and ("default" in case or "threshold" in case))


def test_dflash_with_sliding_windows_and_few_tokens(recorder):
    target, head = tiny("llama"), random_dflash(drafted=24, layers=SLIDING, is_causal=None)
    assert_same(recorder, target, head, lossy_mode="topk", num_assistant_tokens=4, **padded())
    assert recorder.recordings == 3


def test_a_rule_that_reads_states(recorder):
    pair = llamas()
    assert_same(recorder, *pair, lossy_mode="judge", lossy_head=judge_head(*pair), num_assistant_tokens=4)


def test_texts_that_grow(recorder):
    """Lengths from 10 to 1,000 tokens take caches of four lengths, and record each once."""
    target = tiny()
    target.config.max_position_embeddings = 1024
    draft = noisy_copy(target)
    for length in (10, 60, 150, 400, 900):
        kwargs = {"input_ids": prompt(length), "max_new_tokens": 100, "num_assistant_tokens": 4}
        recorder.replays = 0
        assert_same(recorder, target, draft, **kwargs)
    first = recorder.recordings
    assert first == 2 * 4  # the target's forward, and a draft
    target.generate(
        prompt(850), assistant_model=draft, lossy_mode="lossless", num_assistant_tokens=4, max_new_tokens=90
    )
    assert recorder.recordings == first


def test_the_returned_cache_is_dynamic_and_goes_on(recorder):
    target, draft = llamas()
    kwargs = {"return_dict_in_generate": True, "num_assistant_tokens": 4}
    eager, graphs = assert_same(recorder, target, draft, **kwargs)
    caches = [getattr(x, CACHE) for x in (eager, graphs)]
    assert type(caches[0]) is type(caches[1])
    assert caches[0].get_seq_length() == caches[1].get_seq_length()
    torch.testing.assert_close(caches[0].layers[1].values, caches[1].layers[1].values)
    more = [
        target.generate(x.sequences, **{CACHE: y}, max_new_tokens=5, do_sample=False)
        for x, y in zip((eager, graphs), caches, strict=True)
    ]
    assert torch.equal(*more)


def test_a_batch_s_rows_end_apart(recorder):
    kwargs = padded() | {"eos_token_id": [5, 9, 20, 30, 40], "num_assistant_tokens": 4, "output_logits": True}
    plain = llamas()[0].generate(
        **kwargs | {"num_assistant_tokens": None}, do_sample=False, max_new_tokens=NEW, return_dict_in_generate=True
    )
    _, graphs = assert_same(recorder, *llamas(), **kwargs, return_dict_in_generate=True)
    assert_same_rows(graphs.sequences, plain)


@pytest.mark.parametrize(
    ("more", "config"), [({"max_new_tokens": 8}, {}), ({"disable_compile": True}, {}), ({}, EAGER)]
)
def test_what_stays_eager(more, config, recorder):
    generated(*llamas(), lossy_config=config, **more)
    assert not recorder.recordings


@pytest.mark.parametrize("config", [{}, {"tree": {"depth": 4, "top_k": 3, "nodes": 12}}])
def test_trials_read_no_padding(config, recorder):
    """What padding sees is anything: with this attention, all slots of the cache, whatever they hold."""
    target = tiny("llama")
    target.set_attn_implementation("eager")
    mask = torch.ones(2, 30, dtype=torch.long)
    mask[0, :29] = 0
    for parameter in target.parameters():
        parameter.data *= 3
    batch = {"input_ids": prompt(30).repeat(2, 1), "attention_mask": mask, "num_assistant_tokens": 4}
    assert_same(recorder, target, noisy_copy(target), config=config, **batch)


def test_hooks_on_the_draft_run_once_per_token(recorder):
    """Those that time forwards wait for the device, which no recording allows."""
    (target, draft), seen = llamas(), []
    hook = draft.get_decoder().register_forward_hook(lambda *_: seen.append(1))
    generated(target, draft, num_assistant_tokens=3)
    hook.remove()
    warm_ups = 2 * 5  # at each of two widths: one to make the cache, one by one, and three of the graph
    assert recorder.replays
    assert len(seen) == last_stats(target).draft_calls + warm_ups


@pytest.mark.parametrize(("change", "compile"), [("weights", True), ("the draft's head", None)])
def test_graphs_of_other_weights_are_recorded_anew(change, compile, recorder):
    target, draft = llamas()
    kwargs = {"lossy_config": {"compile": compile, "inspect": True}, "compile_config": CompileConfig(backend="eager")}
    generated(target, draft, **kwargs)
    before = recorder.recordings
    generated(target, draft, **kwargs)
    assert recorder.recordings == before
    other = tiny("llama", seed=5)
    if change == "weights":
        for own, new in zip(target.parameters(), other.parameters(), strict=True):
            own.data = new.data.clone()  # as moving a model to a device and back does
    else:
        draft.lm_head = copy.deepcopy(other.lm_head)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*no effect")
        text, stats = generated(target, draft, **kwargs), last_stats(target)
    assert recorder.recordings > before
    assert torch.equal(text, generated(target, draft, lossy_config={"compile": False, "inspect": True}))
    assert stats.trace == last_stats(target).trace


def watched(target):
    target.model.layers[0].mlp.register_forward_hook(lambda *_: None)
    return "hooks watch layers"


def with_adapter(target):
    target.model.layers[0].mlp.active_adapters = ["default"]
    return "adapters"


def in_processes(target):
    target._tp_size = 2
    return "spread over processes"


def with_dynamic_frequencies(target):
    target.config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    return "frequencies"


@pytest.mark.parametrize("change", [watched, with_adapter, in_processes, with_dynamic_frequencies])
def test_nothing_is_recorded_that_a_replay_would_miss(change, recorder):
    target, draft = llamas()
    assert change(target) in obstacles.to_recording(target, Prepared)
    assert obstacles.to_recording(draft, Prepared) is None


def test_a_model_that_could_not_be_recorded_is_not_tried_again(monkeypatch):
    errors.warn_once.cache_clear()
    tries = []

    def failing(body, device, memory):
        tries.append(device)
        raise RuntimeError("the stream is capturing")

    monkeypatch.setitem(RECORDERS, "cpu", failing)
    target, draft = llamas()
    with pytest.warns(UserWarning, match="can't be recorded as graphs .RuntimeError: the stream is capturing"):
        text = generated(target, draft)
    assert torch.equal(text, generated(target, draft, lossy_config=EAGER))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*no effect")
        assert torch.equal(text, generated(target, draft))
    assert len(tries) == 1


def test_memory_that_was_short_once_is_asked_for_again(monkeypatch):
    failing = [torch.OutOfMemoryError("CUDA out of memory")]

    class ShortOnce(Recorder):
        def __call__(self, body, device, memory):
            if failing:
                raise failing.pop()
            return super().__call__(body, device, memory)

    recorder = record(monkeypatch, ShortOnce())
    models = llamas()
    errors.warn_once.cache_clear()
    with pytest.warns(UserWarning, match="OutOfMemoryError"):
        expected = generated(*models)
    assert generated(*models).tolist() == expected.tolist()
    assert recorder.replays


def test_graphs_of_one_cache_share_its_memory(recorder, default_ends):
    """The recorder ruins the outputs of others in it; a new setting's graphs stay in it, too."""
    target, draft = llamas()
    for temperature in (0.8, 0.5):
        recorder.replays = 0
        assert_same(recorder, target, draft, do_sample=True, temperature=temperature)
    (_, of_target), (_, of_draft) = cache_slot._idle[target][0], cache_slot._idle[draft][0]
    assert of_target.memory.pool is not of_draft.memory.pool
    assert len(of_target.memory.pool) == len(of_target.graphs)
    assert len(of_draft.memory.pool) == len(of_draft.graphs) == 6  # drafts of three lengths, for each temperature
    of_draft.forget_forwards()
    assert of_draft.memory.pool is None


@pytest.mark.parametrize("fault", ["the capture", "the code", None])
def test_a_failed_capture_leaves_no_pool_open_and_no_generator_captured(fault, monkeypatch):
    """By what torch does: a capture that was invalidated raises before it closes its pool and frees the generator."""
    opened, closed, released, captured = [], [], [], set()

    class Capture(contextlib.nullcontext):
        def __init__(self, graph, pool=None, capture_error_mode="global"):
            self.pool = pool

        def __enter__(self):
            captured.add("the default generator")
            opened.append(self.pool)

        def __exit__(self, *error):
            if fault == "the capture" and self.pool:
                raise RuntimeError("operation failed due to a previous error during capture")
            opened.remove(self.pool)
            captured.clear()

    def end(device, pool):
        if pool not in opened:
            raise RuntimeError("not currently recording to this pool")
        opened.remove(pool)
        closed.append((device, pool))

    cuda = {"device": contextlib.nullcontext, "stream": contextlib.nullcontext, "Stream": MagicMock}
    cuda |= {"current_stream": MagicMock, "current_device": lambda: 0, "graph_pool_handle": lambda: (0, 7)}
    for name, value in cuda.items() | {"CUDAGraph": MagicMock, "graph": Capture}.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch, "zeros", MagicMock())
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", lambda *pool: released.append(pool), raising=False)
    runs = []

    def body():
        runs.append(0)
        if fault and len(runs) > graph_recorders._WARM_UPS:
            raise ValueError("the code")

    memory = GraphMemory()
    with pytest.raises((RuntimeError, ValueError)) if fault else contextlib.nullcontext():
        cuda_graph(body, torch.device("cuda", 0), memory)
    assert not opened
    assert not captured
    assert closed == released == ([(0, (0, 7))] if fault == "the capture" else [])
    assert memory.pool == (0, 7)


def test_a_draft_is_freed_with_its_graphs(recorder):
    target, draft = llamas()
    generated(target, draft)
    assert recorder.recordings
    gone = weakref.ref(draft)
    del draft
    target.__dict__.pop("lossy_stats", None)
    gc.collect()
    assert gone() is None


def test_autocast_s_weights_are_not_recorded(recorder):
    target, draft = llamas()
    with torch.autocast("cpu", torch.bfloat16):
        generated(target, draft)
    assert not recorder.recordings


def test_trials_compare_logits_up_to_the_first_other_token():
    one = torch.tensor([[[0.0, 9.0], [9.0, 0.0], [0.0, 9.0]]])
    two = torch.tensor([[[0.0, 8.0], [0.0, 9.0], [9.0, 0.0]]])
    assert float(_difference(one, two)) == 9
    assert float(_difference(one[:, :1], two[:, :1])) == 1
    assert float(_difference(one[:, :1].repeat(1, 3, 1), two[:, :1].repeat(1, 3, 1))) == 1
