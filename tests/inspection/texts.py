"""A tokenizer of a few words, one of which would like to be a program."""

from __future__ import annotations

from collections.abc import Sequence

HOSTILE = "</span><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
WORDS = [HOSTILE, " tea", " and", " two\ncups", " of", " it"]


class Words:
    """Tokens are words."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return "".join(WORDS[i] for i in ids)

    def convert_ids_to_tokens(self, token: int) -> str:
        return WORDS[token]
