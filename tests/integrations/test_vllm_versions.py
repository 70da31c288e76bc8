"""A version of vLLM is refused where what the workers build on has changed, and only there."""

from __future__ import annotations

import sys
import zlib
from types import ModuleType

import pytest

from hf_lossy_assist.errors import LossyUnsupportedError
from hf_lossy_assist.integrations.vllm import plugin

SOURCE = """
class Sampler:
    def draw(self, logits):
        return logits.argmax(-1)

    def keep(self, logits, k, *, seed=None):
        return logits
"""


def install(monkeypatch, tmp_path, source: str, version: str) -> None:
    """Put a vLLM with one module, ``sample``, in place of the installed one."""
    (tmp_path / "sampling_of_vllm.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sampling_of_vllm", raising=False)
    module = __import__("sampling_of_vllm")
    vllm = ModuleType("vllm")
    vllm.__version__ = version
    for name, one in {"vllm": vllm, "vllm.v1": ModuleType("vllm.v1"), "vllm.v1.sample": module}.items():
        monkeypatch.setitem(sys.modules, name, one)
    text = SOURCE.split("\n\n")[0].split("class Sampler:\n")[1] + "\n"
    monkeypatch.setattr(plugin, "TEXTS", {"sample:Sampler.draw": (1, zlib.crc32(text.encode()))})
    monkeypatch.setattr(plugin, "CALLS", {"sample:Sampler.keep": "self logits k"})


@pytest.mark.parametrize(
    ("before", "after", "seams"),
    [
        ("", "", []),
        ("k, *, seed=None", "k, *more, seed=None, fly=0, **others", []),
        ("return logits\n", "return 2 * logits\n", []),
        ("return logits.argmax(-1)", "return logits.argmin(-1)", ["sample:Sampler.draw"]),
        ("def draw", "def drawn", ["sample:Sampler.draw"]),
        ("k, *, seed=None", "k, fly, *, seed=None", ["sample:Sampler.keep"]),
        ("k, *, seed=None", "*, k, fly", ["sample:Sampler.keep"]),
        ("logits, k,", "k, logits,", ["sample:Sampler.keep"]),
        ("logits, k,", "logits,", ["sample:Sampler.keep"]),
        ("def keep", "def kept", ["sample:Sampler.keep"]),
    ],
)
def test_what_has_changed_is_found(monkeypatch, tmp_path, before, after, seams):
    install(monkeypatch, tmp_path, SOURCE.replace(before, after) if before else SOURCE, "0.40.0")
    assert plugin.changed() == seams
    if seams:
        with pytest.raises(LossyUnsupportedError, match=seams[0]):
            plugin.check_version()
    else:
        with pytest.warns(UserWarning, match="0.40.0"):
            plugin.check_version()


def test_a_version_in_which_the_rules_ran_is_not_looked_at(monkeypatch, tmp_path, recwarn):
    install(monkeypatch, tmp_path, "class Sampler: ...", f"{plugin.KNOWN[0]}+cpu")
    assert plugin.changed() == ["sample:Sampler.draw", "sample:Sampler.keep"]
    plugin.check_version()
    assert not recwarn
