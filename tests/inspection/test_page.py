"""A page says what was recorded, shows hostile text as text, and marks what differs."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from hf_lossy_assist import LossyStats, LossyValueError
from hf_lossy_assist.core.statistics import TokenRecord, TokenScores
from hf_lossy_assist.inspection import FATES, InspectedText, InspectionPage
from tests.inspection.texts import HOSTILE, WORDS, Words

JUDGED = TokenScores(0.25, 0.5, ((3, 0.75), (1, 0.25)), {"<rank>": 2.0}, (2, 0.125, None))


def records(*tokens: int, fate: str = "accepted", **more: Any) -> list[TokenRecord]:
    return [TokenRecord(token, fate, i // 2, **more) for i, token in enumerate(tokens)]


def page(*texts: list[TokenRecord], prompt: str = "") -> InspectionPage:
    return InspectionPage([InspectedText(f"text {i}", text) for i, text in enumerate(texts)], Words(), prompt)


class Reader(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_hostile_text_is_text():
    """In tokens, prompts, titles, rules and quantities."""
    text = [TokenRecord(WORDS.index(HOSTILE), "accepted_lossy", 0, HOSTILE, JUDGED)]
    shown = InspectionPage([InspectedText(HOSTILE, text)], Words(), HOSTILE).html()
    read = Reader(shown)
    assert {"script", "img", "iframe", "link"}.isdisjoint(read.tags)
    assert not [name for name in read.attributes if name.startswith("on")]
    assert read.text.count(HOSTILE) >= 6
    assert "<rank>" in read.text


def test_a_page_asks_for_nothing_from_elsewhere():
    shown = page(records(1, 2), records(1, 3)).html()
    assert not re.search(r"(src|href|url|@import)\b\s*[=(]", shown)
    assert "default-src 'none'" in shown


def test_a_dictionary_holds_what_was_recorded_and_is_json():
    stats = LossyStats(rounds=1, accepted=1, corrected=1)
    text = InspectedText("a", [*records(1), TokenRecord(0, "corrected", 0, None, JUDGED)], stats.brief())
    values = InspectionPage([text], Words(), "Say").to_dict()
    assert json.loads(json.dumps(values)) == values
    (shown,) = values["texts"]
    assert values["prompt"] == "Say"
    assert shown["figures"] == {"tokens": "2", "tokens per round": "2.00", "lossy": "0.0 %"}
    assert shown["tokens"][1] == {
        "text": WORDS[0], "token": 0, "fate": "corrected", "round": 0, "rule": None, "p": 0.25, "q": 0.5,
        "likeliest": [{"text": WORDS[3], "token": 3, "p": 0.75}, {"text": WORDS[1], "token": 1, "p": 0.25}],
        "quantities": {"<rank>": 2.0}, "replaced": {"text": WORDS[2], "token": 2, "p": 0.125, "q": None},
        "differs": False,
    }  # fmt: skip
    assert shown["tokens"][0]["p"] is None


def test_what_differs_is_marked_in_both_texts():
    marks = [
        [token["differs"] for token in text["tokens"]]
        for text in page(records(1, 2, 3, 1), records(1, 3, 1, 5), records(1, 2, 3, 1)).to_dict()["texts"]
    ]
    assert marks == [[False, True, False, False], [False, False, False, True], [False] * 4]
    assert not any(token["differs"] for token in page(records(1, 2)).to_dict()["texts"][0]["tokens"])


def test_tokens_add_up_to_the_text_and_half_characters_have_names(pair):
    text = "Zoë’s 12 🐙s\n cost €3."
    ids = pair.tokenizer(text, add_special_tokens=False)["input_ids"]
    shown = InspectionPage([InspectedText("", records(*ids))], pair.tokenizer).to_dict()["texts"][0]["tokens"]
    names = pair.tokenizer.convert_ids_to_tokens(ids)
    halves = [i for i in range(len(ids)) if pair.tokenizer.decode(ids[: i + 1]).endswith("\N{REPLACEMENT CHARACTER}")]
    assert halves
    assert "".join(token["text"] for i, token in enumerate(shown) if i not in halves) == text
    assert [shown[i]["text"] for i in halves] == [names[i] for i in halves]


def test_every_fate_is_explained_and_so_is_each_lossy_rule():
    text = [TokenRecord(1, fate, 0, "a" if fate == "accepted_lossy" else None) for fate in FATES]
    text.append(TokenRecord(2, "accepted_lossy", 1, "b"))
    read = Reader(page(text).html()).text
    for fate, words in FATES.items():
        assert words in read or fate == "accepted_lossy"
    assert "kept only by a" in read
    assert "kept only by b" in read
    assert "not in every text" not in read


def test_statistics_show_their_rows(pair):
    inputs = pair.tokenizer(["Tom has 3 pens.", "Ada has 14 green apples."], return_tensors="pt", padding=True)
    out = pair.target.generate(
        **inputs, assistant_model=pair.draft, lossy_mode="topk", lossy_config={"inspect": True}, max_new_tokens=6,
        do_sample=False, return_dict_in_generate=True,
    )  # fmt: skip
    stats = out.lossy_stats
    for row, sequence in enumerate(out.sequences):
        (text,) = stats.show(pair.tokenizer, row=row).to_dict()["texts"]
        new = sequence[inputs["input_ids"].shape[1] :]
        assert [token["token"] for token in text["tokens"]] == new[: len(text["tokens"])].tolist()
        assert text["title"] == "topk"
    assert 'class="lossy-texts"' in stats.show(pair.tokenizer)._repr_html_()
    with pytest.raises(LossyValueError, match="`row` has to be one of the 2 rows, from 0, but is 2"):
        stats.show(pair.tokenizer, row=2)


def test_without_judgements_a_page_says_how_to_have_them():
    assert 'lossy_config={"inspect": True}' in Reader(page(records(1)).html()).text
    assert "lossy_config" not in Reader(page(records(1, scores=JUDGED)).html()).text


def test_a_page_is_a_file(tmp_path):
    shown = page(records(1, 2), prompt="é")
    shown.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == shown.html()


def test_a_page_may_have_no_text():
    assert page().to_dict()["texts"] == []
    assert "<html" in page().html()
