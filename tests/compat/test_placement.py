"""Where the weights are, and in what form, makes no difference."""

from __future__ import annotations

import copy
import gc
import weakref
from pathlib import Path

import pytest
import torch
from accelerate import cpu_offload, disk_offload, dispatch_model

from hf_lossy_assist import LossyUnsupportedError, enabled
from hf_lossy_assist.compat.probe import ask
from tests.acceptors.fixtures import verifier_head as verifier_for
from tests.acceptors.table import judge_head
from tests.forking import fork_module
from tests.parity import assert_lossless
from tests.tiny_models import noisy_copy, padded, prompt, tiny
from tests.trial.drawing import counted

GREEDY = {"do_sample": False, "max_new_tokens": 24, "eos_token_id": None, "return_dict_in_generate": True}


def placed(how: str, folder: Path, seed: int = 0):
    """Return a tiny model of which some weights are loaded on demand."""
    model = tiny(seed=seed)
    if how == "disk":
        disk_offload(model, str(folder), execution_device=torch.device("cpu"))
    elif how == "cpu":
        cpu_offload(model, execution_device=torch.device("cpu"))
    else:
        parts = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk", "model.norm": "cpu",
                 "model.rotary_emb": "cpu", "lm_head": "disk"}  # fmt: skip
        dispatch_model(model, parts, main_device="cpu", offload_dir=str(folder), force_hooks=True)
    return model


def loads_of(module) -> list[int]:
    """Count how often accelerate loads a module's weights."""
    loads, original = [], module._hf_hook.pre_forward

    def pre_forward(*args, **kwargs):
        loads.append(1)
        return original(*args, **kwargs)

    module._hf_hook.pre_forward = pre_forward
    return loads


@pytest.mark.parametrize(("how", "inputs"), [("cpu", padded()), ("disk", {"input_ids": prompt()}), ("map", padded())])
def test_offloaded_targets_and_drafts(how: str, inputs, tmp_path: Path):
    target, draft = placed(how, tmp_path / "target"), noisy_copy(tiny(), 0.01)
    _, ours = assert_lossless(target, {"assistant_model": draft}, **inputs, **GREEDY)
    assert ours.lossy_stats.accepted > 0
    _, swapped = assert_lossless(tiny(), {"assistant_model": placed(how, tmp_path / "draft")}, **inputs, **GREEDY)
    assert swapped.lossy_stats.acceptance_rate == 1


def test_models_are_freed_whose_weights_are_loaded_on_demand(tmp_path: Path):
    """Their forwards are objects of their own, which hold the model."""
    models = [placed("map", tmp_path / name) for name in ("target", "draft")]
    models[0].generate(prompt(), **GREEDY, assistant_model=models[1], lossy_mode="lossless")
    gone = [weakref.ref(model) for model in models]
    models.clear()
    gc.collect()
    assert [one() for one in gone] == [None, None]


@pytest.mark.parametrize("how", ["cpu", "disk", "map"])
def test_the_head_is_loaded_once_a_round_however_many_paths(how: str, tmp_path: Path):
    """And a few times more in a call that has to choose its dropout."""
    target, extra = placed(how, tmp_path), []
    ask(target)  # by forwards of its own
    loads = loads_of(target.lm_head)
    for dropout in (0.3, "auto"):
        loads.clear()
        out = target.generate(
            input_ids=prompt(40), **GREEDY, assistant_model=noisy_copy(tiny(), 0.05), lossy_mode="dropmatch",
            lossy_config={"num_paths": 5, "dropout": dropout, "seed": 0},
        )  # fmt: skip
        assert out.lossy_stats.drafted > 0
        extra.append(len(loads) - out.lossy_stats.target_calls)
    assert extra[0] == 0
    assert 1 <= extra[1] <= 5


def test_trained_heads_with_an_offloaded_target(tmp_path: Path):
    whole, draft = tiny(), noisy_copy(tiny(), 0.05)
    heads = {"judge": judge_head(whole, draft), "sprinter": verifier_for(whole, draft)}
    target = placed("map", tmp_path)
    for mode, head in heads.items():
        kwargs = GREEDY | {"input_ids": prompt(), "assistant_model": draft, "lossy_mode": mode, "lossy_head": head}
        assert target.generate(**kwargs).sequences.equal(whole.generate(**kwargs).sequences)


