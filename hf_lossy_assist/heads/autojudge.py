"""Judge heads pickled by AutoJudge's code or scikit-learn, converted without running anything in their files.

A pickle is a program, and Python's unpickler runs it: even with an allow-list, a few bytes can make it allocate, hash
or nest without bound. Here :func:`pickletools.genops` takes the program apart, and :func:`_read` follows only the
instructions that build containers. It imports, calls and hashes nothing that the file names.
"""

from __future__ import annotations

import bz2
import hashlib
import io
import lzma
import math
import pickletools
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import LossyValueError
from .folding import fold
from .identity import ModelIdentity
from .judge_head import JudgeConfig, JudgeHead

DEFAULT_THRESHOLD = 0.25
"""The placeholder that AutoJudge writes into its vLLM heads."""

# Limits of a file (packed or not), its program and one array. A head for two states of 16,384 takes a megabyte.
_MOST_BYTES, _MOST_INSTRUCTIONS, _MOST_NUMBERS = 1 << 25, 200_000, 1 << 20
_UNPACKERS = {
    b"\x1f\x8b": lambda: zlib.decompressobj(wbits=31),
    b"\x78": zlib.decompressobj,
    b"BZ": bz2.BZ2Decompressor,
    b"\xfd7zXZ": lambda: lzma.LZMADecompressor(memlimit=2 * _MOST_BYTES),
    b"]\x00": lambda: lzma.LZMADecompressor(memlimit=2 * _MOST_BYTES),
}
# The names that a file may use; the group is the kind of the stand-in.
_ADMITTED = re.compile(
    r"sklearn\.preprocessing\._?data (StandardScaler)|sklearn\.linear_model\._?logistic (LogisticRegression)"
    r"|sklearn\.pipeline (Pipeline)|numpy\._?core\.multiarray (_reconstruct|scalar)|numpy (ndarray|dtype)"
    r"|numpy\._?core\.numeric (_frombuffer)|joblib\.numpy_pickle (NumpyArrayWrapper)|_codecs (encode)"
    r"|copy_?reg (_reconstructor)|(?:builtins|__builtin__) (object)"
)
_VALUES = re.compile(r"(BIN)?INT[12]?|LONG[14]?|(BIN)?FLOAT|(SHORT_)?(BIN)?(STRING|UNICODE|BYTES)8?|BYTEARRAY8")
_MAKES = {"NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False}
_MAKES |= {"EMPTY_LIST": list, "EMPTY_TUPLE": list, "EMPTY_DICT": dict}
# How many values an instruction takes from the stack; None for all above the last mark.
_TAKES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "APPEND": 1, "SETITEM": 2, "STACK_GLOBAL": 2, "REDUCE": 2}
_TAKES |= {"NEWOBJ": 2, "BUILD": 1} | dict.fromkeys(("TUPLE", "LIST", "DICT", "APPENDS", "SETITEMS"))


@dataclass(eq=False)
class _Object:
    """A stand-in for a name in a pickle, or, with ``args``, for the object that calling it would make."""

    kind: str
    args: list[Any] | None = None
    state: Any = None


def import_head(
    path: Path,
    target: ModelIdentity,
    draft: ModelIdentity,
    *,
    task: str,
    threshold: float = DEFAULT_THRESHOLD,
    part: int | None = None,
) -> JudgeHead:
    """Return AutoJudge's head, trained on ``task`` for these models, as a :class:`JudgeHead`.

    ``path`` is a pickle or joblib file of a dict with ``model`` and ``scaler``, a dict with ``mean``, ``scale``,
    ``weights`` and ``bias`` (for vLLM), a Pipeline, or a list of these, one per fold, from which ``part`` chooses. The
    number of coefficients tells which states after the drafted token the head reads: the target's, or the draft's and
    the target's.
    """
    if not path.is_file():
        raise LossyValueError(f"{str(path)!r} is not a file")
    try:
        if (size := path.stat().st_size) > _MOST_BYTES:
            raise ValueError(f"it has {size:,} bytes, and a judge head has no more than {_MOST_BYTES:,}")
        packed = path.read_bytes()
        found = _read(io.BytesIO(_unpacked(packed)))
    except Exception as error:  # a damaged pickle can fail in any way
        reason = str(error)[:300] or type(error).__name__
        raise LossyValueError(f"{str(path)!r} can't be read as a pickle: {reason}") from error
    if type(found) is list:
        if part is None or not 0 <= part < len(found):
            folds = f"{len(found)} heads, one per fold: `fold` has to be between 0 and {len(found) - 1}, but is {part}"
            raise LossyValueError(f"{str(path)!r} holds {folds}")
        found = found[part]
    try:
        *classifier, thresholds = (_array(name, value) for name, value in _parts(found).items())
        weight, bias = fold(*classifier)
        if not (weight.isfinite().all() and bias.isfinite() and np.isfinite(thresholds).all() and thresholds.ndim == 1):
            raise LossyValueError("its `weight`, `bias` and list of `thresholds` have to be finite, folded in float32")
    except LossyValueError as error:
        raise LossyValueError(f"{str(path)!r} is not a judge head: {error}") from error
    if len(weight) not in (target.hidden_size, draft.hidden_size + target.hidden_size):
        raise LossyValueError(
            f"{str(path)!r} has {len(weight)} coefficients, but these models have hidden states of "
            f"{target.hidden_size} (target) and {draft.hidden_size} (draft); name the models it was trained for"
        )
    models = "target" if len(weight) == target.hidden_size else "both"
    provenance = {"imported_from": path.name, "sha256": hashlib.sha256(packed).hexdigest()}
    provenance["published_thresholds"] = thresholds.tolist()
    settings = {"task": task, "threshold": threshold, "models": models, "provenance": provenance}
    # In our heads the target's state comes first.
    return JudgeHead(JudgeConfig(target=target, draft=draft, **settings), weight.roll(target.hidden_size), bias)


