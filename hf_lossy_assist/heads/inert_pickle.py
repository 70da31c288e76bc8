"""Reading foreign pickles without running anything in them."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import math
import pickle
import re
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ..errors import LossyValueError

_ESTIMATORS = {
    "StandardScaler": ("sklearn.preprocessing._data", "sklearn.preprocessing.data"),
    "LogisticRegression": ("sklearn.linear_model._logistic", "sklearn.linear_model.logistic"),
    "Pipeline": ("sklearn.pipeline",),
}
_MULTIARRAY = ("numpy._core.multiarray", "numpy.core.multiarray")
_NUMERIC = ("numpy._core.numeric", "numpy.core.numeric")
_COPYREG = ("copyreg", "copy_reg")

# What may be named in a pickle, and what it is taken for. Nothing of it is ever imported or called.
_ADMITTED: Mapping[tuple[str, str], str] = {
    **{(module, name): name for name, modules in _ESTIMATORS.items() for module in modules},
    **{(module, "_reconstruct"): "array" for module in _MULTIARRAY},
    **{(module, "scalar"): "scalar" for module in _MULTIARRAY},
    **{(module, "_frombuffer"): "buffer" for module in _NUMERIC},
    **{(module, "_reconstructor"): "instance" for module in _COPYREG},
    **{(module, "object"): "object" for module in ("builtins", "__builtin__")},
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): "dtype",
    ("_codecs", "encode"): "encode",
    ("joblib.numpy_pickle", "NumpyArrayWrapper"): "joblib",
}

_DECOMPRESS: Mapping[bytes, Callable[[bytes], bytes]] = {
    b"\x1f\x8b": gzip.decompress,
    b"\x78": zlib.decompress,
    b"BZ": bz2.decompress,
    b"\xfd7zXZ": lzma.decompress,
    b"]\x00": lzma.decompress,
}


class Inert:
    """What stands where a pickle wanted an object: the arguments and the state that it would have got.

    Attributes
    ----------
    kind
        What the object would have been.
    args
        What its constructor would have been called with.
    state
        What it would have been filled with, None where with nothing.
    """

    kind: ClassVar[str]

    def __init__(self, *args: Any) -> None:
        self.args = args
        self.state: Any = None

    def __new__(cls, *args: Any) -> Inert:
        instance = super().__new__(cls)
        instance.args, instance.state = args, None
        return instance

    def __setstate__(self, state: Any) -> None:
        self.state = state

    @property
    def what(self) -> str:
        """The kind; for objects that an old protocol makes in two steps, that of the object."""
        if self.kind == "instance" and self.args and isinstance(self.args[0], type):
            return getattr(self.args[0], "kind", self.kind)
        return self.kind


def read(path: Path) -> Any:
    """Return what a pickle or a joblib file holds: plain containers and values, and :class:`Inert` for the rest.

    A pickle is a program. Of this one only those instructions are followed that build containers; every function
    or class that it names becomes an inert stand-in if it belongs to NumPy arrays or to the scikit-learn estimators
    of a judge head, and is an error otherwise.

    Raises
    ------
    LossyValueError
        When the file is no pickle, is damaged, or names anything else.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "head.pkl"
    >>> _ = path.write_bytes(pickle.dumps({"mean": np.array([1.5, 2.0]), "thr": 0.25}))
    >>> found = read(path)
    >>> found["thr"], to_array("mean", found["mean"])
    (0.25, array([1.5, 2. ]))
    >>> _ = path.write_bytes(b"cos\\nsystem\\n(S'echo hello'\\ntR.")
    >>> read(path)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    hf_lossy_assist.errors.LossyValueError: ... it names os.system, which a judge head has no use for; ...
    """
    content = path.read_bytes()
    try:
        decompress = next((f for magic, f in _DECOMPRESS.items() if content.startswith(magic)), bytes)
        return _InertUnpickler(io.BytesIO(decompress(content))).load()
    except Exception as error:  # a damaged pickle can fail in any way
        raise LossyValueError(f"{str(path)!r} can't be read as a pickle: {error}") from error


class _InertUnpickler(pickle._Unpickler):
    # In Python rather than C, as joblib's: the file has to stand where an array's bytes begin.

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        # New classes for each file, so that no file can leave anything behind for the next.
        bases = {"joblib": type("_Joblib", (_JoblibArray,), {"file": file})}
        self._classes = {
            kind: type(kind, (bases.get(kind, Inert),), {"kind": kind}) for kind in set(_ADMITTED.values())
        }

    def find_class(self, module: str, name: str) -> Any:
        kind = _ADMITTED.get((module, name))
        if kind is None:
            raise pickle.UnpicklingError(
                f"it names {module}.{name}, which a judge head has no use for; nothing of it was run. Only NumPy "
                "arrays, StandardScaler, LogisticRegression and Pipeline are admitted"
            )
        return self._classes[kind]

    def get_extension(self, code: int) -> Any:
        raise pickle.UnpicklingError(f"it names the extension {code}; nothing of it was run")


class _JoblibArray(Inert):
    # joblib writes the bytes of an array right behind the object that describes it.

    file: ClassVar[io.BytesIO]

    def __setstate__(self, state: Any) -> None:
        self.state = state
        dtype = _dtype(state["dtype"])
        if state.get("numpy_array_alignment_bytes") is not None:
            self.file.read(self.file.read(1)[0])
        self.content = self.file.read(math.prod(state["shape"]) * dtype.itemsize)


def to_array(argument: str, value: Any) -> np.ndarray:
    """Return the numbers in what :func:`read` returned, as float64.

    Raises
    ------
    LossyValueError
        When ``value`` is no array of numbers.
    """
    try:
        numbers = _ARRAYS[value.what](value) if isinstance(value, Inert) else value
        return np.array(numbers, dtype=np.float64)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise LossyValueError(f"`{argument}` in the pickle has to be an array of numbers: {error!r}") from error


def _reconstructed(value: Inert) -> np.ndarray:
    _, shape, dtype, fortran, data = value.state
    return _from_bytes(data, dtype, shape, "F" if fortran else "C")


def _from_joblib(value: Any) -> np.ndarray:
    return _from_bytes(value.content, value.state["dtype"], value.state["shape"], value.state["order"])


def _from_bytes(data: Any, dtype: Inert, shape: tuple[int, ...], order: str) -> np.ndarray:
    # Protocols before 3 have no bytes and call a codec for them.
    raw = data.args[0].encode("latin1") if isinstance(data, Inert) else data
    return np.frombuffer(raw, _dtype(dtype)).reshape(shape, order=order)


def _dtype(value: Inert) -> np.dtype:
    code, byte_order = value.args[0], value.state[1]
    if not re.fullmatch(r"[fiu][1248]|b1", code) or byte_order not in "<>=|":
        raise TypeError(f"an array of dtype {byte_order}{code}")
    return np.dtype(byte_order + code)


_ARRAYS: Mapping[str, Callable[[Any], np.ndarray]] = {
    "array": _reconstructed,
    "buffer": lambda value: _from_bytes(*value.args),
    "scalar": lambda value: _from_bytes(value.args[1], value.args[0], (), "C"),
    "joblib": _from_joblib,
}
