"""What speculative decoding costs and yields, as closed forms: pure functions, no models run.

``p`` is the target, ``q`` the draft, ``alpha`` the probability that a drafted token is kept, ``gamma`` the
drafted tokens per round. Distributions are NumPy arrays or torch tensors of shape ``(..., V)`` or plain lists; what
comes back is of the same kind (lists give tensors), and numbers give a float. Whatever is out of range, or no
distribution, raises :class:`~hf_lossy_assist.LossyValueError`.
"""

from .acceptance_rates import cactus_acceptance as cactus_acceptance
from .acceptance_rates import cactus_divergence as cactus_divergence
from .acceptance_rates import cactus_output_law as cactus_output_law
from .acceptance_rates import ears_acceptance as ears_acceptance
from .acceptance_rates import ears_output_law as ears_output_law
from .acceptance_rates import ensemble_acceptance as ensemble_acceptance
from .acceptance_rates import ensemble_output_law as ensemble_output_law
from .acceptance_rates import lenience_acceptance as lenience_acceptance
from .acceptance_rates import lenience_output_law as lenience_output_law
from .acceptance_rates import lossless_acceptance as lossless_acceptance
from .acceptance_rates import lossless_output_law as lossless_output_law
from .acceptance_rates import total_variation as total_variation
from .flops import DenseDecoder as DenseDecoder
from .flops import ForwardFlops as ForwardFlops
from .flops import RoundFlops as RoundFlops
from .flops import forward_flops as forward_flops
from .flops import lossless_round_flops as lossless_round_flops
from .flops import sprinter_round_flops as sprinter_round_flops
from .flops import verifier_flops as verifier_flops
from .rounds import best_gamma as best_gamma
from .rounds import expected_speedup as expected_speedup
from .rounds import expected_tokens_per_round as expected_tokens_per_round
from .sprinter_theory import sprinter_acceptance as sprinter_acceptance
from .sprinter_theory import sprinter_expected_run_length as sprinter_expected_run_length
from .sprinter_theory import sprinter_output_law as sprinter_output_law
from .sprinter_theory import sprinter_run_length_law as sprinter_run_length_law
from .sprinter_theory import sprinter_stopping_time as sprinter_stopping_time
from .sprinter_theory import sprinter_total_variation as sprinter_total_variation
