"""Only one part of the package knows versions of transformers and names that transformers keeps to itself."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import hf_lossy_assist

PACKAGE = Path(hf_lossy_assist.__file__).parent
SOURCES = sorted(
    path
    for folder in (PACKAGE, PACKAGE.parent / "examples")
    for path in folder.rglob("*.py")
    if not {PACKAGE / "compat", PACKAGE / "integrations" / "vllm" / "inside"} & set(path.parents)  # vLLM's, too
)
OTHERS = ("transformers", "huggingface_hub", "accelerate", "peft")
# Private names of torch and the standard library.
NOT_OF_TRANSFORMERS = {"_exit", "_modules", "_forward_pre_hooks", "_foreach_add_", "_version"} | {
    # Kernels that torch has no public name for.
    "_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported", "_is_vnni_supported",
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
