"""Foreign pickles, read as data: an interpreter of those instructions that build containers.

A pickle is a program, and Python's unpickler runs it: even with a list of allowed classes it allocates what a few bytes
tell it to, and nests as deep as they say. Here the standard library only takes the program apart
(:func:`pickletools.genops`), and :class:`_Interpreter` says what its instructions mean; nothing is imported, called,
hashed or descended into on the way. So the work is bounded by the file's size and the number of its instructions.
"""

from __future__ import annotations

import bz2
import io
import lzma
import math
import pickletools
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import LossyValueError

MOST_BYTES = 1 << 25
"""The largest file, packed or unpacked; a head for two states of 16,384 numbers takes a megabyte."""

MOST_INSTRUCTIONS = 200_000
MOST_NUMBERS = 1 << 20
"""The most numbers in one array."""

_ESTIMATORS = {
    "StandardScaler": ("sklearn.preprocessing._data", "sklearn.preprocessing.data"),
    "LogisticRegression": ("sklearn.linear_model._logistic", "sklearn.linear_model.logistic"),
    "Pipeline": ("sklearn.pipeline",),
}
_MULTIARRAY = ("numpy._core.multiarray", "numpy.core.multiarray")
_NUMERIC = ("numpy._core.numeric", "numpy.core.numeric")

# What may be named in a pickle, and what it is taken for.
_ADMITTED: Mapping[tuple[str, ...], str] = {
    **{(module, name): name for name, modules in _ESTIMATORS.items() for module in modules},
    **{(module, "_reconstruct"): "array" for module in _MULTIARRAY},
    **{(module, "scalar"): "scalar" for module in _MULTIARRAY},
    **{(module, "_frombuffer"): "buffer" for module in _NUMERIC},
    **{(module, "_reconstructor"): "instance" for module in ("copyreg", "copy_reg")},
    **{(module, "object"): "object" for module in ("builtins", "__builtin__")},
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): "dtype",
    ("_codecs", "encode"): "encode",
    ("joblib.numpy_pickle", "NumpyArrayWrapper"): "joblib",
}

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES = {
    *_CONSTANTS,
    *"INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING UNICODE".split(),
    *"SHORT_BINUNICODE BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8".split(),
}


@dataclass(frozen=True)
class _Named:
    """A function or class that a pickle names."""

    kind: str


@dataclass(eq=False)
class StandIn:
    """An object that a pickle wanted to make: its class or kind of array, and what it would have been made from.

    ``args`` are its constructor's, ``state`` is what it would have been filled with, and ``data`` the bytes behind it
    in a joblib file.
    """

    kind: str
    args: list[Any]
    state: Any = None
    data: bytes = b""


def read(path: Path) -> Any:
    """Return what a pickle or a joblib file holds: containers and values, and :class:`StandIn` for the rest.

    Tuples come as lists. Every function or class that is named has to belong to NumPy arrays or to the scikit-learn
    estimators of a judge head. A file that is too large, no pickle, damaged, or names anything else is refused.
    """
    try:
        if (size := path.stat().st_size) > MOST_BYTES:
            raise ValueError(f"it has {size:,} bytes, and a judge head has no more than {MOST_BYTES:,}")
        return _Interpreter(io.BytesIO(_unpacked(path.read_bytes()))).run()
    except Exception as error:  # a damaged pickle can fail in any way
        reason = str(error)[:300] or type(error).__name__
        raise LossyValueError(f"{str(path)!r} can't be read as a pickle: {reason}") from error


def _unpacked(content: bytes) -> bytes:
    unpackers: Mapping[bytes, Callable[[], Any]] = {
        b"\x1f\x8b": lambda: zlib.decompressobj(wbits=31),
        b"\x78": zlib.decompressobj,
        b"BZ": bz2.BZ2Decompressor,
        b"\xfd7zXZ": lambda: lzma.LZMADecompressor(memlimit=2 * MOST_BYTES),
        b"]\x00": lambda: lzma.LZMADecompressor(memlimit=2 * MOST_BYTES),
    }
    make = next((make for magic, make in unpackers.items() if content.startswith(magic)), None)
    if make is None:
        return content
    unpacked = make().decompress(content, MOST_BYTES + 1)
    if len(unpacked) > MOST_BYTES:
        raise ValueError(f"unpacked it has more than the {MOST_BYTES:,} bytes that a judge head has at most")
    return unpacked