def _parts(found: Any) -> dict[str, Any]:
    """Return mean, scale, coefficients, intercept and thresholds by their names in the file."""
    thresholds = {"thresholds": found.get("thresholds", []) if type(found) is dict else []}
    match found:
        case {"mean": mean, "scale": scale, "weights": weights, "bias": bias}:
            return {"mean": mean, "scale": scale, "weights": weights, "bias": bias} | thresholds
        case (
            {
                "scaler": _Object("StandardScaler", state=dict(scaler)),
                "model": _Object("LogisticRegression", state=dict(model)),
            }
            | _Object("Pipeline", state={"steps": [
                [_, _Object("StandardScaler", state=dict(scaler))],
                [_, _Object("LogisticRegression", state=dict(model))],
            ]})
        ):  # fmt: skip
            classes, coef = (_array(name, model.get(name)) for name in ("classes_", "coef_"))
        case _:
            entries = list(found.items())[:10] if type(found) is dict else []
            shown = {key[:40]: _kind(value) for key, value in entries if type(key) is str} or _kind(found)
            raise LossyValueError(
                "it has to hold a dict with a LogisticRegression as 'model' and a StandardScaler as 'scaler', one with "
                f"'mean', 'scale', 'weights' and 'bias', or a Pipeline with both as `steps`, but holds {shown}"
            )
    if classes.tolist() != [0, 1] or coef.shape[:-1] != (1,):
        raise LossyValueError(
            "its LogisticRegression has to tell `classes_` [0, 1] apart, with 1 for important tokens, by one row of "
            f"`coef_`, but has {classes.size} classes and `coef_` of the shape {coef.shape}"
        )
    # With `with_mean` or `with_std` off, scikit-learn stores unused moments or None.
    mean = scaler.get("mean_") if scaler.get("with_mean", True) else [0.0] * coef.size
    scale = scaler.get("scale_") if scaler.get("with_std", True) else [1.0] * coef.size
    return {"mean_": mean, "scale_": scale, **{name: model.get(name) for name in ("coef_", "intercept_")}} | thresholds


def _kind(value: Any) -> str:
    kind = value.kind if isinstance(value, _Object) else type(value).__name__
    return "ndarray" if kind in ("_reconstruct", "_frombuffer") else kind


def _array(name: str, value: Any) -> np.ndarray:
    """Return one number, an array or a list of numbers from :func:`_read` as float64."""
    try:
        return np.array([_numbers(x).item() for x in value]) if type(value) is list else _numbers(value)
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
        raise LossyValueError(f"`{name}` has to be an array of numbers, but is not: {error}") from error


def _numbers(value: Any) -> np.ndarray:
    if type(value) in (int, float):
        return np.array(float(value))
    match value:
        case _Object("_reconstruct", state=[_, shape, dtype, fortran, data]):
            order = "F" if fortran else "C"
        case _Object("_frombuffer", args=[data, dtype, shape, order]):
            pass
        case _Object("scalar", args=[dtype, data]):
            shape, order = [], "C"
        case None:
            raise TypeError("there is none; the estimator has to be fitted")
        case _:
            raise TypeError(f"it is a {_kind(value)}")
    if isinstance(data, _Object):  # protocols before 3 have no bytes and call a codec for them
        data = data.args[0].encode("latin1")
    _count(shape)
    return np.frombuffer(data, _dtype(dtype)).reshape(shape, order=order).astype(np.float64)


