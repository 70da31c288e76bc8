"""DropMatch end to end over dropouts, against runs by hand."""

from __future__ import annotations

from benchmarks.dropout_choice import dropout_choices
from tests.small_pair import MAX_NEW_TOKENS


def test_dropout_choices_are_the_runs_that_users_get(pair):
    rows = list(dropout_choices(pair, [0.2], ["naive", "js"], problems=4, gamma=4, seed=9))
    assert [(row.criterion, row.dropout) for row in rows] == [("js", 0.0), ("naive", 0.2), ("js", 0.2)]
    assert (rows[0].accuracy, rows[0].accepted_lossy) == (0.5, 0.0)
    for row in rows:
        stats, right = [], 0
        for i, example in enumerate(pair.task.examples("validation", 4)):
            inputs = pair.tokenizer(example.prompt, return_tensors="pt")
            config = {"criterion": row.criterion, "dropout": row.dropout, "seed": 9 + i}
            out = pair.target.generate(
                **inputs, assistant_model=pair.draft, lossy_mode="dropmatch", lossy_config=config, do_sample=False,
                num_assistant_tokens=4, max_new_tokens=MAX_NEW_TOKENS, return_dict_in_generate=True,
            )  # fmt: skip
            text = pair.tokenizer.decode(out.sequences[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
            right += text == example.answer
            stats.append(out.lossy_stats)
        assert row.accuracy == right / 4
        assert row.mean_accepted == sum(s.accepted for s in stats) / sum(s.rounds for s in stats)
        assert row.accepted_lossy == sum(s.accepted_lossy for s in stats) / sum(s.accepted for s in stats)
    assert rows[1].accepted_lossy > 0
