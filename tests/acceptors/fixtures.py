"""Situations whose outcome is known, and the heads and statistics to judge it with."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import torch
from scipy import stats
from transformers.generation.candidate_generator import CandidateGenerator

from hf_lossy_assist import JudgeHead, VerifierHead
from hf_lossy_assist.acceptors import Acceptor
from hf_lossy_assist.heads import JudgeConfig, ModelIdentity, VerifierConfig
from tests.acceptors.table import Law, Row, judge_head, output_law
from tests.tiny_models import ConstantLM, constant, prompt

P = [0.34, 0.26, 0.17, 0.12, 0.08, 0.03]
Q = [0.22, 0.36, 0.06, 0.16, 0.05, 0.15]
V = len(P)


def law_of(do_sample: bool) -> tuple[Law, torch.nn.Module]:
    target = constant(P)
    weight, h = (t.detach().double().numpy() for t in (target.lm_head.weight, target.h))
    return Law(np.array(P), np.array(Q), weight, h, do_sample), target


ROWS_OF_TEXT = 50
"""Of a sample of thousands of tokens: as many rows share the forwards that one text would need for itself."""


def generate(target, draft, tokens, rule, do_sample, gamma=4, rows=1):
    """Return a run of ``tokens`` in each row; ``rule`` is a table's row, or a mode, or a mode and its settings."""
    ids = torch.ones(rows, 1, dtype=torch.long)
    mode, config = rule if isinstance(rule, tuple) else (rule, {})
    keywords = rule.keywords(target, draft) if isinstance(rule, Row) else {"lossy_mode": mode, "lossy_config": config}
    keywords["lossy_config"] = {"seed": 3, **keywords["lossy_config"]}
    return target.generate(
        input_ids=ids, attention_mask=ids, assistant_model=draft, num_assistant_tokens=gamma, **keywords,
        do_sample=do_sample, top_k=0, max_new_tokens=tokens, return_dict_in_generate=True,
    )  # fmt: skip


class Repeating(CandidateGenerator):
    """Drafts one token over and over; reports no distribution, or that it was certain."""

    def __init__(self, token: int, reports: bool = False) -> None:
        self.token, self.reports = token, reports

    def get_candidates(self, input_ids, **kwargs):
        tokens = torch.full((1, 4), self.token)
        logits = torch.nn.functional.one_hot(tokens, V).float().log() if self.reports else None
        return torch.cat([input_ids, tokens], dim=1), logits

    def update_candidate_strategy(self, input_ids, scores, num_matches):
        pass


def chi_square_p(counts: np.ndarray, law: np.ndarray) -> float:
    possible = law > 1e-12
    assert counts[~possible].sum() == 0, "a token of probability zero came out"
    if possible.sum() == 1:
        return 1.0
    return stats.chisquare(counts[possible], counts.sum() * law[possible] / law[possible].sum()).pvalue