def _count(shape: Any) -> int:
    if type(shape) is not list or len(shape) > 2 or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError("its shape has to be at most two lengths")
    if max(count := math.prod(shape), *shape, 0) > _MOST_NUMBERS:
        raise ValueError(f"it has more numbers than the {_MOST_NUMBERS:,} that a judge head has at most")
    return count


def _dtype(value: Any) -> np.dtype:
    match value:
        case _Object("dtype", args=[str(code), *_], state=[_, "<" | ">" | "=" | "|" as byte_order, *_]):
            if re.fullmatch(r"[fiu][1248]|b1", code):
                return np.dtype(byte_order + code)
    raise TypeError("its dtype has to be of real numbers")


def _unpacked(content: bytes) -> bytes:
    make = next((make for magic, make in _UNPACKERS.items() if content.startswith(magic)), None)
    unpacked = content if make is None else make().decompress(content, _MOST_BYTES + 1)
    if len(unpacked) > _MOST_BYTES:
        raise ValueError(f"unpacked it has more than the {_MOST_BYTES:,} bytes that a judge head has at most")
    return unpacked


def _read(file: io.BytesIO) -> Any:
    """Return the content of a pickle, with lists for tuples and an :class:`_Object` for whatever it names or makes."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    for count, (instruction, argument, _) in enumerate(pickletools.genops(file)):
        if count == _MOST_INSTRUCTIONS:
            raise ValueError(f"it has more than the {_MOST_INSTRUCTIONS:,} instructions that a judge head needs")
        name, taken = instruction.name, []
        if name in _TAKES:
            start = marks.pop() if _TAKES[name] is None else len(stack) - _TAKES[name]
            if start < 0:
                raise ValueError("it takes more values than it has")
            taken = stack[start:]
            del stack[start:]
        match name:
            case "PROTO" | "FRAME" | "STOP":
                pass
            case "MARK":
                marks.append(len(stack))
            case "PUT" | "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                memo[len(memo) if argument is None else argument] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "TUPLE1" | "TUPLE2" | "TUPLE3" | "TUPLE" | "LIST":
                stack.append(taken)
            case "APPEND" | "APPENDS":
                if type(stack[-1]) is not list:
                    raise ValueError("it appends to a non-list")
                stack[-1].extend(taken)
            case "DICT" | "SETITEM" | "SETITEMS":
                built = {} if name == "DICT" else stack.pop()
                # Hashing a container would hash all of its content.
                if type(built) is not dict or not all(type(key) in (str, int, float, bool) for key in taken[::2]):
                    raise ValueError("it has a dict with keys other than texts and numbers")
                built.update(zip(taken[::2], taken[1::2], strict=True))
                stack.append(built)
            case "GLOBAL" | "STACK_GLOBAL":
                named = " ".join(taken) if argument is None else argument
                if (admitted := _ADMITTED.fullmatch(named)) is None:
                    raise ValueError(
                        f"it names {ascii(named.replace(' ', '.', 1)[:80])[1:-1]}, which a judge head does not need; "
                        "nothing was run. Only NumPy arrays, StandardScaler, LogisticRegression and Pipeline are "
                        "admitted"
                    )
                stack.append(_Object(admitted[admitted.lastindex]))
            case "REDUCE" | "NEWOBJ":
                called, args = taken
                if not isinstance(called, _Object) or called.args is not None or type(args) is not list:
                    raise ValueError("it calls a non-function")
                # Old protocols make an object in two steps.
                stack.append(_Object((args[0] if called.kind == "_reconstructor" else called).kind, args))
            case "BUILD":
                built, (state,) = stack[-1], taken
                if not isinstance(built, _Object) or built.args is None:
                    raise ValueError("it fills a non-object")
                built.state = state
                if built.kind == "NumpyArrayWrapper":  # joblib's, followed by its bytes
                    if state.get("numpy_array_alignment_bytes") is not None:
                        file.read(file.read(1)[0])
                    data = file.read(_count(state["shape"]) * _dtype(state["dtype"]).itemsize)
                    built.kind, built.args = "_frombuffer", [data, state["dtype"], state["shape"], state["order"]]
            case _ if name in _MAKES:
                stack.append(_MAKES[name]())
            case _ if _VALUES.fullmatch(name):
                stack.append(argument)
            case _:
                what = f"names the extension {argument}" if name.startswith("EXT") else f"has the instruction {name}"
                raise ValueError(f"it {what}; nothing was run")
    return stack.pop()
