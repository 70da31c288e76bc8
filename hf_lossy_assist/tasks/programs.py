"""Programs out of what models write: fenced, whole, or the continuation of a prompt."""

from __future__ import annotations

import ast
import re
import textwrap
import threading
import warnings

# A continuation ends where the function does: at what can only be something else in the first column (HumanEval's
# own stop sequences, and those of chat models).
_STOP = re.compile(r"\n(?=class\b|def\b|async def\b|@|#|if\b|print\b|assert\b|import\b|from\b|```|<\|)")
_FENCED = re.compile(r"^[ \t]*```[^\n]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
# Filters of warnings belong to the whole process, and a miner asks for answers in several threads.
_filters = threading.Lock()
_CODE_LINE = re.compile(r"(?:def|async def|class|import|from|@)\s*\w")


def program_of(response: str, prompt: str, entry_point: str) -> str | None:
    """Return the program that ``response`` makes of ``prompt``, or None if the response is empty.

    A fenced block counts, if there is one: the last that defines the function, else the longest. What defines the
    function stands for itself, after what the prompt has before it (imports, helpers); anything else is taken for the
    rest of the function that the prompt begins, up to where that ends.

    Parameters
    ----------
    response
        What the model wrote.
    prompt
        The beginning of a Python file, up to the signature and docstring of the function.
    entry_point
        The function's name.

    Examples
    --------
    >>> program_of("    return x + 1\\n\\nprint(inc(2))", "def inc(x):\\n", "inc")
    'def inc(x):\\n    return x + 1\\n'
    >>> program_of("Sure!\\n```python\\ndef inc(x): return 1 + x\\n```", "import math\\ndef inc(x):\\n", "inc")
    'import math\\ndef inc(x): return 1 + x\\n'
    """
    if not response.strip():
        return None
    definition = re.compile(rf"^(?:async )?def {re.escape(entry_point)}\b", re.MULTILINE)
    blocks = _FENCED.findall(response)
    code = _choose(blocks, definition) if blocks else response
    if not definition.search(code):
        dedented = bool(blocks) and not code[:1].isspace()
        return prompt.rstrip("\n") + "\n" + _as_body(textwrap.indent(code, "    ") if dedented else code)
    before = definition.split(prompt)[0]
    return (before if _parses(before) else "") + (code if blocks else _longest_program(code))


def _choose(blocks: list[str], definition: re.Pattern[str]) -> str:
    defining = [block for block in map(textwrap.dedent, blocks) if definition.search(block)]
    return defining[-1] if defining else max(blocks, key=len)


def _as_body(code: str) -> str:
    """Cut a continuation where the function ends, and give back an indentation that was lost on the way."""
    code = _STOP.split(code.lstrip("\n"))[0]
    first, *rest = code.split("\n")
    if any(line[:1].strip() for line in rest):
        return textwrap.indent(code, "    ")
    if len(first) - len(first.lstrip(" ")) < 4 and not first.startswith("\t"):
        # Some tokenizers drop the space that a text begins with, and some models all of it.
        return "\n".join(["    " + first.lstrip(" "), *rest])
    return code


def _longest_program(text: str) -> str:
    """Return what is Python in a text that has a program somewhere, with prose before and after it."""
    lines = text.split("\n")
    start = next(i for i, line in enumerate(lines) if _CODE_LINE.match(line))
    lines = lines[start:]
    while lines and not _parses("\n".join(lines)):
        lines.pop()
    return "\n".join(lines) or text


def _parses(code: str) -> bool:
    with _filters, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd escapes in strings, which run all the same
        try:
            ast.parse(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
    return True
