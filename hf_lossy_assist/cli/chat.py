"""``lossy-assist chat``: a conversation with a model that marks tokens kept only by a lossy rule."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.text import Text
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .. import enabled
from ..call.spelling import Spelling, split
from ..compat import CACHE, has_recurrent_state, new_cache, rollback, tokens_in
from ..core.statistics import LossyStats, joined
from ..core.texts import common_prefix
from ..errors import LossyError, LossyValueError
from .generate import AssistedDecoding, AssistedOptions
from .models import LoadedModels, encode_conversation
from .options import MaxNewTokens
from .rendering import ConsoleStreamer, marked, stats_table

LOOKED_UP = 10
"""Default draft length of prompt lookup."""


class Conversation:
    """Messages, and the target's cache of them.

    The next turn reuses the cache for the tokens that both texts begin with, so answers equal those of ``generate()``
    on the whole conversation. ``system`` replaces the template's system prompt.
    """

    def __init__(self, target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, system: str | None = None) -> None:
        self._target, self._tokenizer = target, tokenizer
        self._system = [] if system is None else [{"role": "system", "content": system}]
        self.reset()

    def reset(self) -> None:
        self.messages = list(self._system)
        self._cache, self._read = None, []

    def answer(self, text: str, streamer: ConsoleStreamer, max_new_tokens: int, **keywords: Any) -> LossyStats | None:
        """Let the model answer a message; return the statistics, or None after Ctrl-C.

        The answer so far stays in the conversation then. ``keywords`` go to ``generate()``.
        """
        asked = [*self.messages, {"role": "user", "content": text}]
        ids = encode_conversation(self._tokenizer, asked)
        room = getattr(self._target.config.get_text_config(), "max_position_embeddings", len(ids) + 1) - len(ids)
        if room < 1:
            raise LossyValueError(
                f"the conversation has {len(ids)} tokens, {1 - room} more than the model can answer; "
                "/reset starts again"
            )
        # An interrupted call leaves the cache in an unknown state.
        cache, self._cache, self._read = self._kept(ids), None, []
        inputs = torch.tensor([ids], device=self._target.device)
        stats = None
        try:
            with enabled(self._target):
                output = self._target.generate(
                    input_ids=inputs,
                    attention_mask=torch.ones_like(inputs),
                    streamer=streamer,
                    max_new_tokens=min(max_new_tokens, room),
                    return_dict_in_generate=True,
                    **{CACHE: cache},
                    **keywords,
                )
        except KeyboardInterrupt:
            streamer.end()
        else:
            self._cache, self._read, stats = getattr(output, CACHE), output.sequences[0].tolist(), output.lossy_stats
        self.messages = [*asked, {"role": "assistant", "content": streamer.text}]
        return stats

    def _kept(self, ids: list[int]) -> Any:
        """Return the cache cut to the tokens in common with the last text, or a new cache."""
        seen = tokens_in({CACHE: self._cache})
        common = min(common_prefix(self._read, ids), len(ids) - 1)
        if not seen or (common < seen and has_recurrent_state(self._target)):
            return new_cache(self._target)
        rollback(self._cache, max(0, seen - common))
        return self._cache


@dataclass(eq=False)
class ChatSession:
    """A conversation on a screen, and its commands."""

    loaded: LoadedModels
    decoding: AssistedDecoding
    conversation: Conversation
    screen: Console
    keywords: dict[str, Any]  # of every answer
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
        if len(split(wanted, " ")) > 1:
            raise LossyValueError(f"a mode has no spaces, but is {wanted!r}; write `/mode {wanted.replace(' ', ':')}`")
        if wanted:
            decoding = AssistedDecoding.read(wanted, "/mode", self.decoding.heads)
            seed = {key: value for key, value in self.decoding.mode.settings.items() if key == "seed"}
            mode = replace(decoding.mode, settings={**seed, **decoding.mode.settings})
            decoding = replace(decoding, mode=mode, lookup=self.decoding.lookup)
            decoding.check()
            self.decoding = decoding
        mode = self.decoding.mode
        self._say(f"mode: {Spelling(mode.rule, mode.settings, mode.gamma)}")

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
    "/mode": "RULE[:KEY=VALUE…]: change the mode; alone: show it",
    "/stats": "show the statistics so far",
    "/reset": "forget the conversation",
    "/help": "show these commands",
    "/quit": "leave",
}
"""The help of each command. Methods of the session have their names, but for ``/quit``."""


def chat(
    assisted: AssistedOptions,
    system: Annotated[str | None, typer.Option(help="The system prompt; the template's own by default.")] = None,
    max_new_tokens: MaxNewTokens = 512,
) -> None:
    """Chat with a model; answers stream, with tokens marked that only a lossy rule kept.

    Without an assistant, prompt lookup drafts from the conversation.
    """
    loaded, decoding = assisted.prepared(optional=("--assistant",))
    encode_conversation(loaded.tokenizer, [{"role": "user", "content": ""}])  # refuses tokenizers without a template
    if loaded.draft is None and decoding.lookup is None:
        drafted = decoding.mode.gamma
        decoding = replace(decoding, lookup=drafted if isinstance(drafted, int) else LOOKED_UP)
    keywords = {"max_new_tokens": max_new_tokens, **assisted.sampling}
    screen = Console()
    session = ChatSession(loaded, decoding, Conversation(loaded.target, loaded.tokenizer, system), screen, keywords)
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