class _Interpreter:
    """The stack and the memo of one pickle, and what its instructions do to them."""

    def __init__(self, file: io.BytesIO) -> None:
        self._file = file
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        for count, (instruction, argument, _) in enumerate(pickletools.genops(self._file)):
            if count == MOST_INSTRUCTIONS:
                raise ValueError(f"it has more than the {MOST_INSTRUCTIONS:,} instructions that a judge head needs")
            self._follow(instruction.name, argument)
        return self._stack.pop()

    def _follow(self, instruction: str, argument: Any) -> None:
        stack = self._stack
        match instruction:
            case "PROTO" | "FRAME" | "STOP":
                pass
            case _ if instruction in _VALUES:
                stack.append(_CONSTANTS.get(instruction, argument))
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_LIST" | "EMPTY_TUPLE":
                stack.append([])
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(self._pop(int(instruction[-1])))
            case "MARK":
                self._marks.append(len(stack))
            case "LIST" | "TUPLE":
                stack.append(self._pop_to_mark())
            case "DICT":
                items = self._pop_to_mark()
                stack.append({})
                self._set(items)
            case "APPEND":
                self._extend(self._pop(1))
            case "APPENDS":
                self._extend(self._pop_to_mark())
            case "SETITEM":
                self._set(self._pop(2))
            case "SETITEMS":
                self._set(self._pop_to_mark())
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                self._memo[argument] = stack[-1]
            case "MEMOIZE":
                self._memo[len(self._memo)] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(self._memo[argument])
            case "GLOBAL":
                self._name(*argument.split(" ", 1))
            case "STACK_GLOBAL":
                self._name(*self._pop(2))
            case "REDUCE" | "NEWOBJ":
                self._make(*self._pop(2))
            case "BUILD":
                self._fill(*self._pop(1))
            case "EXT1" | "EXT2" | "EXT4":
                raise ValueError(f"it names the extension {argument}; nothing of it was run")
            case _:
                raise ValueError(f"it has the instruction {instruction}; nothing of it was run")

    def _pop(self, n: int) -> list[Any]:
        if n > len(self._stack):
            raise ValueError("it takes more values than it has")
        at = len(self._stack) - n
        popped = self._stack[at:]
        del self._stack[at:]
        return popped

    def _pop_to_mark(self) -> list[Any]:
        return self._pop(max(len(self._stack) - self._marks.pop(), 0))

    def _extend(self, items: list[Any]) -> None:
        if type(self._stack[-1]) is not list:
            raise ValueError("it appends to something that is no list")
        self._stack[-1].extend(items)

    def _set(self, items: list[Any]) -> None:
        keys, values = items[::2], items[1::2]
        # Containers would be hashed with all that is in them.
        if type(self._stack[-1]) is not dict or not all(type(key) in (str, int, float, bool) for key in keys):
            raise ValueError("it has a dict with keys other than texts and numbers")
        self._stack[-1].update(zip(keys, values, strict=True))

    def _name(self, module: Any, name: Any) -> None:
        if type(module) is not str or type(name) is not str or (module, name) not in _ADMITTED:
            named = ascii(f"{module}.{name}"[:80])[1:-1]
            raise ValueError(
                f"it names {named}, which a judge head has no use for; nothing of it was run. Only NumPy arrays, "
                "StandardScaler, LogisticRegression and Pipeline are admitted"
            )
        self._stack.append(_Named(_ADMITTED[module, name]))

    def _make(self, named: Any, args: Any) -> None:
        if not isinstance(named, _Named) or type(args) is not list:
            raise ValueError("it calls something that is no function")
        # Old protocols make an object in two steps.
        from_class = named.kind == "instance" and args and isinstance(args[0], _Named)
        self._stack.append(StandIn(args[0].kind if from_class else named.kind, args))

    def _fill(self, state: Any) -> None:
        built = self._stack[-1]
        if not isinstance(built, StandIn):
            raise ValueError("it fills something that is no object")
        built.state = state
        if built.kind == "joblib":
            # The bytes of an array stand right behind the object that describes it.
            if state.get("numpy_array_alignment_bytes") is not None:
                self._file.read(self._file.read(1)[0])
            built.data = self._file.read(_count(state["shape"]) * _dtype(state["dtype"]).itemsize)


def to_array(argument: str, value: Any) -> np.ndarray:
    """Return the numbers in what :func:`read` returned, as float64: one, an array, or a list of numbers."""
    try:
        if type(value) is list:
            if not all(type(x) in (int, float) or isinstance(x, StandIn) for x in value):
                raise TypeError("a list of other things")
            return np.array([_number(x) for x in value], dtype=np.float64)
        return _numbers(value) if isinstance(value, StandIn) else np.array(_number(value))
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
        raise LossyValueError(f"`{argument}` has to be an array of numbers: {type(error).__name__}, {error}") from error


def _number(value: Any) -> float:
    if isinstance(value, StandIn):
        return _numbers(value).item()
    if type(value) not in (int, float):
        raise TypeError(f"a {type(value).__name__}")
    return float(value)


def _numbers(value: StandIn) -> np.ndarray:
    if value.kind == "array":
        _, shape, dtype, fortran, data = value.state
        return _from_bytes(data, dtype, shape, "F" if fortran else "C")
    if value.kind == "buffer":
        return _from_bytes(*value.args)
    if value.kind == "scalar":
        return _from_bytes(value.args[1], value.args[0], [], "C")
    if value.kind == "joblib":
        return _from_bytes(value.data, value.state["dtype"], value.state["shape"], value.state["order"])
    raise TypeError(f"a {value.kind}")


def _from_bytes(data: Any, dtype: Any, shape: Any, order: str) -> np.ndarray:
    # Protocols before 3 have no bytes and call a codec for them.
    raw = data.args[0].encode("latin1") if isinstance(data, StandIn) else data
    _count(shape)
    return np.frombuffer(raw, _dtype(dtype)).reshape(shape, order=order).astype(np.float64)


def _count(shape: Any) -> int:
    if type(shape) is not list or len(shape) > 2 or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError("an array of a strange shape")
    if max(count := math.prod(shape), *shape, 0) > MOST_NUMBERS:
        raise ValueError(f"an array of more numbers than the {MOST_NUMBERS:,} that a judge head has at most")
    return count


def _dtype(value: Any) -> np.dtype:
    code, byte_order = value.args[0], value.state[1]
    if not re.fullmatch(r"[fiu][1248]|b1", code) or byte_order not in ("<", ">", "=", "|"):
        raise TypeError(f"an array of dtype {byte_order}{code}"[:60])
    return np.dtype(byte_order + code)
