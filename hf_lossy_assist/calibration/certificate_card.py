"""The card of a certificate with its picture: speed against loss, with bounds and limit."""

from __future__ import annotations

from pathlib import Path

from ..call.certificate import PLOT, Certificate
from ..evaluation.tables import PlotPoint, plot
from ..heads.repository import CARD, PLACEHOLDER_ID

_TEMPLATE = """---
library_name: transformers
tags: [lossy-assist, certificate, speculative-decoding]
---
# Certified on {task}

{statement}

![Speed against loss]({plot})

| setting | outcome | problems | loss (points) | at most | confidence (%) | tokens/s |
|---|---|---|---|---|---|---|
{rows}

{use}The bound is on the *mean* loss of the task's score against `{reference}`, over problems drawn like these
{problems:,} of `{task}`, split `{split}` (SHA-256 of list and scoring: `{digest}`). It says nothing of single texts, of
other kinds of problems, or of anything the score does not measure. Target `{target}`, draft `{draft}`.
"""

_USE = """```python
import hf_lossy_assist
from transformers import GenerationConfig

hf_lossy_assist.enable(target)
config = GenerationConfig.from_pretrained("{id}")
config.lossy_config["certificate"] = "{id}"  # {brings}refuses other models, heads and settings
target.generate(**inputs, generation_config=config, assistant_model=draft)
```

"""


def write_card(certificate: Certificate, folder: Path) -> None:
    limit = f"{certificate.max_loss:g} point{'' if certificate.max_loss == 1 else 's'}"
    statement = f"No setting could be certified to lose at most {limit} with {certificate.confidence:g} % confidence."
    use = ""
    if certificate.chosen is not None:
        setting = certificate.setting
        brings = "brings its head and " if certificate.heads else ""
        use = _USE.format(id=PLACEHOLDER_ID, brings=brings)
        best = "is the fastest" if setting.tokens_per_second is not None else "keeps the most tokens per round"
        statement = (
            f"`{setting.mode}` loses at most **{limit}** on average ({setting.loss:.2f} measured on {setting.n:,} "
            f"problems, at most {setting.bound:.2f}), with {certificate.confidence:g} % confidence. It {best} "
            "of the settings that were certified."
        )
        if certificate.max_longer is not None:
            statement += (
                f" Its answers are at most **{certificate.max_longer:g} %** longer on average ({setting.longer:+.1f} % "
                f"measured, at most {setting.longer_bound:+.1f} %)."
            )
    rows = [
        f"| `{x.mode}` | {x.outcome} | {x.n} | {_cell(x.loss, 2)} | {_cell(x.bound, 2)} | {_cell(x.confidence, 2)} | "
        f"{_cell(x.tokens_per_second, 1)} |"
        for x in certificate.tested
    ]
    draft = None if certificate.draft is None else certificate.draft["name"]
    text = _TEMPLATE.format(
        statement=statement, plot=PLOT, rows="\n".join(rows),
        use=use, problems=certificate.problems,
        task=certificate.task, split=certificate.split, digest=certificate.digest[:16],
        reference=certificate.reference, target=certificate.target["name"], draft=draft,
    )  # fmt: skip
    (folder / CARD).write_text(text, encoding="utf-8")
    _draw(certificate, folder / PLOT)


def _cell(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _draw(certificate: Certificate, path: Path) -> None:
    timed = any(x.tokens_per_second is not None for x in certificate.tested)
    shown = [x for x in certificate.tested if x.bound is not None and (x.tokens_per_second is not None or not timed)]
    points = {}
    for number, x in enumerate(shown, 1):
        across = x.tokens_per_second if timed else number
        points[f"{x.mode}: {x.outcome}"] = PlotPoint((across,) * 3, (x.loss, x.loss, max(x.loss, x.bound)))
    xlabel = "tokens per second" if timed else "number of the setting"
    plot(points, xlabel, "loss of the score (points; bars up to the bound)", path, limit=certificate.max_loss)
