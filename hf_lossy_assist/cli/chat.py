"""``lossy-assist chat``: a conversation with a model that marks tokens kept only by a lossy rule."""

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

from ..core.statistics import LossyStats, joined
from ..errors import LossyError, LossyValueError
from ..evaluation.modes import parse_config
from .assisted import LOOKED_UP, AssistedDecoding, AssistedOptions
from .conversation import Conversation, encode_conversation
from .models import LoadedModels
from .options import RULES, parse_mode
from .rendering import ConsoleStreamer, marked, stats_table

COMMAND_OPTIONS = {"epilog": RULES}


@dataclass(eq=False)
class ChatSession:
    """A conversation on a screen, and its commands."""

    loaded: LoadedModels
    decoding: AssistedDecoding
    conversation: Conversation
    screen: Console
    keywords: dict[str, Any]  # of every answer
    head: Any = None  # of rules that use one
    answers: list[LossyStats] = field(default_factory=list)

    def take(self, line: str) -> bool:
        """Answer a message or run a command; return whether to continue."""
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
        for name, about in COMMANDS.items():
            self._say(f"{name:<7} {about}")
        self._say("Ctrl-C stops an answer, Ctrl-D leaves.")

    def mode(self, wanted: str) -> None:
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
        if not self.answers:
            self._say("no answers yet")
            return
        self.screen.print(stats_table(joined(self.answers)))

    def reset(self, _: str) -> None:
        self.conversation.reset()
        self.answers.clear()
        self._say("the conversation starts again")

    def _command(self, name: str) -> Callable[[str], None]:
        if name not in COMMANDS:
            raise LossyValueError(f"a command has to be one of {', '.join(COMMANDS)}, but is {name!r}")
        return getattr(self, name[1:])

    def _answer(self, text: str) -> None:
        streamer = ConsoleStreamer(self.loaded.tokenizer, self.screen)
        with warnings.catch_warnings(record=True) as caught:  # keeps them out of the answer
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
    "/mode": "RULE [K=V …]: change the rule; alone: show it",
    "/stats": "show the statistics so far",
    "/reset": "forget the conversation",
    "/help": "show these commands",
    "/quit": "leave",
}
"""The help of each command. Methods of the session have their names, but for ``/quit``."""


def chat(
    assisted: AssistedOptions,
    system: Annotated[str | None, typer.Option(help="The system prompt; the template's own by default.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 512,
) -> None:
    """Chat with a model; answers stream, with tokens marked that only a lossy rule kept.

    Without an assistant, prompt lookup drafts from the conversation.
    """
    options, decoding = assisted.checked(optional=("--assistant",))
    disable_progress_bar()
    loaded = options.load()
    encode_conversation(loaded.tokenizer, [{"role": "user", "content": ""}])  # refuses tokenizers without a template
    if loaded.draft is None and decoding.lookup is None:
        decoding = replace(decoding, lookup=assisted.num_assistant_tokens or LOOKED_UP)
    keywords = {"max_new_tokens": max_new_tokens, **assisted.sampling}
    screen = Console()
    conversation = Conversation(loaded.target, loaded.tokenizer, system)
    session = ChatSession(loaded, decoding, conversation, screen, keywords, decoding.head)
    _greet(session)
    while (line := _read(screen)) is not None and session.take(line):
        pass


def _greet(session: ChatSession) -> None:
    colour = session.screen.color_system is not None
    drafter = "prompt lookup" if session.decoding.lookup is not None else "a draft model"
    text = Text(f"Drafting by {drafter}. Tokens kept only by a lossy rule are ", style="dim")
    session.screen.print(text.append(marked("marked", colour=colour)).append(". /help lists the commands."))
    session.mode("")


def _read(screen: Console) -> str | None:
    """Return the user's next line; None at the end of the input."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        if line.strip():
            screen.print(Text(f"\n> {line.strip()}"), soft_wrap=True)  # no terminal has shown it
        return line or None
    with suppress(ImportError):
        import readline  # noqa: F401, gives `input` editing and history
    while True:
        try:
            return input("\n> ")
        except EOFError:
            screen.print()
            return None
        except KeyboardInterrupt:
            screen.print("\nCtrl-D or /quit leaves.", style="dim")
