"""Models whose weights lie in memory as the CPU's kernels read them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hf_lossy_assist import LossyUnsupportedError, LossyValueError, last_stats, pairs, prepack, quantize_draft
from hf_lossy_assist.heads import ModelIdentity
from hf_lossy_assist.models.quantised import PrepackedLinear

_KERNELS = torch.ops.mkldnn._is_mkldnn_bf16_supported()
_BFLOAT16 = pytest.param(
    torch.bfloat16, marks=pytest.mark.skipif(not _KERNELS, reason="this CPU has no bfloat16 kernels")
)


@pytest.fixture(scope="module", params=[torch.float32, _BFLOAT16], ids=str)
def pair(request: pytest.FixtureRequest) -> pairs.Pair:
    return pairs.load(dtype=request.param)


@pytest.mark.parametrize("dtype", [torch.float32, _BFLOAT16], ids=str)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 6, 50])
def test_products_are_those_of_the_layer(bias: bool, rows: int, dtype: torch.dtype):
    torch.manual_seed(rows)
    linear = nn.Linear(96, 40, bias=bias).to(dtype)
    x = torch.randn(2, rows, 96).to(dtype)
    exact = nn.functional.linear(x.double(), linear.weight.double(), linear.bias.double() if bias else None)
    got = PrepackedLinear(linear)(x)
    assert got.dtype == dtype
    step = torch.finfo(dtype).eps
    assert torch.allclose(got.double(), exact, rtol=step, atol=8 * step)


@pytest.mark.parametrize("mode", ["lossless", "typical", "dropmatch", "judge"])
def test_rules_run_on_a_prepacked_target(pair: pairs.Pair, mode: str):
    before = {name: value.data_ptr() for name, value in pair.target.state_dict().items()}
    target = prepack(pair.target)
    assert {name: value.data_ptr() for name, value in pair.target.state_dict().items()} == before
    assert not any(type(module) is nn.Linear for module in target.modules())
    assert ModelIdentity.of(target) == ModelIdentity.of(pair.target)
    ids = pair.tokenizer(pair.task.examples("test", 1)[0].prompt, return_tensors="pt")
    head = {"lossy_head": pair.rule_heads["judge"]} if mode == "judge" else {}
    out = target.generate(**ids, max_new_tokens=24, assistant_model=pair.draft, lossy_mode=mode, **head)
    assert last_stats(target).accepted > 0
    if mode == "lossless":
        assert torch.equal(out, target.generate(**ids, max_new_tokens=24))


def test_what_cannot_be_prepacked_is_refused(pair: pairs.Pair, tmp_path):
    with torch.device("meta"):
        elsewhere = type(pair.draft)(pair.draft.config).to(pair.draft.dtype)
    for error, named, call in (
        (LossyValueError, "float16", lambda: prepack(pairs.load(dtype=torch.float16).draft)),
        (LossyValueError, "Linear", lambda: prepack(nn.Linear(2, 2))),
        (LossyUnsupportedError, "quantised", lambda: prepack(quantize_draft(pair.draft))),
        (LossyUnsupportedError, "prepacked", lambda: prepack(prepack(pair.draft))),
        (LossyUnsupportedError, "meta", lambda: prepack(elsewhere)),
        (LossyUnsupportedError, "CPU", lambda: prepack(pair.draft).to("meta")),
        (LossyUnsupportedError, "saved", lambda: prepack(pair.draft).save_pretrained(tmp_path)),
    ):
        with pytest.raises(error, match=named):
            call()


@pytest.mark.skipif(_KERNELS, reason="this CPU has bfloat16 kernels")
def test_bfloat16_is_refused_without_kernels():
    with pytest.raises(LossyUnsupportedError, match="bfloat16"):
        prepack(pairs.load(dtype=torch.bfloat16).draft)
