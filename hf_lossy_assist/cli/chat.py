"""``lossy-assist chat``: a conversation with a model, in which one sees what a rule lets through."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from transformers.utils.logging import disable_progress_bar

from ..errors import LossyError, LossyValueError
from ..evaluation.modes import parse_config
from ..stats import LossyStats, joined
from .assisted import LOOKED_UP, AssistedDecoding
from .conversation import Conversation, encode_conversation
from .models import LoadedModels, ModelOptions
from .options import (
    RULES,
    AssistantTokenizer,
    DraftSource,
    Dtype,
    HeadSource,
    PairInstead,
    PromptLookup,
    RuleName,
    RuleSettings,
    Sample,
    Seed,
    TargetSource,
    Temperature,
    Tokens,
    Where,
    parse_mode,
)
from .rendering import ConsoleStreamer, marked, stats_table

COMMAND_OPTIONS = {"epilog": RULES}


@dataclass(eq=False)
class ChatSession:
    """A conversation on a screen, and the commands that change how it goes on."""

    loaded: LoadedModels
    decoding: AssistedDecoding
    conversation: Conversation
    screen: Console
    keywords: dict[str, Any]  # of every answer
    head: Any = None  # for rules that use one
    answers: list[LossyStats] = field(default_factory=list)

    def take(self, line: str) -> bool:
        """Answer a message or follow a command; return whether to go on."""
        name, _, rest = line.strip().partition(" ")
        if name == "/quit":
            return False
        try:
            if name.startswith("/"):
                self._command(name)(rest.strip())
            elif name:
                self._answer(line)
        except LossyError as error:
            self.screen.print(Text(f"error: {error}", style="red"), soft_wrap=True)
        return True

    def help(self, _: str = "") -> None:
        """Show the commands."""
        for name, (_, about) in COMMANDS.items():
            self._say(f"{name:<7} {about}")
        self._say("Ctrl-C stops an answer, Ctrl-D leaves.")

    def mode(self, wanted: str) -> None:
        """Change the rule for the answers to come, or say which it is."""
        name, *settings = wanted.split() or [None]
        if name is not None:
            seed = {key: value for key, value in self.decoding.config.items() if key == "seed"}
            config = seed | parse_config(settings, "/mode")
            decoding = replace(self.decoding, mode=parse_mode(name), config=config, head=None)
            decoding = replace(decoding, head=self.head if decoding.rules_with_head else None)
            decoding.check_rule(brings_heads=bool(self.loaded.heads))
            self.decoding = decoding
        names = self.decoding.mode if isinstance(self.decoding.mode, list) else [self.decoding.mode]
        shown = " ".join(f"{key}={value}" for key, value in self.decoding.config.items())
        self._say(f"mode: {','.join(names)} {shown}".rstrip())

    def stats(self, _: str) -> None:
        """Show what the answers' runs did, all together."""
        if not self.answers:
            self._say("no answers yet")
            return
        self.screen.print(stats_table(joined(self.answers)))

    def reset(self, _: str) -> None:
        """Forget the conversation and its statistics."""
        self.conversation.reset()
        self.answers.clear()
        self._say("the conversation begins anew")

    def _command(self, name: str) -> Callable[[str], None]:
        if name not in COMMANDS:
            raise LossyValueError(f"there is no command {name!r}, but {', '.join(COMMANDS)}")
        return getattr(self, COMMANDS[name][0])

    def _answer(self, text: str) -> None:
        streamer = ConsoleStreamer(self.loaded.tokenizer, self.screen)
        with warnings.catch_warnings(record=True) as caught:  # or they would stand in the midst of the answer
            stats = self.conversation.answer(text, streamer, **self.decoding.keywords(self.loaded), **self.keywords)
        for each in caught:
            self._say(f"warning: {each.message}")
        if stats is None:
            self._say("stopped")
            return
        self.answers.append(stats)
        self._say(
            f"{stats.tokens} tokens, {stats.tokens_per_round:.2f} per round, {100 * stats.lossy_share:.0f} % lossy, "
            f"{stats.tokens_per_second:.1f} tokens/s"
        )

    def _say(self, text: str) -> None:
        self.screen.print(Text(text, style="dim"), soft_wrap=True)


COMMANDS = {
    "/mode": ("mode", "RULE [K=V …]: another rule from here on; alone: which it is"),
    "/stats": ("stats", "what drafting and the rule have done so far"),
    "/reset": ("reset", "forget the conversation"),
    "/help": ("help", "these commands"),
    "/quit": ("quit", "leave"),
}
"""The method of each command, and what it does; the loop itself is what ``/quit`` ends."""


def chat(
    model: TargetSource = None,
    assistant: DraftSource = None,
    assistant_tokenizer: AssistantTokenizer = None,
    prompt_lookup: PromptLookup = None,
    pair: PairInstead = None,
    mode: RuleName = None,
    config: RuleSettings = None,
    head: HeadSource = None,
    system: Annotated[str | None, typer.Option(help="The system prompt; the template's own by default.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 512,
    num_assistant_tokens: Tokens = None,
    sample: Sample = False,
    temperature: Temperature = None,
    seed: Seed = None,
    dtype: Dtype = None,
    device: Where = None,
) -> None:
    """Chat with a model: what only a lossy rule let through is marked while the answer streams.

    Without an assistant, what may follow is looked up in the conversation (prompt lookup).
    """
    if temperature is not None and not sample:
        raise LossyValueError(f"`--temperature` counts only with `--sample`; add it, or leave out {temperature}")
    options = ModelOptions(
        pair,
        model,
        assistant,
        dtype,
        device or ("cpu" if pair is not None else "auto"),
        assistant_tokenizer=assistant_tokenizer,
    )
    options.check(optional=("--assistant",))
    decoding = AssistedDecoding.of(mode, config, head, num_assistant_tokens, seed, lookup=prompt_lookup)
    decoding.check(assistant, brings_heads=pair is not None)
    disable_progress_bar()
    loaded = options.load(assisted=False)
    encode_conversation(loaded.tokenizer, [{"role": "user", "content": ""}])  # or nothing can be asked
    if loaded.draft is None and prompt_lookup is None:
        decoding = replace(decoding, lookup=num_assistant_tokens or LOOKED_UP)
    keywords = {"max_new_tokens": max_new_tokens, "do_sample": sample}
    keywords |= {} if temperature is None else {"temperature": temperature}
    screen = Console()
    conversation = Conversation(loaded.target, loaded.tokenizer, system)
    session = ChatSession(loaded, decoding, conversation, screen, keywords, decoding.head)
    _greet(session)
    while (line := _read(screen)) is not None and session.take(line):
        pass


def _greet(session: ChatSession) -> None:
    colour = session.screen.color_system is not None
    drafter = "prompt lookup" if session.decoding.lookup is not None else "a draft model"
    text = Text(f"Drafting by {drafter}. What only a lossy rule let through is ", style="dim")
    session.screen.print(text.append(marked("marked", colour=colour)).append(". /help lists the commands."))
    session.mode("")


def _read(screen: Console) -> str | None:
    """Return the next line that the user writes; None at the end of the input."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        if line.strip():
            screen.print(Text(f"\n> {line.strip()}"), soft_wrap=True)  # which no terminal has shown
        return line or None
    with suppress(ImportError):
        import readline  # noqa: F401, whose import lets lines be edited and brought back
    while True:
        try:
            return input("\n> ")
        except EOFError:
            screen.print()
            return None
        except KeyboardInterrupt:
            screen.print("\nCtrl-D or /quit leaves.", style="dim")