@pytest.mark.parametrize(
    ("of_target", "of_draft", "mode"),
    [
        (torch.float32, torch.bfloat16, "ears"), (torch.bfloat16, torch.float32, "dropmatch"),
        (torch.float16, torch.float16, "dropmatch"),
    ],
)  # fmt: skip
def test_mixed_precision(of_target, of_draft, mode: str):
    target, draft = tiny().to(of_target), noisy_copy(tiny(), 0.02).to(of_draft)
    for inputs in ({"input_ids": prompt()}, padded()):
        kwargs = GREEDY | inputs | {"do_sample": True, "assistant_model": draft, "lossy_mode": mode}
        assert target.generate(**kwargs, lossy_config={"seed": 0}).lossy_stats.accepted > 0


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # asked for by peft
@pytest.mark.parametrize("inputs", [{"input_ids": prompt()}, padded()], ids=["one", "batch"])
def test_adapters_on_both(inputs):
    import peft

    def adapted(model, seed: int):
        torch.manual_seed(seed)
        config = peft.LoraConfig(
            target_modules=["q_proj", "v_proj"], r=2, init_lora_weights=False, task_type="CAUSAL_LM"
        )
        return peft.get_peft_model(copy.deepcopy(model), config).eval()

    target, draft = adapted(tiny(), 0), adapted(tiny(), 0)
    _, ours = assert_lossless(target, {"assistant_model": draft}, **inputs, **GREEDY)
    assert ours.lossy_stats.acceptance_rate == 1, "the draft has its adapter too"
    other = target.generate(**inputs, **GREEDY, assistant_model=adapted(tiny(), 1), lossy_mode="dropmatch")
    assert len(other.lossy_stats.rows[0].trace) == 24


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # asked for by peft
@pytest.mark.parametrize(("kind", "who"), [("PromptTuningConfig", "target"), ("PrefixTuningConfig", "draft")])
def test_adapters_that_learn_prompts_are_refused(kind: str, who: str):
    """Their tokens are in no text, so that nothing here would have read them."""
    import peft

    models = {"target": tiny(), "draft": tiny()}
    config = getattr(peft, kind)(task_type="CAUSAL_LM", num_virtual_tokens=3)
    models[who] = peft.get_peft_model(models[who], config).eval()
    target, inputs = models["target"], {"input_ids": prompt(), "attention_mask": torch.ones_like(prompt())}
    refused = pytest.raises(LossyUnsupportedError, match=r"learns prompts.*LoRA")
    with counted(models[who]) as forwards, enabled(target), refused:
        target.generate(**inputs, max_new_tokens=4, assistant_model=models["draft"], lossy_mode="lossless")
    assert not forwards


def test_quantised_weights():
    pytest.importorskip("torchao")
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    target, draft = tiny(), noisy_copy(tiny(), 0.01)
    for model in (target, draft):
        quantize_(model, Int8WeightOnlyConfig())
    assert type(target.model.layers[0].mlp.up_proj.weight) is not torch.nn.Parameter
    assert_lossless(target, {"assistant_model": draft}, input_ids=prompt(), **GREEDY)
    out = target.generate(input_ids=prompt(), **GREEDY, assistant_model=draft, lossy_mode="dropmatch")
    assert out.lossy_stats.accepted > 0


def test_two_processes_keep_in_step(tmp_path):
    """Processes with texts of different lengths run equally many forwards of the target."""
    fork_module("tests.compat.two_processes", folder=tmp_path)


def test_processes_that_share_a_model_decide_alike(tmp_path):
    """Tensor parallelism: draws without a seed, every drafter and loop, the example."""
    tiny().save_pretrained(tmp_path)
    said = fork_module("tests.compat.tensor_parallel", tmp_path, folder=tmp_path)[0]
    assert "2 processes, " in said or "tied embeddings can't be sharded" in said
