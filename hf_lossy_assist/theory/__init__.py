"""What speculative decoding costs and yields, as closed forms: pure functions, no models run.

``p`` is the target, ``q`` the draft, ``alpha`` the probability that a drafted token is kept, ``gamma`` the
drafted tokens per round. Distributions are NumPy arrays or torch tensors of shape ``(..., V)`` or plain lists; what
comes back is of the same kind (lists give tensors), and numbers give a float. Whatever is out of range, or no
distribution, raises :class:`~hf_lossy_assist.LossyValueError`.
"""

from .acceptance_rates import (
    ears_acceptance,
    ears_output_law,
    ensemble_acceptance,
    ensemble_output_law,
    lenience_acceptance,
    lenience_output_law,
    lossless_acceptance,
    lossless_output_law,
    total_variation,
)
from .flops import (
    DenseDecoder,
    ForwardFlops,
    RoundFlops,
    forward_flops,
    lossless_round_flops,
    sprinter_round_flops,
    verifier_flops,
)
from .rounds import best_gamma, expected_speedup, expected_tokens_per_round
from .sprinter_theory import (
    sprinter_acceptance,
    sprinter_expected_run_length,
    sprinter_output_law,
    sprinter_run_length_law,
    sprinter_stopping_time,
    sprinter_total_variation,
)

__all__ = [
    "DenseDecoder",
    "ForwardFlops",
    "RoundFlops",
    "best_gamma",
    "ears_acceptance",
    "ears_output_law",
    "ensemble_acceptance",
    "ensemble_output_law",
    "expected_speedup",
    "expected_tokens_per_round",
    "forward_flops",
    "lenience_acceptance",
    "lenience_output_law",
    "lossless_acceptance",
    "lossless_output_law",
    "lossless_round_flops",
    "sprinter_acceptance",
    "sprinter_expected_run_length",
    "sprinter_output_law",
    "sprinter_round_flops",
    "sprinter_run_length_law",
    "sprinter_stopping_time",
    "sprinter_total_variation",
    "total_variation",
    "verifier_flops",
]
