"""The app of the Space: two rules side by side on one prompt. Needs the extra ``space``."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

import hf_lossy_assist
from hf_lossy_assist import LossyError, LossyValueError, pairs
from hf_lossy_assist.acceptors import REGISTRY, Setting, head_type, settings_of

if TYPE_CHECKING:
    import gradio as gr

PROMPTS: Mapping[str, str] = {
    "arithmetic": "Question: Tom has 12 apples and buys 30 more. Then Tom sells 5. How many apples does Tom have now?\n"
    "Answer:",
    "qwen-coder": "Write a Python function that tells whether a word is a palindrome.",
}
"""The pairs of models, and the first prompt for each."""

COLUMNS = (("left", "lossless"), ("right", "min_p"))
"""The columns, and the rule that each begins with."""

TARGET_ALONE = "target alone"

_GAMMA = 6
_TOKENS = 96
_WIDEST = 10.0  # a slider's range for a setting without an upper limit


@dataclass(frozen=True)
class Knob:
    """A setting of a rule on the screen: a choice, or a slider, with a checkbox if it is optional."""

    rule: str
    setting: Setting

    @property
    def start(self) -> float | None:
        """Where the slider begins; None for a setting whose default is no number."""
        default = REGISTRY[self.rule].usual.get(self.setting.name, self.setting.default)
        return default if isinstance(default, int | float) and math.isfinite(default) else None

    @property
    def bounds(self) -> tuple[float, float]:
        """The ends of the slider."""
        high = min(self.setting.high, max(_WIDEST, 4 * (self.start or 0)))
        return (max(self.setting.low, 0.01) if 0 < self.setting.low < 1 else self.setting.low), high

    def components(self, gr: Any) -> list[Any]:
        """Make its components."""
        name, about = self.setting.name, self.setting.help
        if self.setting.switch:
            return [gr.Checkbox(value=self.setting.default, label=name, info=about)]
        if self.setting.choices:
            return [gr.Dropdown(list(self.setting.choices), value=self.setting.default, label=name, info=about)]
        (low, high), step = self.bounds, 1 if self.setting.integer else 0.01
        begin = low if self.start is None else self.start
        switch = [] if self.start is not None else [gr.Checkbox(label=f"set {name}")]
        return [*switch, gr.Slider(low, high, value=begin, step=step, label=name, info=about)]

    def read(self, values: Iterator[Any]) -> dict[str, Any]:
        """Take the values of its components, and return the setting if it differs from the default."""
        wanted = self.setting.choices or self.setting.switch or self.start is not None or next(values)
        value = next(values)
        value = int(value) if self.setting.integer else value
        return {self.setting.name: value} if wanted and value != self.setting.default else {}


KNOBS = tuple(Knob(name, each) for name, rule in REGISTRY.items() for each in settings_of(rule))
"""All settings of all rules."""


def installed_pairs() -> list[str]:
    """Return the pairs that can be loaded without a download, a real one first."""
    return [name for name in reversed(PROMPTS) if pairs.at_hand(name)]


@functools.cache
def _loaded(name: str) -> pairs.Pair:
    return pairs.load(name)


def answer(pair: str, prompt: str, tokens: float, temperature: float, seed: float, *choices: Any) -> str:
    """Return the texts of both columns' rules, as HTML.

    Parameters
    ----------
    pair
        The pair of models.
    prompt, tokens, temperature, seed
        The prompt, the longest answer, the temperature (0 takes the likeliest tokens), and the seed of all draws.
    choices
        For each column its rule, its drafted tokens per round, and the values of :data:`KNOBS`.

    Raises
    ------
    LossyValueError
        If the prompt is empty or too long, or a rule lacks its head.
    """
    if not prompt.strip():
        raise LossyValueError("the prompt is empty; write what the text is to go on from")
    loaded, values = _loaded(pair), iter(choices)
    columns = [_rule(values, loaded, pair) for _ in COLUMNS]
    ids = torch.tensor([_encoded(prompt, loaded.tokenizer)], device=loaded.target.device)
    room = loaded.target.config.max_position_embeddings - int(tokens)
    if ids.shape[1] > room:
        raise LossyValueError(f"the prompt has {ids.shape[1]} tokens, but beside the answer there is room for {room}")
    drawn = {"temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
    common = {
        "attention_mask": torch.ones_like(ids), "assistant_model": loaded.draft, "max_new_tokens": int(tokens),
        "do_sample": bool(temperature), "return_dict_in_generate": True, **drawn,
    }  # fmt: skip
    texts = []
    for title, keywords in columns:
        torch.manual_seed(int(seed))
        with hf_lossy_assist.enabled(loaded.target):
            output = loaded.target.generate(ids, **common, **keywords)
        page = output.lossy_stats.show(loaded.tokenizer, prompt=prompt)
        texts.append(replace(page.texts[0], title=title))
    return replace(page, texts=texts).fragment()


def _rule(values: Iterator[Any], loaded: pairs.Pair, pair: str) -> tuple[str, dict[str, Any]]:
    """Take the values of a column, and return its title and the keywords of ``generate()``."""
    rule, gamma = next(values), next(values)
    settings: dict[str, Any] = {}
    for knob in KNOBS:
        own = knob.read(values)
        settings |= own if knob.rule == rule else {}
    if rule == TARGET_ALONE:  # lossless, with no drafted tokens
        return rule, {"lossy_mode": "lossless", "num_assistant_tokens": 0, "lossy_config": {"inspect": True}}
    head = loaded.rule_heads.get(rule)
    if head is None and head_type(REGISTRY[rule]) is not None:
        raise LossyValueError(f"the rule {rule!r} needs a trained head, and there is none for {pair!r}; choose another")
    title = ", ".join([rule, *(f"{name} {value}" for name, value in settings.items())])
    keywords = {"lossy_mode": rule, "lossy_config": {**settings, "inspect": True}}
    keywords |= {} if head is None else {"lossy_head": head}
    return title, keywords | ({} if rule == "sprinter" else {"num_assistant_tokens": int(gamma)})


def _encoded(prompt: str, tokenizer: Any) -> list[int]:
    if not tokenizer.chat_template:
        return tokenizer(prompt)["input_ids"]
    turns = [{"role": "user", "content": prompt}]
    return tokenizer(
        tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True), add_special_tokens=False
    )["input_ids"]


def app() -> gr.Blocks:
    """Return the app, to be launched."""
    import gradio as gr

    def show(*values: Any) -> str:
        try:
            return answer(*values)
        except LossyError as error:
            raise gr.Error(str(error), title="That can't work", print_exception=False) from error

    with gr.Blocks(title="Lossy speculative decoding") as blocks:
        gr.Markdown(
            "# Lossy speculative decoding\nA small model drafts, a large one checks, and a rule decides what may stay. "
            "Choose two rules, and see what each lets through."
        )
        names = installed_pairs()
        pair = gr.Dropdown(names, value=names[0], label="Models", visible=len(names) > 1)
        prompt = gr.Textbox(PROMPTS[names[0]], label="Prompt", lines=3)
        pair.input(PROMPTS.get, pair, prompt)
        with gr.Row():
            columns = [_column(gr, place, rule) for place, rule in COLUMNS]
        with gr.Accordion("More", open=False), gr.Row():
            tokens = gr.Slider(8, 256, value=_TOKENS, step=8, label="Longest answer, in tokens")
            temperature = gr.Slider(0, 1.5, value=0, step=0.05, label="Temperature", info="0 takes the likeliest")
            seed = gr.Number(0, label="Seed", precision=0, minimum=0)
        button = gr.Button("Generate", variant="primary")
        texts = gr.HTML(apply_default_css=False)
        inputs = [pair, prompt, tokens, temperature, seed, *(each for column in columns for each in column)]
        gr.on([button.click, prompt.submit], show, inputs, texts)
    return blocks


def _column(gr: Any, place: str, rule: str) -> Sequence[Any]:
    """Make the components of one column; return those that have a value, in the order of :func:`answer`."""
    with gr.Column():
        chosen = gr.Dropdown([TARGET_ALONE, *REGISTRY], value=rule, label=f"Rule, {place}")
        gamma = gr.Slider(1, 24, value=_GAMMA, step=1, label="Drafted tokens per round")
        groups, components = {}, []
        for name in dict.fromkeys(knob.rule for knob in KNOBS):
            with gr.Group(visible=name == rule) as groups[name]:
                components += [x for knob in KNOBS if knob.rule == name for x in knob.components(gr)]

        def shown(name: str) -> list[Any]:
            return [gr.update(visible=other == name) for other in groups]

        chosen.change(shown, chosen, list(groups.values()))
    return [chosen, gamma, *components]


if __name__ == "__main__":
    app().queue(default_concurrency_limit=1).launch()
