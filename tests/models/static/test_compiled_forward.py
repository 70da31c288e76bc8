"""When something is compiled, when not again, what is left behind, and what callers put around a forward."""

from __future__ import annotations

import copy
import gc
import re
import warnings
import weakref
from functools import partial

import pytest
import torch
from transformers import CompileConfig, DynamicCache, MambaConfig, MambaForCausalLM, StaticCache
from transformers.utils import logging

from hf_lossy_assist import LossyVerification, enabled
from hf_lossy_assist.compat.caches import CACHE
from hf_lossy_assist.errors import LossyError
from hf_lossy_assist.generation import obstacles
from hf_lossy_assist.models.static import forwards as programs
from hf_lossy_assist.models.static.cache_slot import StaticCacheSlot, give_back, new_static_cache
from hf_lossy_assist.models.static.forwards import Compiling, FixedForward, states_of
from tests.chains import Generating
from tests.graphs import Backend
from tests.nightly import spread
from tests.parity import assert_lossless, assert_same_rows
from tests.tiny_models import noisy_copy, padded, prompt, tiny
from tests.trial.surroundings import SURROUNDINGS, forward_replaced


def slot_of(model) -> StaticCacheSlot:
    return StaticCacheSlot(new_static_cache(model, 64))


@pytest.fixture(scope="module")
def backend():
    return Backend()


@pytest.fixture(scope="module")
def pair():
    target = tiny("llama")
    return target, noisy_copy(target)


def generate(pair, backend, compile=True, new=20, ids=None, **kwargs):
    return pair[0].generate(
        prompt() if ids is None else ids, assistant_model=pair[1], lossy_config={"compile": compile},
        compile_config=CompileConfig(backend=backend), max_new_tokens=new, eos_token_id=None,
        do_sample=False, **{"lossy_mode": "lossless"} | kwargs,
    )  # fmt: skip


def test_nothing_is_compiled_again(pair, backend):
    """Prompts, lengths and texts differ; shapes do not: γ + 1 tokens of the target, 1 and 2 of the draft."""
    generate(pair, backend)
    assert backend.graphs == 3
    with torch.compiler.set_stance("fail_on_recompile"):
        generate(pair, backend, new=24, ids=prompt(5, seed=1))
        generate(pair, backend, new=9, ids=prompt(9, seed=2))
    assert backend.graphs == 3


def test_scores_and_logits_are_those_of_the_eager_loop(pair, backend):
    fields = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    eager, compiled = (generate(pair, backend, compile, **fields) for compile in (None, True))
    assert torch.equal(eager.sequences, compiled.sequences)
    for name in ("scores", "logits"):
        torch.testing.assert_close(torch.stack(getattr(eager, name)), torch.stack(getattr(compiled, name)))


def test_without_drafts_one_shape_is_compiled(pair):
    backend = Backend()
    plain = pair[0].generate(prompt(), max_new_tokens=20, eos_token_id=None, do_sample=False)
    assert torch.equal(generate(pair, backend, num_assistant_tokens=0), plain)
    assert backend.graphs == 1


def test_the_first_compilation_says_what_it_waits_for(backend, capsys):
    target = tiny("llama")
    own = target, noisy_copy(target)
    logging.enable_progress_bar()  # commands that other tests run switch it off
    generate(own, backend)
    shown = capsys.readouterr().err
    assert re.search(r"Compiling LlamaForCausalLM for \d+ tokens, once", shown)  # of the target
    assert "for drafts of 5 tokens" in shown
    generate(own, backend)
    assert "Compiling" not in capsys.readouterr().err


def test_texts_that_grow_are_compiled_for_three_lengths_of_caches(backend):
    """From 10 to 400 tokens: at each length the target's forward, and two of the draft; torch never gives up."""
    target = tiny()
    target.config.max_position_embeddings = 1024
    own, before = (target, noisy_copy(target)), backend.graphs
    with warnings.catch_warnings(), torch._dynamo.config.patch(recompile_limit=2):
        warnings.filterwarnings("error", message=".*(no effect|no longer compiles)")
        for length in (10, 100, 150, 390, 400):
            generate(own, backend, ids=prompt(length))
        assert backend.graphs == before + 3 * 3
        with torch.compiler.set_stance("fail_on_recompile"):
            generate(own, backend, ids=prompt(380))


