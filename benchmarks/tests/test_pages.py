"""Tables from the kept rows: intervals against closed forms, rows by hand, and the pages as they stand."""

from __future__ import annotations

import re

import datasets
import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from benchmarks import curves, pages, tables
from benchmarks.answers import Answers
from benchmarks.pages import ROOT, TABLES
from hf_lossy_assist import LossyValueError


def test_an_interval_of_a_mean_is_that_of_student():
    values = np.random.default_rng(0).normal(size=30)
    found = tables.interval(np.stack([values, np.ones(30)], 1), tables.ratio)
    wanted = stats.ttest_1samp(values, 0.0).confidence_interval()
    assert found == pytest.approx((values.mean(), wanted.low, wanted.high))


def answers(modes: dict[str, dict[str, list[float]]]) -> Answers:
    rows = {
        mode: {i: {"id": i, "score": 1.0, "accepted": 9, "cut": False, "spent": own["rounds"][i],
                   **dict(zip(own, cells, strict=True))}
               for i, cells in enumerate(zip(*own.values(), strict=True))}
        for mode, own in modes.items()
    }  # fmt: skip
    return Answers(rows, {mode: {"gamma": "5", "batch_size": 1} for mode in modes}, "lossless", None)


def test_a_line_by_hand():
    both = {"lossless": {"tokens": [60, 60], "rounds": [12, 12]}, "topk": {"tokens": [60, 60], "rounds": [10, 10]}}
    both["topk"] |= {"score": [0, 1], "accepted": [50, 50], "cut": [True, False]}
    kept, cells = answers(both).line("topk", frozenset({0, 1}))
    assert kept == 5.0
    assert cells[:3] == ["`topk`", "2", "50.0"]
    assert [cell.split(" ")[0] for cell in cells[3:]] == ["-50.0", "5.00", "1.20", "1.00", "0.83", "50.0"]


def test_curves_by_hand(monkeypatch):
    monkeypatch.setattr(curves, "DRAWS", 50)
    rng = np.random.default_rng(0)
    important, order = rng.random(300) < 0.3, rng.random(300)
    names = {curves.RATIO: 1.0, "fly, its entropy alone": 1.0}
    own = curves.Curves([
        {"important": bool(x), "prompt": i // 3, "weight": 1.0, "dropmatch": [0, 1], "regret": [0, 1],
         "followed": 5,
         "order: rule": o, **{f"order: {k}": v for k, v in names.items()}}
        for i, (x, o) in enumerate(zip(important, order, strict=True))
    ])  # fmt: skip
    area, low, high = own.area("rule")
    assert area == pytest.approx(roc_auc_score(important, -order))
    assert low < area < high
    kept, matter = own.curve("rule")
    place = int((order >= 0.6).sum())
    assert (kept[0, place - 1], matter[0, place - 1]) == pytest.approx(
        (place / 300, important[order >= 0.6].sum() / 300)
    )
    (line,) = (x for x in own.table().splitlines() if x.startswith("| `dropmatch`"))
    assert line.count(f"{100 * important.mean():.1f}: ") == 3, "kept as a whole, it is a blind choice"
    assert line.count("0.0 (") == 3


def test_an_unknown_configuration_is_refused():
    with pytest.raises(LossyValueError, match=r"`configurations`.*'gsm8k'.*one is 'gsm8'"):
        pages.quality("gsm8")


def test_the_pages_have_the_tables_that_the_rows_make():
    for path, text in pages.made().items():
        assert path.read_text(encoding="utf-8") == text, f"python -m benchmarks.pages --write changes {path.name}"


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/results/*.md")), ids=lambda path: path.stem)
def test_a_page_is_one_screen(page):
    text = page.read_text(encoding="utf-8")
    assert len(text.split()) <= 600
    assert "lossy-assist-results/README.md#" in text
    tables = re.findall(r"^\|(?:---\|)+$", text, re.MULTILINE)
    assert len(tables) == 1
    if page.stem != "papers":
        assert str(page.relative_to(ROOT)) in {x for x, *_ in TABLES}
        assert f"]({page.stem}.png)" in text
        assert page.with_suffix(".png").stat().st_size


def test_a_picture_shows_the_intervals_of_its_table(tmp_path):
    table = (
        "| texts | rule | n | points | time, × |\n|---|---|---|---|---|"
        "\n| GSM8K | `lossless` | 3 |  | 1 = 4.0 (3.0 … 5.0) |"
        "\n|  | `min_p` | 3 | **-1.5 (-2.0 … +1.0)** | 0.87 (0.84 … 0.91) |"
    )
    labels, shown = pages.panels(table)
    assert labels == ["GSM8K, lossless", "GSM8K, min_p"]
    assert shown == {"points": [[], [(-1.5, -2.0, 1.0)]], "time, ×": [[], [(0.87, 0.84, 0.91)]]}
    pages.draw_table(table, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    _, shown = pages.panels("| case | γ = 4 |\n|---|---|\n| graphs | 190, 191 |")
    assert shown == {"γ = 4": [[(190.0,) * 3, (191.0,) * 3]]}


def test_links_to_the_card_lead_to_a_configuration():
    known = {x["configuration"] for x in tables.rows("studies")}
    for page in (*ROOT.glob("docs/**/*.md"), ROOT / "README.md"):
        linked = re.findall(r"lossy-assist-results/README\.md#([\w-]+)", page.read_text(encoding="utf-8"))
        assert not {*linked} - known, page


def test_every_configuration_loads(tmp_path):
    names = datasets.get_dataset_config_names(str(tables.DATA))
    assert {*names} == {path.stem for path in (tables.DATA / "data").glob("*.parquet")}
    assert {*names} == {x["configuration"] for x in tables.rows("studies")} | {"studies", "modes"}
    for name in names:
        loaded = datasets.load_dataset(str(tables.DATA), name, split="train", cache_dir=str(tmp_path))
        assert len(loaded) == len(tables.rows(name))
    assert sum(path.stat().st_size for path in tables.DATA.rglob("*.parquet")) < 4_000_000
