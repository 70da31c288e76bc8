"""Speech: whatever Whisper's own `generate()` does before and after decoding, texts are those of plain decoding."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import GenerationConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration, pipelines

from benchmarks.bundled_pair.recipe import build_tokenizer
from hf_lossy_assist import LossyError, collect, enabled, last_stats
from tests.encoder_decoders import decoder_of
from tests.encoder_decoders import whisper as tiny_whisper
from tests.nightly import spread
from tests.tiny_models import noisy_copy

SEGMENT = 20  # frames that the encoder reads at once
LANGUAGE = {"language": "en", "task": "transcribe"}


def whisper(seed: int = 0) -> WhisperForConditionalGeneration:
    """Return a random Whisper with the tokens of speech: a language, tasks, silence and timestamps."""
    torch.manual_seed(seed)
    model = tiny_whisper(vocab_size=128, decoder_start_token_id=3).double().eval()
    vars(model.generation_config).update(
        no_timestamps_token_id=63, lang_to_id={"<|en|>": 8}, task_to_id={"translate": 4, "transcribe": 5},
        prev_sot_token_id=6, is_multilingual=True, max_initial_timestamp_index=10, suppress_tokens=[20, 21],
        alignment_heads=[[0, 0], [1, 2]], max_length=28, _from_model_config=False,
    )  # fmt: skip
    return model


def audio(rows: int = 1, frames: int = SEGMENT) -> dict:
    features = torch.randn(rows, 8, frames, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return {"input_features": features, "attention_mask": torch.ones(rows, frames, dtype=torch.long)}


DRAFTERS = {
    "whole model": lambda target: {"assistant_model": noisy_copy(target, 0.02)},
    "decoder": lambda target: {"assistant_model": decoder_of(target)},
    "look-up": lambda target: {"prompt_lookup_num_tokens": 3},
}
CALLS = {
    "a clip": (audio(), {}),
    "a batch": (audio(3), {}),
    "timestamps": (audio(2), {"return_timestamps": True}),
    "long audio": (audio(1, 55), {"return_timestamps": True}),
    "long audio in a batch": (audio(2, 55), {"return_timestamps": True}),
    "fallback": (
        audio(2, 55),
        {"return_timestamps": True, "temperature": (0.0,), "logprob_threshold": -1.0, "no_speech_threshold": 0.0,
         "compression_ratio_threshold": 2.4},
    ),
}  # fmt: skip


@spread(case=CALLS, drafter=DRAFTERS)
def test_texts_are_those_of_plain_decoding(case: str, drafter: str):
    target = whisper()
    inputs, more = CALLS[case]
    kwargs = inputs | LANGUAGE | more
    # What comes first without the rule may not come first.
    target.generation_config.begin_suppress_tokens = None
    first = target.generate(**kwargs)[:, 0].unique().tolist()
    target.generation_config.begin_suppress_tokens = [*first, 9]
    plain = target.generate(**kwargs)
    drafting = DRAFTERS[drafter](target)
    for defaults in ({}, drafting) if case == "fallback" else ({},):
        with enabled(target, **defaults), collect(target) as stats:
            ours = target.generate(**kwargs, **({} if defaults else drafting), lossy_mode="lossless")
        assert ours.equal(plain)
        assert stats.rounds > 0


SILENCE = {"temperature": (0.0,), "logprob_threshold": -1.0, "no_speech_threshold": 0.0}


@pytest.mark.parametrize(
    ("rows", "drafter", "language"),  # whose token and task's are the first two, or one
    [
        (1, "decoder", LANGUAGE), (2, "whole model", {}),
        pytest.param(2, "look-up", LANGUAGE, marks=pytest.mark.nightly),
        pytest.param(1, "look-up", {}, marks=pytest.mark.nightly),
    ],
)  # fmt: skip
def test_silence_is_detected_once_a_batch_and_never_in_drafts(
    rows: int, drafter: str, language: dict, monkeypatch: pytest.MonkeyPatch
):
    target, seen, encoded = whisper(), [], []
    if not language:
        for name in ("lang_to_id", "task_to_id", "is_multilingual"):
            delattr(target.generation_config, name)
    need_fallback = type(target)._need_fallback

    def looked(self, *args):
        seen.append((args[2], args[3][0].no_speech_prob.clone()))
        return need_fallback(self, *args)

    monkeypatch.setattr(type(target), "_need_fallback", looked)
    drafting = DRAFTERS[drafter](target) | {"lossy_mode": "lossless"}
    target.get_encoder().register_forward_hook(lambda _, args, out: encoded.append(len(out[0])))
    kwargs = audio(rows, 55) | language | SILENCE | {"return_timestamps": True, "return_segments": True}
    results = []
    for more in ({}, drafting):
        seen.clear()
        encoded.clear()
        texts = target.generate(**kwargs, **more)["sequences"]
        results.append((texts.tolist(), [row for row, _ in seen], encoded.copy(), [prob for _, prob in seen]))
    (*plain, probabilities), (*ours, own) = results
    assert ours == plain
    for a, b in zip(probabilities, own, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("rows", "drafter"), [(1, "decoder"), (3, "whole model"), (3, "look-up")])
def test_words_have_plain_timestamps(rows: int, drafter: str, monkeypatch: pytest.MonkeyPatch):
    target, read = whisper(), []
    extract = type(target)._extract_token_timestamps

    def extracted(self, outputs, *args, **kwargs):
        read.append([weights for layers in outputs.cross_attentions for weights in layers])
        return extract(self, outputs, *args, **kwargs)

    monkeypatch.setattr(type(target), "_extract_token_timestamps", extracted)
    target.set_attn_implementation("eager")
    target.generation_config.eos_token_id = 93  # rows end at different times
    kwargs = audio(rows) | LANGUAGE | {"return_token_timestamps": True}
    plain = target.generate(**kwargs)
    ours = target.generate(**kwargs, **DRAFTERS[drafter](target), lossy_mode="lossless")
    assert ours["sequences"].equal(plain["sequences"])
    assert ours["token_timestamps"].equal(plain["token_timestamps"])
    for a, b in zip(*read, strict=True):
        torch.testing.assert_close(a, b)
    assert (plain["sequences"] != 0).sum(-1).unique().numel() == rows


def test_defaults_that_whisper_merges_in_are_not_taken_for_the_user_s():
    target = whisper()
    target.generation_config.eos_token_id = None
    draft = copy.deepcopy(target)
    before = draft.generation_config.to_dict()
    kwargs = audio() | LANGUAGE | {"assistant_model": draft, "lossy_mode": "lossless"}
    for more in (
        {"num_assistant_tokens": 5},
        {"generation_config": GenerationConfig(num_assistant_tokens=5)},
        {"num_assistant_tokens": 5, "lossy_config": {"stop_drafting": {"by": "acceptance", "threshold": 1.0}}},
    ):
        target.generate(**kwargs, **more)
        stats = last_stats(target)
        assert stats.rounds == -(-stats.tokens // 6)
    target.generate(**kwargs, assistant_confidence_threshold=1.0)
    assert last_stats(target).drafted < stats.drafted
    assert draft.generation_config.to_dict() == before


def test_a_refusal_comes_before_the_language_is_detected():
    target = whisper()
    target.register_forward_pre_hook(lambda *_: pytest.fail("a forward pass"))
    with pytest.raises(LossyError, match="`lossy_config` key 'kk'"):
        target.generate(**audio(), **DRAFTERS["look-up"](target), lossy_mode="topk", lossy_config={"kk": 1})


def recogniser(target: WhisperForConditionalGeneration) -> pipelines.Pipeline:
    """Return a pipeline that returns what `generate()` does."""
    extractor = WhisperFeatureExtractor(feature_size=8, sampling_rate=16000, chunk_length=1, hop_length=800)
    pipe = pipelines.AutomaticSpeechRecognitionPipeline(
        model=target.float(), feature_extractor=extractor, tokenizer=build_tokenizer(), device="cpu"
    )
    pipe.postprocess = lambda outputs, **_: outputs
    return pipe


def test_a_pipeline_s_beams_are_refused_with_the_remedy():
    target = whisper()
    pipe, sound = recogniser(target), torch.randn(16000).numpy()
    kwargs = DRAFTERS["look-up"](target) | LANGUAGE | {"lossy_mode": "lossless"}
    with pytest.raises(LossyError) as error:
        pipe(sound, generate_kwargs=kwargs)
    assert "pass `num_beams=1`" in str(error.value)
    pipe(sound, generate_kwargs=kwargs | {"num_beams": 1})
    assert last_stats(target).rounds > 0
    with pytest.raises(LossyError, match=r"is 3: .*pass `num_beams=1`"):
        target.generate(**audio(), **kwargs, num_beams=3)
