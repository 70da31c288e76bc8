"""Floating-point operations of dense decoders and of speculative rounds.

An addition and a multiplication count as two. What has no matrix (norms, activations, softmax, rotations) is
left out: together below one per cent.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from ..errors import LossyUnsupportedError
from .arguments import count, number


@dataclass(frozen=True)
class ForwardFlops:
    """The operations of one forward pass, by what they are for.

    Attributes
    ----------
    blocks
        Products with the weights of the transformer blocks: attention projections and MLPs.
    attention
        Products of queries with keys and of attention weights with values.
    head
        The LM head, at every position of the input.
    embedding
        What the token embedding would cost as a product with one-hot vectors. It is a look-up, so
        :attr:`total` is without it; :attr:`published` counts it, as SPRINTER's appendix A.8 does.
    """

    blocks: int
    attention: int
    head: int
    embedding: int

    @property
    def total(self) -> int:
        """What is really computed."""
        return self.blocks + self.attention + self.head

    @property
    def published(self) -> int:
        """The accounting of the SPRINTER paper, embedding matrices included."""
        return self.total + self.embedding


@dataclass(frozen=True)
class DenseDecoder:
    """The shape of a decoder, as far as its operations depend on it.

    Attributes
    ----------
    block_weights, head_weights, embedding_weights
        Entries of the matrices of all blocks, of the LM head and of the token embedding.
    query_width
        Query heads times their width; that there may be fewer key heads (GQA) shows in ``block_weights`` only.
    windows
        For every layer, how many positions a token attends to at most; None for all before it.

    Examples
    --------
    >>> from transformers import LlamaConfig
    >>> llama = DenseDecoder.of_config(LlamaConfig(
    ...     vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
    ...     num_attention_heads=4, num_key_value_heads=2))
    >>> llama.block_weights == 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48)
    True
    """

    block_weights: int
    head_weights: int
    embedding_weights: int
    query_width: int
    windows: tuple[int | None, ...]

    @classmethod
    def of_config(cls, config: PretrainedConfig) -> DenseDecoder:
        """Return the shape of the model that a configuration describes; no weights are made."""
        if config.is_encoder_decoder:
            raise LossyUnsupportedError(
                f"`config` has to be a decoder's, but {type(config).__name__} has an encoder; pass its decoder's"
            )
        with torch.device("meta"):
            return cls.of_model(AutoModelForCausalLM.from_config(config))

    @classmethod
    def of_model(cls, model: PreTrainedModel) -> DenseDecoder:
        """Return the shape of a model. Packed (quantised) weights count as they are stored: use its config.

        Raises
        ------
        LossyUnsupportedError
            For mixtures of experts, and for layers that are not attention.
        """
        head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
        if any(parameter.ndim > 2 for parameter in model.parameters()):
            raise LossyUnsupportedError(
                f"`config` has to be a dense decoder's, but {type(model).__name__} has experts or convolutions"
            )
        matrices = (
            parameter.numel()
            for module in model.modules()
            if module is not head and not isinstance(module, nn.Embedding)
            for parameter in module.parameters(recurse=False)
            if parameter.ndim == 2
        )
        config = model.config.get_text_config(decoder=True)
        heads = config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // heads
        return cls(sum(matrices), head.weight.numel(), embedding.weight.numel(), heads * width, _windows(config))

    def forward(self, tokens: int = 1, context: int = 0) -> ForwardFlops:
        """Return the operations of a forward over ``tokens`` new tokens after ``context`` cached ones."""
        tokens, context = count("tokens", tokens), count("context", context)
        pairs = sum(_pairs(tokens, context, window) for window in self.windows)
        return ForwardFlops(
            blocks=2 * tokens * self.block_weights,
            attention=4 * self.query_width * pairs,
            head=2 * tokens * self.head_weights,
            embedding=2 * tokens * self.embedding_weights,
        )


def forward_flops(config: PretrainedConfig, tokens: int = 1, context: int = 0) -> ForwardFlops:
    """Return the operations of one forward of the dense decoder that a transformers configuration describes.

    Parameters
    ----------
    config
        Of any dense decoder: Llama and its kin, GPT-2, GPT-Neo, GPT-NeoX, … Biases are left out.
    tokens
        How many new tokens the forward reads.
    context
        How many tokens are in the cache before them.

    Raises
    ------
    LossyUnsupportedError
        For encoder–decoders, mixtures of experts, and layers that are not attention.
    LossyValueError
        For negative numbers of tokens.

    Examples
    --------
    SPRINTER's table 4 has 7.25 and 71.78 billion for 20 tokens of GPT2-Small and GPT2-XL, a ratio of about 10, and
    8.01 and 64.66 for GPT-Neo 125M and 1.3B, about 8. GPT2-Small and GPT-Neo 125M have one geometry, so its two
    figures can't both be right; this count is 10 % below the first and 19 % below the second.

    >>> from transformers import GPT2Config
    >>> small = forward_flops(GPT2Config(), tokens=20)
    >>> large = forward_flops(GPT2Config(n_embd=1600, n_layer=48, n_head=25), tokens=20)
    >>> [f"{flops.published / 1e9:.2f}" for flops in (small, large)]
    ['6.49', '65.48']
    """
    return DenseDecoder.of_config(config).forward(tokens, context)


@dataclass(frozen=True)
class RoundFlops:
    """The operations of one round.

    Attributes
    ----------
    published
        By the accounting of the SPRINTER paper, equations 5 and 6.
    actual
        What is processed.
    """

    published: float
    actual: float


def verifier_flops(hidden_size: int) -> int:
    """Return ``2·d``, the operations of a linear verifier on one hidden state.

    Examples
    --------
    >>> verifier_flops(768)
    1536
    """
    return 2 * count("hidden_size", hidden_size)


def lossless_round_flops(gamma: int, draft: float, target: float) -> RoundFlops:
    """Return the operations of a round of speculative decoding: ``γ·F_d + γ·F_t`` by the paper (equation 5).

    Actually the target reads γ + 1 tokens: the drafted ones and the last one it chose itself, whose keys and
    values it has not computed yet.

    Parameters
    ----------
    gamma
        Drafted tokens per round.
    draft, target
        Operations of one forward over one token.

    Examples
    --------
    >>> lossless_round_flops(5, draft=1.0, target=10.0)
    RoundFlops(published=55.0, actual=65.0)
    """
    gamma = count("gamma", gamma)
    draft, target = number("draft", draft, 0), number("target", target, 0)
    return RoundFlops(published=gamma * (draft + target), actual=gamma * draft + (gamma + 1) * target)


def sprinter_round_flops(
    gamma: int, draft: float, verifier: float, target: float, unseen: int | None = None
) -> RoundFlops:
    """Return the operations of a run of SPRINTER: ``γ·F_d + γ·F_v + F_t`` by the paper (equation 6).

    The paper counts one token of the target. To judge the last drafted token the target has to read every
    token that it has not seen: the γ - 1 committed ones and the one that ended the run before. So per token
    SPRINTER saves calls of the target, and its reads of the weights, but hardly operations.

    Parameters
    ----------
    gamma
        Drafted tokens per run, the last of which the target decides.
    draft, verifier, target
        Operations of one forward over one token.
    unseen
        How many tokens the target reads; γ by default.

    Examples
    --------
    >>> sprinter_round_flops(5, draft=1.0, verifier=0.0, target=10.0)
    RoundFlops(published=15.0, actual=55.0)
    """
    gamma = count("gamma", gamma)
    unseen = gamma if unseen is None else count("unseen", unseen)
    target = number("target", target, 0)
    own = gamma * (number("draft", draft, 0) + number("verifier", verifier, 0))
    return RoundFlops(published=own + target, actual=own + unseen * target)


def _pairs(tokens: int, context: int, window: int | None) -> int:
    """Return how many (query, key) pairs a causal mask leaves: the sum of ``min(i, window)`` over positions i."""

    def triangle(n: int) -> int:
        return n * (n + 1) // 2

    end = context + tokens
    pairs = triangle(end) - triangle(context)
    if window is None:
        return pairs
    return pairs - triangle(max(end - window, 0)) + triangle(max(context - window, 0))


def _windows(config: PretrainedConfig) -> tuple[int | None, ...]:
    sliding = getattr(config, "sliding_window", None)
    local = getattr(config, "window_size", None)
    # What the layers are, in the words of most configurations, or of GPT-Neo's.
    kinds = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None)
    if kinds is None:
        return (sliding,) * config.num_hidden_layers
    known = {"full_attention": None, "global": None, "sliding_attention": sliding, "local": local}
    if unknown := set(kinds) - set(known):
        raise LossyUnsupportedError(
            f"`config` has to have attention in every layer, but {type(config).__name__} has {sorted(unknown)}"
        )
    return tuple(known[kind] for kind in kinds)
