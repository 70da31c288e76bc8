"""The training-time test of EAGLE-3 heads, against loops that follow the definition."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import embedding

from hf_lossy_assist.training.drafts.draft_data import collate
from hf_lossy_assist.training.drafts.draft_objective import soft_cross_entropy
from hf_lossy_assist.training.drafts.eagle3_training import Eagle3Objective, new_eagle3
from tests.tiny_models import VOCAB, tiny
from tests.training.drafts.fixtures import data


@pytest.fixture
def batch(texts):
    return collate([data(texts)[0][2]])


def objective(ids: torch.Tensor, steps: int = 3, decay: float = 0.5) -> Eagle3Objective:
    torch.manual_seed(3)
    target = tiny("llama")
    head = new_eagle3(target, ids, torch.randn(50, 96))
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    return Eagle3Objective(head, target, steps, decay)


def frequent(batch) -> torch.Tensor:
    return batch["ids"][batch["answers"]].bincount().topk(6).indices


@torch.no_grad()
def naive(objective: Eagle3Objective, batch) -> tuple[float, torch.Tensor]:
    """Return loss and matches of a batch, drafting from every slot of every text by itself, as decoding does."""
    head, target = objective.head, objective.target
    embeddings = head.embeddings(target)
    total = weight = 0.0
    right = torch.zeros(*batch["ids"].shape, objective.steps, dtype=torch.bool)
    for row, (ids, answers) in enumerate(zip(batch["ids"], batch["answers"], strict=True)):
        length = int(answers.nonzero()[-1]) + 1
        for slot in range(length - 2):
            cache = head.new_cache()
            g = head.fuse(batch["states"][row : row + 1, : slot + 1].float())
            tokens = embedding(ids[None, 1 : slot + 2], embeddings)
            positions = torch.arange(slot + 1)[None]
            mask = torch.ones(slot + 1, slot + 1, dtype=torch.bool).tril()[None, None]
            state = head(tokens, g, positions, mask, cache)[:, -1:]
            for step in range(objective.steps):
                predicted = slot + step + 2
                if predicted >= length:
                    break
                if step:
                    token = embedding(ids[None, slot + step + 1 : slot + step + 2], embeddings)
                    state = head(token, state, torch.tensor([[slot + step]]), None, cache)
                if answers[predicted]:
                    logits = target.lm_head(batch["last"][row, predicted - 1].float())[head.target_ids]
                    q = head.logits(state)[0, 0]
                    total -= objective.decay**step * float(logits.softmax(-1) @ q.log_softmax(-1))
                    weight += objective.decay**step
                    right[row, slot + 1, step] = head.target_ids[q.argmax()] == ids[predicted]
    return total / weight, right


def test_the_loss_and_the_matches_are_those_of_drafting_step_by_step(batch):
    # Of few tokens, a random head gets some right.
    trained = objective(frequent(batch))
    loss, right = naive(trained, batch)
    assert trained(**batch).item() == pytest.approx(loss, rel=1e-5)
    assert torch.equal(trained.matches(**batch, gamma=3), right)
    assert right.any()


def test_gradients_are_those_of_autograd():
    torch.manual_seed(0)
    states, weight = torch.randn(600, 8, requires_grad=True), torch.randn(30, 8, requires_grad=True)
    p = torch.randn(600, 30).softmax(-1) * torch.rand(600, 1)
    expected = -(p * (states @ weight.T).log_softmax(-1)).sum() / 7
    (soft_cross_entropy(states, weight, p.__getitem__) / 7).backward()
    assert soft_cross_entropy(states, weight, p.__getitem__).item() / 7 == pytest.approx(expected.item(), rel=1e-5)
    for mine, theirs in zip((states.grad, weight.grad), torch.autograd.grad(expected, (states, weight)), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_new_head_drafts_the_most_frequent_tokens_and_fits_its_target(texts):
    target, (training, _) = tiny("llama"), data(texts)
    counts = torch.zeros(VOCAB, dtype=torch.long)
    for text in training.texts:
        for token in text.ids[text.answer :]:
            counts[token] += 1
    ids = training.frequent(20, VOCAB)
    rare = [i for i in range(VOCAB) if i not in ids.tolist()]
    assert counts[ids].min() >= counts[rare].max()
    head = new_eagle3(target, ids, training.some_states())
    head.check(target)
    assert head.target_ids.tolist() == sorted(ids.tolist())
    assert head.config.layers_of(target) == (0, 1, 2)
    torch.testing.assert_close(head.lm_head.weight, target.lm_head.weight[head.target_ids])


@pytest.mark.parametrize(("attention_head", "distance"), [(0, 0), (3, 1)])
def test_the_first_attention_heads_of_a_new_head_look_at_the_latest_tokens(attention_head, distance):
    """What one reads changes most with the embedding of the token that it looks at."""
    torch.manual_seed(0)
    states = torch.randn(50, 96) + 5 * torch.randn(96)
    head = new_eagle3(tiny("llama"), torch.arange(40), states)
    heard = []
    layer = head.layers[0].self_attn
    layer.o_proj.register_forward_pre_hook(lambda module, args: heard.append(args[0]))
    size, length = layer.head_dim, 12
    g = head.fuse(states[None, :length])
    embeds = torch.randn(1, length, 32)
    effects = []
    for changed in [None, *range(length)]:
        other = embeds.clone()
        if changed is not None:
            other[0, changed] = -other[0, changed]
        head(other, g, torch.arange(length)[None], None, head.new_cache())
        read = heard[-1][0, -1, attention_head * size : (attention_head + 1) * size]
        effects.append(read if changed is None else (read - effects[0]).norm().item())
    assert effects[1:].index(max(effects[1:])) == length - 1 - distance


def test_what_a_new_head_reads_is_even_where_the_states_are_not():
    """States with entries that are a hundred times as large as others, and hardly change."""
    torch.manual_seed(0)
    scale = torch.ones(96)
    scale[::20] = 100.0
    states = scale * (torch.randn(400, 96) + 3 * (scale > 1))
    head = new_eagle3(tiny("llama"), torch.arange(40), states)
    with torch.no_grad():
        g = head.fuse(states)
    assert 0.5 < g[:, 1:].std(0).min() < g[:, 1:].std(0).max() < 2
    assert g[:, 1:].mean(0).abs().max() < 0.5 < 1 < g[:, 0].mean()


def test_a_training_begins_with_single_steps_and_measures_without_dropout(batch):
    plain, trained, single = objective(frequent(batch)), objective(frequent(batch)), objective(frequent(batch), steps=1)
    trained.single, trained.dropout = 0.5, 0.3
    trained.eval()
    for done, expected in ((0.0, single), (0.4, single), (0.5, plain), (1.0, plain)):
        assert torch.equal(trained(**batch, done=done), expected(**batch))
    trained.train()
    assert not torch.equal(trained(**batch), plain(**batch))
