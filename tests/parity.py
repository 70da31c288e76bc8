"""Assertions that greedy texts are the same, but for ties."""

from __future__ import annotations

import torch

TIE = 1e-4


def assert_same_rows(ours: torch.Tensor, plain, tie: float = TIE) -> None:
    """Compare with plain ``generate()`` row by row, token by token.

    A difference is excused only where plain's two best logits are closer than ``tie``: there the order of
    floating-point sums decides. After such a tie the texts may go separate ways.
    """
    start, tied = plain.sequences.shape[1] - len(plain.logits), False
    assert ours[:, :start].equal(plain.sequences[:, :start])
    for row in range(len(ours)):
        for i, logits in enumerate(plain.logits):
            if start + i < ours.shape[1] and ours[row, start + i] == plain.sequences[row, start + i]:
                continue
            best = logits[row].topk(2).values
            assert best[0] - best[1] < tie, (
                f"row {row}, token {i}: {ours[row, start:]} != {plain.sequences[row, start:]}"
            )
            tied = True
            break
    assert tied or ours.shape == plain.sequences.shape


def assert_lossless(target, drafting: dict, **call):
    """Return the outputs of a greedy call of plain ``generate()``, and of ours with the same text."""
    call = {"do_sample": False, "return_dict_in_generate": True, "output_logits": True} | call
    plain = target.generate(**call)
    ours = target.generate(**call, **drafting, lossy_mode="lossless")
    assert_same_rows(ours.sequences, plain)
    return plain, ours
