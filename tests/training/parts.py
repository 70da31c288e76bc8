"""Tiny random models with a tokenizer and a task, so that answers depend on few tokens."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from hf_lossy_assist.compat.inputs import ending_tokens
from hf_lossy_assist.pairs import Pair
from hf_lossy_assist.tasks import Example, Task
from hf_lossy_assist.training.choice import DraftArgmax
from hf_lossy_assist.training.judge_labels import Found, JudgeLabels, JudgeMiner, Searches
from hf_lossy_assist.training.labelling import Labelling, mine
from hf_lossy_assist.training.writing import LocalWriter, Prompt, ResponseLimits
from tests.tiny_models import VOCAB, noisy_copy, tiny

# Random models hardly ever say one given token; with this many ends, most responses end by themselves.
EOS = [2, 11, 23, 37, 41, 53]


def word_tokenizer(size: int = VOCAB) -> PreTrainedTokenizerFast:
    """Return a tokenizer of words w0, w1, …; the first three are special."""
    words = ["<pad>", "<s>", "</s>", *(f"w{i}" for i in range(3, size))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>")


class Checksum(Task):
    """The answer is the sum of the words' numbers, as far as 3 divides them, modulo something.

    Parameters
    ----------
    modulus
        So many answers there are.
    silent
        Texts whose first word's number is below this state no answer.
    """

    name = "checksum"

    def __init__(self, modulus: int = 2, silent: int = 5) -> None:
        self.modulus = modulus
        self.silent = silent

    def examples(self, split: str, n: int) -> list[Example]:
        draw = random.Random(split)
        return [
            Example(" ".join(f"w{draw.randrange(3, VOCAB)}" for _ in range(draw.randint(1, 9))), "0") for _ in range(n)
        ]

    def extract_answer(self, text: str) -> str | None:
        numbers = [int(word[1:]) for word in text.split() if word.startswith("w")]
        if not numbers or numbers[0] < self.silent:
            return None
        return str(sum(number for number in numbers if number % 3 == 0) % self.modulus)


class Letters(Checksum):
    """Short questions whose answer is how many letters a response has, modulo something; any response has one."""

    name = "letters"

    def __init__(self, modulus: int = 2) -> None:
        super().__init__(modulus)

    def examples(self, split: str, n: int) -> list[Example]:
        self.check_split(split)
        return [Example(f"Question: {i + 3} + {7 * i}?\nAnswer:", "0") for i in range(n)]

    def extract_answer(self, text: str) -> str | None:
        return str(sum(letter.isalpha() for letter in text) % self.modulus)


@dataclass(frozen=True, eq=False)
class Parts:
    """A target, its draft, and what else a search needs."""

    target: PreTrainedModel
    draft: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast = field(default_factory=word_tokenizer)
    task: Task = field(default_factory=Checksum)
    max_new_tokens: int = 14

    def decode(self, ids) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def answer(self, ids) -> str | None:
        return self.task.extract_answer(self.decode(ids))

    def prompts(self, n: int, split: str = "train") -> list[Prompt]:
        examples = self.task.examples(split, n)
        return [Prompt(i, one, tuple(self.task.encode(one, self.tokenizer))) for i, one in enumerate(examples)]

    def limits(self) -> ResponseLimits:
        return ResponseLimits(ending_tokens(self.target.generation_config), self.max_new_tokens)

    def searches(self, slots: int = 4, *, most: int | None = None, seed: int = 0, **choice) -> Searches:
        writer, guesses = LocalWriter(self.target, self.limits(), **choice), DraftArgmax(self.draft, **choice)
        return Searches(writer, guesses, self.task, self.decode, slots, most, seed)


def tiny_parts(architecture: str = "llama", seed: int = 0, noise: float = 0.1, **more) -> Parts:
    target = tiny(architecture, seed)
    target.generation_config.eos_token_id = EOS
    return Parts(target, noisy_copy(target, noise, seed + 1), **more)


def by_prompt(parts: Parts, prompts, **options) -> dict[int, Found]:
    results = list(parts.searches(**options).run(prompts))
    assert all(result.error is None for result in results)
    assert sorted(result.prompt.id for result in results) == [prompt.id for prompt in prompts]
    return {result.prompt.id: result.found for result in results}


def states_of(model, text) -> torch.Tensor:
    """Return what enters the LM head, caught by a hook of our own."""
    caught = []
    handle = model.get_output_embeddings().register_forward_pre_hook(lambda module, args: caught.append(args[0]))
    with torch.no_grad():
        model(input_ids=torch.tensor([text]), use_cache=False)
    handle.remove()
    return caught[0][0]


def judge(parts: Parts, slots: int = 3) -> JudgeMiner:
    return JudgeMiner(parts.searches(slots), "target", parts.target)


def labelling(parts: Parts, limit: int, **more) -> Labelling:
    pair = {"target": parts.target, "draft": parts.draft, "tokenizer": parts.tokenizer, "task": parts.task}
    pair |= {name: more.pop(name) for name in [*more] if name in pair}
    sizes = {"limit": limit, "split": "train", "batch_size": 3, "max_new_tokens": parts.max_new_tokens}
    return Labelling(Pair(**pair), **{"labels": JudgeLabels()} | sizes | more)


def run(folder, work: Labelling) -> list[int]:
    """Return the prompts that a run has labelled, in order."""
    return sorted(row.id for row in mine(work, str(folder)))
