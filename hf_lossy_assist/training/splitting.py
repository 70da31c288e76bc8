"""Training and validation sets that share no prompt."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import GroupShuffleSplit

from ..errors import LossyValueError

_DRAWS = 200


def validation_mask(
    labels: NDArray[np.bool_], prompts: NDArray[np.int64], *, share: float = 0.1, seed: int = 0
) -> NDArray[np.bool_]:
    """Choose validation prompts at random, and return which tokens are theirs.

    Garipov et al. 2025 (AutoJudge), appendix B: all tokens of a prompt go to one side. A draw that leaves a side
    with one class only is thrown away.

    Parameters
    ----------
    labels
        ``(N,)`` classes of the tokens.
    prompts
        ``(N,)`` which prompt each token is of.
    share
        Part of the prompts to validate on; at least one prompt.
    seed
        Of the draw.

    Returns
    -------
    ndarray
        ``(N,)`` bool, True for validation.

    Raises
    ------
    LossyValueError
        When no draw leaves both classes on both sides.

    Examples
    --------
    >>> import numpy as np
    >>> prompts = np.repeat(np.arange(20), 3)
    >>> mask = validation_mask(np.arange(60) % 3 == 0, prompts)
    >>> len(np.unique(prompts[mask])), len(set(prompts[mask]) & set(prompts[~mask]))
    (2, 0)
    """
    draws = GroupShuffleSplit(n_splits=_DRAWS, test_size=share, random_state=seed)
    for train, validation in draws.split(labels, groups=prompts):
        if all(labels[side].any() and not labels[side].all() for side in (train, validation)):
            mask = np.zeros(len(labels), dtype=bool)
            mask[validation] = True
            return mask
    positive, negative = (len(np.unique(prompts[labels == label])) for label in (True, False))
    raise LossyValueError(
        "`data` has to have tokens of both classes in the training and in the validation prompts, but of "
        f"{len(np.unique(prompts))} prompts {positive} have tokens of one class and {negative} of the other; "
        "mine more prompts"
    )
