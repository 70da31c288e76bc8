"""Only one part of the package knows versions of transformers and names that transformers keeps to itself."""

from __future__ import annotations

import ast
import functools
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import DynamicCache
from transformers.utils import logging as their_logging

import hf_lossy_assist
from hf_lossy_assist.compat.caches import CACHE
from hf_lossy_assist.integrations.transformers_loop import LossyVerification
from tests.acceptors.fixtures import verifier_head
from tests.tiny_models import noisy_copy, padded, prompt, tiny

PACKAGE = Path(hf_lossy_assist.__file__).parent
SOURCES = sorted(
    path
    for folder in (PACKAGE, PACKAGE.parent / "examples")
    for path in folder.rglob("*.py")
    if not {PACKAGE / "compat", PACKAGE / "integrations" / "vllm" / "inside"} & set(path.parents)  # vLLM's, too
)
OTHERS = ("transformers", "huggingface_hub", "accelerate", "peft")
# Private names of torch and the standard library.
NOT_OF_TRANSFORMERS = {"_exit", "_modules", "_forward_pre_hooks", "_foreach_add_", "_foreach_copy_", "_version"} | {
    # Kernels that torch has no public name for.
    "_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported",
    "_convert_weight_to_int4pack_for_cpu", "_weight_int4pack_mm_for_cpu", "_make_per_channel_quantized_tensor",
}  # fmt: skip


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def own_names(trees: list[ast.AST]) -> set[str]:
    """Every private name that the package itself defines: methods, attributes of self, fields, functions."""
    names = set(NOT_OF_TRANSFORMERS)
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            names.add(node.attr)
    return names


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


@functools.cache
def trees() -> dict[Path, ast.AST]:
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES}


@functools.cache
def own() -> set[str]:
    return own_names(list(trees().values()))


def offences(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        at = f"line {getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] in OTHERS:
            for name in [*(node.module or "").split("."), *(alias.name for alias in node.names)]:
                if private(name) or name == "__version__":
                    yield f"{at}: imports {name} from {node.module}"
        elif isinstance(node, ast.Attribute) and private(node.attr) and not _is_self(node.value):
            if node.attr not in own():
                yield f"{at}: reads the attribute {node.attr}"
        elif isinstance(node, ast.Call) and _called(node) in ("getattr", "hasattr", "setattr", "delattr"):
            name = node.args[1].value if isinstance(node.args[1], ast.Constant) else ""
            if private(str(name)) and name not in own():
                yield f"{at}: asks for the attribute {name}"


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else ""


def test_no_private_name_of_another_library():
    assert len(SOURCES) > 100
    found = {str(path.relative_to(PACKAGE.parent)): list(offences(tree)) for path, tree in trees().items()}
    assert not {path: lines for path, lines in found.items() if lines}


def asks_for_a_version(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute) and node.attr == "__version__":
        return isinstance(node.value, ast.Name) and node.value.id in OTHERS
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else _called(node)
    of_other = bool(node.args) and isinstance(node.args[0], ast.Constant) and node.args[0].value in OTHERS
    return name in ("is_transformers_version", "parse_version") or (name == "version" and of_other)


def test_nothing_depends_on_a_version():
    for path, tree in trees().items():
        assert not [f"{path}: {node.lineno}" for node in ast.walk(tree) if asks_for_a_version(node)]


def test_the_test_would_find_them():
    tree = ast.parse(
        "from transformers.generation.utils import _speculative_sampling\n"
        "model._get_candidate_generator()\n"
        "getattr(config, '_commit_hash', None)\n"
    )
    assert len(list(offences(tree))) == 3


TARGET = tiny()
DRAFT = noisy_copy(TARGET, 0.05)
ONE, DRAFTED = {"input_ids": prompt(), "lossy_mode": "topk"}, {"assistant_model": DRAFT}
CALLS = {
    "chain": ONE | DRAFTED,
    "sampled": ONE | DRAFTED | {"do_sample": True, "temperature": 0.8, "top_k": 5},
    "batch": {**padded(), "lossy_mode": "lossless"} | DRAFTED,
    "tree": ONE | DRAFTED | {"lossy_config": {"tree": {"depth": 3, "top_k": 2, "nodes": 4}}},
    "look-up": ONE | {"prompt_lookup_num_tokens": 3},
    "static cache": ONE | DRAFTED | {"cache_implementation": "static"},
    "a cache of the caller's": ONE | DRAFTED | {CACHE: DynamicCache(config=TARGET.config)},
    "dropped heads": ONE | DRAFTED | {"lossy_mode": "dropmatch"},
    "sprinter": ONE | DRAFTED | {"lossy_mode": "sprinter", "lossy_head": verifier_head(TARGET, DRAFT)},
    "all outputs": ONE | DRAFTED | {"return_dict_in_generate": True, "output_scores": True, "output_attentions": True},
    "transformers' loop": {"input_ids": prompt()} | DRAFTED,
}


def warned_of(call: Callable[[], Any]) -> list[str]:
    """Return what transformers says of deprecated names, in warnings and in its log."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = their_logging.get_logger("transformers")
    their_logging.warning_once.cache_clear()  # said once in a process
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
    finally:
        logger.removeHandler(handler)
    said = [*lines, *(str(each.message) for each in caught)]
    return [line for line in said if "deprecat" in line.lower() or "will be removed" in line]


@pytest.mark.parametrize("name", CALLS)
def test_no_call_uses_what_transformers_is_about_to_remove(name: str):
    kwargs = {"max_new_tokens": 8, "do_sample": False} | CALLS[name]
    if name == "transformers' loop":
        with LossyVerification("topk", TARGET, assistant_model=DRAFT) as hook:
            assert warned_of(lambda: TARGET.generate(**kwargs, logits_processor=[hook])) == []
    else:
        assert warned_of(lambda: TARGET.generate(**kwargs)) == []


def test_a_deprecated_name_would_be_found():
    if CACHE == "past_key_values":
        pytest.skip("this version's own name")
    cache = DynamicCache(config=TARGET.config)
    assert warned_of(lambda: TARGET(prompt(), past_key_values=cache))
