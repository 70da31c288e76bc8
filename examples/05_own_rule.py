"""A rule of your own: words may differ from those of the target, numbers may not."""

from dataclasses import dataclass

import torch

import hf_lossy_assist
from hf_lossy_assist import pairs
from hf_lossy_assist.acceptors import Acceptor, register, setting


@register
@dataclass(frozen=True)
class Words(Acceptor):
    """Keep x iff the lossless rule does, or x is not in ``strict`` and ``p(x) >= share``. Correction: lossless.

    Parameters
    ----------
    share
        The smallest probability of a token that is kept although the lossless rule would not keep it.
    strict
        The ids of tokens that only the lossless rule keeps.
    """

    share: float = setting(0.05, 0, 1)
    strict: tuple[int, ...] = ()

    name = "words"
    paper = "none"

    def keep(self, v):
        strict = torch.isin(v.tokens, torch.tensor(self.strict, device=v.tokens.device))
        return v.lossless | ((v.p_x >= self.share) & ~strict & v.allowed)


pair = pairs.load("arithmetic")
numbers = [i for token, i in pair.tokenizer.get_vocab().items() if any(c.isdigit() for c in token)]
problem = pair.task.examples("test", 2)[1]
inputs = pair.tokenizer(problem.prompt, return_tensors="pt")

with hf_lossy_assist.enabled(pair.target):
    output = pair.target.generate(
        **inputs,
        assistant_model=pair.draft,
        lossy_mode="words",
        lossy_config={"share": 0.05, "strict": numbers},
        num_assistant_tokens=8,
        do_sample=False,
        max_new_tokens=160,
        return_dict_in_generate=True,
    )
answer = output.sequences[0, inputs.input_ids.shape[1] :].tolist()
marks = zip(answer, output.lossy_stats.trace, strict=True)
lossy = [pair.tokenizer.decode([token]) for token, what in marks if what == "accepted_lossy"]
print(pair.tokenizer.decode(output.sequences[0], skip_special_tokens=True))
print(f"  {output.lossy_stats.mean_accepted:.1f} drafted tokens kept a round; only by this rule: {lossy}")
