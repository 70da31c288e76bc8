"""Checked arguments: arrays, tensors and numbers in, the same kind out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import LossyValueError


def distributions(**given: Any) -> tuple[tuple[Tensor, ...], Callable[[Tensor], Any]]:
    """Return probability distributions as tensors of one shape, and a function that turns results back.

    Entries that are negative or not finite, rows that do not add up to 1, and shapes that do not fit are refused.
    """
    tensors = {}
    for name, values in given.items():
        probs = _tensor(name, values)
        if probs.ndim == 0 or probs.shape[-1] == 0:
            raise LossyValueError(f"`{name}` has to have the shape (..., V), but has the shape {tuple(probs.shape)}")
        # Half precision keeps about three digits, and a softmax over 100,000 tokens adds up its errors.
        sums = probs.double().sum(-1)
        if not bool((probs >= 0).all()) or not bool(((sums - 1).abs() <= 1e-2).all()):
            raise LossyValueError(
                f"`{name}` has to hold probabilities that add up to 1 along the last dimension, but adds up to "
                f"{sums.flatten()[:4].tolist()} with a smallest entry of {probs.min().item():g}; apply a softmax first"
            )
        tensors[name] = probs
    shapes = {name: tuple(probs.shape) for name, probs in tensors.items()}
    if len({shape[-1] for shape in shapes.values()}) > 1:
        raise LossyValueError(f"distributions have to be over one vocabulary, but have the shapes {shapes}")
    try:
        tensors_out = torch.broadcast_tensors(*tensors.values())
    except RuntimeError:
        raise LossyValueError(
            f"distributions have to have shapes that broadcast, but have the shapes {shapes}"
        ) from None
    return tensors_out, _back(*given.values())


def numbers(low: float, high: float, **given: Any) -> tuple[tuple[Tensor, ...], Callable[[Tensor], Any]]:
    """Return numbers, or arrays of them, in ``[low, high]`` as tensors, and a function that turns results back."""
    tensors = []
    for name, values in given.items():
        tensor = _tensor(name, values)
        if not bool(((tensor >= low) & (tensor <= high)).all()):
            raise LossyValueError(f"`{name}` has to lie in [{low:g}, {high:g}], but is {values!r}")
        tensors.append(tensor)
    return tuple(tensors), _back(*given.values())


def number(name: str, value: Any, low: float, high: float = float("inf")) -> float:
    """Return a single number in ``[low, high]`` as a float."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not low <= value <= high:
        raise LossyValueError(f"`{name}` has to be a number in [{low:g}, {high:g}], but is {value!r}")
    return float(value)


def count(name: str, value: Any, low: int = 0) -> int:
    """Return an integer of at least ``low``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < low:
        raise LossyValueError(f"`{name}` has to be an int >= {low}, but is {value!r}")
    return int(value)


def _tensor(name: str, values: Any) -> Tensor:
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise LossyValueError(f"`{name}` has to be a number, an array or a tensor, but is {values!r}") from error
    if tensor.is_floating_point():
        return tensor if isinstance(values, Tensor | np.ndarray) else tensor.double()
    if tensor.dtype == torch.bool or tensor.is_complex():
        raise LossyValueError(f"`{name}` has to hold real numbers, but has the type {tensor.dtype}")
    return tensor.double()


def _back(*given: Any) -> Callable[[Tensor], Any]:
    if any(isinstance(value, Tensor) for value in given):
        return lambda result: result
    if any(isinstance(value, np.ndarray) for value in given):
        return lambda result: result.numpy()[()]
    if all(isinstance(value, int | float | np.number) for value in given):
        return Tensor.item
    return lambda result: result
