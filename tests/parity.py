"""Assertions that two greedy texts are the same, but for ties."""

from __future__ import annotations

import torch

TIE = 1e-4


def assert_same_text(ours: torch.Tensor, plain) -> None:
    """Compare with plain ``generate()`` token by token.

    A difference is excused only where plain's two best logits are closer than ``TIE``: there the order of
    floating-point sums decides. After such a tie the texts may go separate ways.
    """
    start = plain.sequences.shape[1] - len(plain.logits)
    for i, logits in enumerate(plain.logits):
        position = start + i
        if position < ours.shape[1] and ours[0, position] == plain.sequences[0, position]:
            continue
        best = logits[0].topk(2).values
        assert best[0] - best[1] < TIE, f"token {i} differs: {ours[0, start:]} != {plain.sequences[0, start:]}"
        return
    assert ours.shape == plain.sequences.shape


def assert_same_rows(ours: torch.Tensor, plain, tie: float = TIE) -> None:
    """Like :func:`assert_same_text`, for every row."""
    start = plain.sequences.shape[1] - len(plain.logits)
    for row in range(len(ours)):
        for i, logits in enumerate(plain.logits):
            wanted = plain.sequences[row, start + i]
            if start + i < ours.shape[1] and ours[row, start + i] == wanted:
                continue
            best = logits[row].topk(2).values
            assert best[0] - best[1] < tie, (
                f"row {row}, token {i}: {ours[row, start:]} != {plain.sequences[row, start:]}"
            )
            break
    assert ours[:, :start].equal(plain.sequences[:, :start])


def assert_lossless(target, drafting: dict, **call):
    """Return the outputs of a greedy call of plain ``generate()``, and of ours with the same text."""
    call = {"do_sample": False, "return_dict_in_generate": True, "output_logits": True} | call
    plain = target.generate(**call)
    ours = target.generate(**call, **drafting, lossy_mode="lossless")
    (assert_same_text if len(ours.sequences) == 1 else assert_same_rows)(ours.sequences, plain)
    return plain, ours