def pooled(counts: np.ndarray, law: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Put cells that are expected fewer than five times together into one, where chi-square means little."""
    often = law * counts.sum() >= 5
    return tuple(np.append(x[often], x[~often].sum()) for x in (counts, law))


def assert_leaves(row: Row, law: Law, tokens: np.ndarray) -> None:
    """Compare one token of many positions with what leaves them by a rule's oracle."""
    counts, expected = np.bincount(tokens, minlength=len(law.p)), output_law(row, law)
    if "dropout" in row.config:  # the oracle is itself a simulation: compare within both errors
        assert np.abs(counts / len(tokens) - expected).max() < 4.5 * math.sqrt(0.25 / len(tokens) + 0.25 / 40_000)
    else:
        assert chi_square_p(counts, expected) > 1e-5


def needs_no_distribution(row: Row) -> bool:
    rule = row.rule(constant(P))
    return row.mode == "lossless" or "draft_or_point_mass" in rule.needs or (rule.adds_lossless and not rule.needs)


def answers(
    rule: Acceptor, target: ConstantLM, rows: int, columns: int, generator: torch.Generator
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return logits ``(rows, columns, V)`` that favour one token, and what the rule reads besides."""
    logits = 2 * torch.randn(rows, columns, V, generator=generator)
    others = {"hidden": torch.randn(rows, columns, target.h.numel(), generator=generator)}
    if rule.dropped_heads:
        paths = logits[:, None, :-1] + torch.randn(rows, rule.num_paths, columns - 1, V, generator=generator)
        others |= {"dropped_logits": paths, "centroid_logits": paths.mean(1)}
    return logits, others


def law_of_texts(
    model: torch.nn.Module, prompt: list[int], k: int, tokens: int, temperature: float = 1.0
) -> tuple[torch.Tensor, np.ndarray]:
    """Return all texts ``(N, tokens)`` of the ``k`` likeliest tokens after every prefix, and their probabilities."""
    texts, law = torch.tensor([prompt]), torch.ones(1, dtype=torch.float64)
    for _ in range(tokens):
        with torch.no_grad():
            top = (model(texts).logits[:, -1] / temperature).topk(k)
        law = (law[:, None] * top.values.double().softmax(-1)).flatten()
        texts = torch.cat([texts.repeat_interleave(k, 0), top.indices.reshape(-1, 1)], dim=1)
    return texts[:, len(prompt) :], law.numpy()


def count_texts(sequences: torch.Tensor, texts: torch.Tensor) -> np.ndarray:
    """Return how often each text came out; no other may."""
    found = Counter(map(tuple, sequences.tolist()))
    counts = np.array([found[tuple(text)] for text in texts.tolist()])
    assert counts.sum() == len(sequences)
    return counts


def assert_texts_have_the_law(
    model: torch.nn.Module, prompt: list[int], sequences: torch.Tensor, k: int, tokens: int, temperature: float
) -> None:
    """Compare drawn ``sequences``, which begin with the prompt, with :func:`law_of_texts`: chi-square at p > 1e-4."""
    texts, law = law_of_texts(model, prompt, k, tokens, temperature)
    assert chi_square_p(*pooled(count_texts(sequences[:, len(prompt) :], texts), law)) > 1e-4


def assert_second_token_has_the_law(model, drafting: dict, temperature: float, rows: int) -> None:
    """Draw a token of four after one that is always the same, so that there is a draft: chi-square at p > 1e-5."""
    with torch.no_grad():
        best = int(model(input_ids=prompt()).logits[0, -1].argmax())
        kept = (model(input_ids=torch.cat([prompt(), torch.tensor([[best]])], 1)).logits[0, -1] / temperature).topk(4)
    torch.manual_seed(0)  # for drafters that draw by themselves
    out = model.generate(
        prompt(), num_return_sequences=rows, **drafting, num_assistant_tokens=2, lossy_mode="lossless", do_sample=True,
        lossy_config={"seed": 0}, top_k=0, temperature=temperature, max_new_tokens=3, eos_token_id=None,
        prefix_allowed_tokens_fn=lambda _, ids: [best] if len(ids) == 7 else kept.indices.tolist(),
        return_dict_in_generate=True,
    )  # fmt: skip
    counts = np.bincount(out.sequences[:, 8].numpy(), minlength=model.config.get_text_config().vocab_size)
    assert 0.1 * rows < sum(row.trace[1] == "accepted" for row in out.lossy_stats.rows) < rows
    assert chi_square_p(counts[kept.indices], kept.values.double().softmax(-1).numpy()) > 1e-5


class TellingLM(ConstantLM):
    """A constant model whose state also says which token it has just read, in the last V units."""

    def forward(self, input_ids=None, position_ids=None, logits_to_keep=0, **kwargs):
        self.read = torch.nn.functional.one_hot(input_ids, self.config.vocab_size).float()
        handle = self.lm_head.register_forward_pre_hook(self._tell, prepend=True)
        try:
            return super().forward(input_ids, position_ids, logits_to_keep, **kwargs)
        finally:
            handle.remove()

    def _tell(self, head, args):
        state = args[0].clone()
        state[..., -self.config.vocab_size :] = self.read[:, -state.shape[1] :]
        return (state,)


def telling(law: list[float]) -> TellingLM:
    plain = constant(law)
    model = TellingLM(plain.config).eval()
    model.load_state_dict(plain.state_dict())
    model.generation_config = plain.generation_config
    with torch.no_grad():  # the law may not depend on the token
        weight = model.lm_head.weight
        weight[:, 0] += weight[:, -V:].sum(1)
        weight[:, -V:] = 0
    return model


class Simulated(VerifierHead):
    """Errs independently of the token within a class: lets acceptable tokens pass with TPR, others with FPR."""

    def rates(self, tpr: float, fpr: float) -> Simulated:
        acceptable = np.array(Q) <= np.array(P)
        self.passing = torch.tensor(np.where(acceptable, tpr, fpr))
        self.generator = torch.Generator().manual_seed(0)
        return self

    def probability(self, features):
        token = features[..., -V:].argmax(-1)
        return (torch.rand(token.shape, generator=self.generator) < self.passing[token]).float()


def verifier_head(target, draft, position="previous", bias=0.0, scale=1.0, cls=VerifierHead, seed=0):
    config = VerifierConfig(
        target=ModelIdentity.of(target), draft=ModelIdentity.of(draft), task="none", position=position, ratio=1.0
    )
    weight = scale * torch.randn(config.width, generator=torch.Generator().manual_seed(seed)) / config.width**0.5
    return cls(config, weight, bias)


def any_judge(target, draft, models="target", positions="draft", bias=0.0, seed=0, scale=1.0, **config) -> JudgeHead:
    config = JudgeConfig(
        target=ModelIdentity.of(target), draft=ModelIdentity.of(draft), task="none", models=models,
        positions=positions, **({"threshold": 0.5} | config),
    )  # fmt: skip
    weight = scale * torch.randn(config.width, generator=torch.Generator().manual_seed(seed)) / config.width**0.5
    return JudgeHead(config, weight, bias)


HEADS = {"judge": judge_head, "sprinter": verifier_head}
"""For every rule that reads a head, how to make one from a target and its draft."""
