"""Texts to sum up or translate, scored by overlap with references."""

from __future__ import annotations

from ..errors import LossyValueError
from .few_shot import FewShotTest
from .overlap import METRICS
from .task import Example
from .task_data import Row, prompt_of, read_rows

_SOURCES = ("document", "article", "text", "source")
_REFERENCES = ("summary", "highlights", "reference", "references", "translation", "target")


class Summaries(FewShotTest):
    """Summaries by ROUGE, or translations by BLEU, against references.

    Parameters
    ----------
    data
        A JSONL file or a data set on the Hub. The text is in ``document``, ``article``, ``text`` or ``source``, or a
        ``prompt``, ``question`` or ``turns`` includes it with the request, as in Spec-Bench. The reference, or a list
        of them, is in ``summary``, ``highlights``, ``reference``, ``references``, ``translation`` or ``target``.
    metric
        "rougeL", "rouge1" or "rouge2"; for translations "bleu" or "chrf", by SacreBLEU.
    instruction
        The request put before a text.
    shots
        The number of texts at the beginning that become worked examples before each of the others.
    config, hub_split
        Configuration and split of a data set on the Hub.
    category
        Keeps rows with this ``category`` or ``subject``.

    Examples
    --------
    >>> import json, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "texts.jsonl"
    >>> _ = path.write_text(json.dumps({"document": "It rained all day long.", "summary": "rain all day"}))
    >>> task = Summaries(data=str(path))
    >>> [example] = task.examples("test", 1)
    >>> round(task.score(example, "It was rain, all day", own=""), 2)
    0.75
    """

    name = "summaries"
    max_new_tokens = 128

    def __init__(
        self,
        data: str = "EdinburghNLP/xsum",
        metric: str = "rougeL",
        instruction: str = "Summarize the following text in one sentence.",
        shots: int = 0,
        config: str | None = None,
        hub_split: str = "test",
        category: str | None = None,
    ) -> None:
        if metric not in METRICS:
            raise LossyValueError(f"`metric` has to be one of {list(METRICS)}, but is {metric!r}")
        self.metric = metric
        self.scoring = {"metric": metric}
        self._references: dict[str, list[str]] = {}
        rows = read_rows(data, config, hub_split, category)
        super().__init__([self._example(row, instruction, number) for number, row in enumerate(rows, start=1)], shots)

    def extract_answer(self, text: str) -> str | None:
        return text.strip() or None

    def score(self, example: Example, response: str, own: str) -> float:
        """Return the metric of a response against the references."""
        # A model that does not stop writes a further text.
        text = response.strip().split("\n\n")[0]
        return METRICS[self.metric](text, self._references[example.answer])

    def correct(self, example: Example, response: str) -> bool:
        """Tell whether a response equals a reference; scores say more."""
        return response.strip() in self._references[example.answer]

    def asked(self, prompt: str) -> str:
        return prompt.removesuffix("\nAnswer:")

    def _example(self, row: Row, instruction: str, number: int) -> Example:
        source = next((row[name] for name in _SOURCES if isinstance(row.get(name), str)), None)
        asked = prompt_of(row) if source is None else f"{instruction}\n\n{source.strip()}"
        found = next((row[name] for name in _REFERENCES if row.get(name)), None)
        references = [found] if isinstance(found, str) else found
        if not isinstance(asked, str) or not isinstance(references, list) or not isinstance(references[0], str):
            raise LossyValueError(
                f"row {number} of `data` needs a text as one of {[*_SOURCES, 'prompt', 'question', 'turns']} and a "
                f"text or a list of them as one of {list(_REFERENCES)}; it has {sorted(row)}"
            )
        self._references[references[0]] = references
        return Example(f"{asked}\nAnswer:", references[0], f" {references[0]}")