@torch.no_grad()
def test_where_torch_gives_up_a_warning_says_so():
    with torch._dynamo.config.patch(recompile_limit=1):
        model, how = tiny(), Compiling(CompileConfig(backend="eager"))
        states = how.part(model, slot_of(model), "any width", states_of)
        states(input_ids=prompt(2))
        with pytest.warns(UserWarning, match="torch no longer compiles the forwards of LlamaForCausalLM"):
            states(input_ids=prompt(3))


def test_nothing_is_written_to_the_models(pair, backend):
    target = pair[0]
    before = [{name: id(value) for name, value in vars(module).items()} for module in target.modules()]
    names = [list(module._modules) for module in target.modules()]
    generate(pair, backend)
    after = [{name: id(value) for name, value in vars(module).items()} for module in target.modules()]
    assert [list(module._modules) for module in target.modules()] == names
    assert [set(x) for x in after] == [set(x) for x in before]
    assert all(a["_modules"] == b["_modules"] for a, b in zip(after, before, strict=True))
    assert "_compiled_call" not in vars(target)


def test_programs_and_caches_go_with_the_model(backend):
    target = tiny("llama")
    Compiling(CompileConfig(backend=backend)).part(target, slot_of(target), 3, states_of)
    give_back(target, slot_of(target))
    gone = weakref.ref(target)
    del target
    gc.collect()
    assert gone() is None


def test_hooks_on_decoder_and_head_still_run(pair, backend):
    seen = []
    hooks = [
        module.register_forward_hook(lambda *args, name=name: seen.append(name))
        for name, module in (("decoder", pair[0].get_decoder()), ("head", pair[0].lm_head))
    ]
    try:
        generate(pair, backend)
    finally:
        for hook in hooks:
            hook.remove()
    rounds = seen.count("decoder")
    assert rounds > 2
    assert seen == ["decoder", "head"] * rounds


def test_a_static_cache_is_used_without_compiling_on_a_cpu(pair, backend):
    plain = generate(pair, backend, compile=None)
    count = backend.graphs
    static = generate(pair, backend, compile=None, cache_implementation="static")
    assert torch.equal(static, plain)
    assert backend.graphs == count


def test_a_static_cache_of_the_user(pair, backend):
    """It may be too short for a padded forward at the end, and goes on where it ended."""
    target = pair[0]
    plain = generate(pair, backend, compile=None)
    cache = StaticCache(config=target.config, max_cache_len=7 + 20)
    first = generate(pair, backend, compile=None, new=10, **{CACHE: cache})
    assert torch.equal(first, plain[:, :17])
    assert int(cache.get_seq_length()) == 16
    assert torch.equal(generate(pair, backend, None, 10, first, **{CACHE: cache}), plain)
    assert torch.equal(generate(pair, backend, **{CACHE: StaticCache(target.config, max_cache_len=26)}), plain)


def broken(graph, inputs, **options):
    raise RuntimeError("no compiler here\nat all")


@pytest.mark.parametrize(
    ("case", "needle"),
    [
        ({"backend": broken}, "can't be compiled .*no compiler here"),
        ({"output_attentions": True, "return_dict_in_generate": True}, "output_attentions"),
        ({CACHE: "dynamic"}, "DynamicCache"),
        ({"candidate_generator": "own"}, "drafter"),
    ],
)
def test_falls_back_with_one_message(pair, case, needle):
    values = {"dynamic": DynamicCache(config=pair[0].config), "own": Generating(pair[1], 3)}
    case = {name: values.get(value, value) if isinstance(value, str) else value for name, value in case.items()}
    target = copy.deepcopy(pair[0]) if "backend" in case else pair[0]
    with pytest.warns(UserWarning, match=needle) as caught:
        generate((target, pair[1]), **{"backend": "eager"} | case)
    assert len([x for x in caught if "`compile` in `lossy_config` has no effect" in str(x.message)]) == 1
    with warnings.catch_warnings(record=True) as again:
        warnings.simplefilter("always")
        if CACHE not in case:  # it is full now
            generate((target, pair[1]), **{"backend": "eager"} | case)
    assert not any("has no effect" in str(x.message) for x in again)


def test_obstacles(pair):
    assert obstacles.to_static(pair[0]) is None
    mamba = MambaForCausalLM(MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, state_size=4))
    assert obstacles.to_static(mamba) is not None
    flash = copy.deepcopy(pair[0])
    flash.config._attn_implementation_internal = "flash_attention_2"
    assert "empty slots" in obstacles.to_static(flash)


def test_the_hook_for_stocks_loop_refuses(pair):
    with pytest.raises(LossyError, match="`compile`"):
        LossyVerification("topk", pair[0], compile=True)


def test_inductor(monkeypatch):
    """The real compiler."""
    ran = []
    monkeypatch.setattr(FixedForward, "__call__", lambda self, **inputs: ran.append(self) or self.module(**inputs))
    target = tiny("llama")
    target.model.layers = target.model.layers[:1]
    target.config.num_hidden_layers = 1
    looking_up = {"ids": prompt(6).repeat(1, 3), "prompt_lookup_num_tokens": 3, "lossy_mode": "topk"}
    texts = [generate((target, None), "inductor", compile, **looking_up) for compile in (None, True)]
    assert torch.equal(*texts)
    assert len(programs._forwards[target]) == 1
    assert len(ran) > 3


def test_options_of_a_backend_are_compiled_with(pair):
    """transformers' configuration always has a mode, beside which torch takes no options."""
    given = []

    def backend(graph, inputs, options=None):
        given.append(options)
        return graph.forward

    config = CompileConfig(backend=backend, options={"coordinate_descent_tuning": True})
    settings = {"assistant_model": pair[1], "lossy_mode": "lossless", "lossy_config": {"compile": True}}
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*no effect")
        pair[0].generate(prompt(), **settings, compile_config=config, max_new_tokens=20, do_sample=False)
    assert given
    assert all(options == {"coordinate_descent_tuning": True} for options in given)


def test_a_draft_that_shares_the_target_s_embeddings_is_compiled_too(pair):
    target = copy.deepcopy(pair[0])
    draft = copy.deepcopy(pair[1])
    draft.set_input_embeddings(target.get_input_embeddings())
    plain = target.generate(prompt(), max_new_tokens=8, do_sample=False, eos_token_id=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert generate((target, draft), "eager", new=8).equal(plain)


@pytest.mark.parametrize(
    ("more", "eos"),
    [({"cache_implementation": "static"}, [5, 9, 20, 30, 40]), ({"lossy_config": {"compile": True}}, None)],
)
def test_rows_of_a_batch_end_apart(pair, more, eos):
    drafting = {"assistant_model": pair[1], "compile_config": CompileConfig(backend="eager"), **more}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it has an effect
        plain, ours = assert_lossless(pair[0], drafting, **padded(), eos_token_id=eos, max_new_tokens=24)
    assert getattr(ours, CACHE) is None
    for a, b in zip(ours.logits, plain.logits, strict=True):
        for row in range(len(a)):
            if eos is None:
                torch.testing.assert_close(a[row], b[row], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("compiling", [False, True])
def test_what_a_cache_of_the_caller_holds_is_not_compiled_over(compiling: bool):
    target, ids = tiny(), prompt(9)
    greedy = {"do_sample": False, "eos_token_id": None, "max_new_tokens": 20}
    plain = target.generate(ids, **greedy)
    cache = StaticCache(config=target.config, max_cache_len=64)
    with torch.no_grad():
        target(input_ids=ids[:, :5], **{CACHE: cache}, use_cache=True)
    ours = target.generate(
        ids, **greedy, **{CACHE: cache}, assistant_model=noisy_copy(target, 0.02), lossy_mode="lossless",
        lossy_config={"compile": compiling}, compile_config=CompileConfig(backend="eager"),
    )  # fmt: skip
    assert torch.equal(ours, plain)


GREEDY = {"do_sample": False, "max_new_tokens": 16, "return_dict_in_generate": True, "cache_implementation": "static"}


CHANGES = {
    **{name: SURROUNDINGS[name] for name in ("wrapped", "autocast", "hooked", "offloaded")},
    "around the decoder": lambda model: SURROUNDINGS["wrapped"](model.model),
    "torch.compile": partial(forward_replaced, partial(torch.compile, backend="eager", dynamic=True)),
}


@pytest.mark.filterwarnings("ignore:a static cache has no effect here")
@spread(name=CHANGES, whose=["draft", "target"])
def test_texts_are_plain(name: str, whose: str):
    """Of a batch, rows end apart."""
    inputs = {"input_ids": prompt()} if whose == "target" else padded()
    models = {"target": tiny(), "draft": noisy_copy(tiny(), 0.05)}
    settings = GREEDY | inputs | {"eos_token_id": list(range(3, 13))}
    plain = models["target"].generate(**settings, output_logits=True)
    with CHANGES[name](models[whose]), enabled():
        ours = models["target"].generate(**settings, assistant_model=models["draft"], lossy_mode="lossless")
    assert_same_rows(ours.sequences, plain)
    assert ours.lossy_stats.accepted > 0
