"""Tasks by name and by dotted path."""

from __future__ import annotations

import json
import sys

import pytest

from hf_lossy_assist import LossyValueError, tasks
from hf_lossy_assist.tasks import SHIPPED

OWN = """
from hf_lossy_assist.tasks import Example, Task

class Mine(Task):
    name = "mine"
    def __init__(self, data: str | None = None, size=3, label: str = "x", **rest):
        self.data, self.size, self.label, self.rest = data, size, label, rest
    def examples(self, split, n):
        return [Example("?", "!")] * min(n, self.size)
    def extract_answer(self, text):
        return text or None
    def equivalent(self, a, b):
        return a == b

def make(size):
    return Mine(size=size)

class NoTask:
    pass

constant = 3
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "own_task_of_a_user.py").write_text(OWN)
    (tmp_path / "broken_task_of_a_user.py").write_text("import nothing_of_this_name\n")
    (tmp_path / "misspelt_task_of_a_user.py").write_text("class Task(\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    yield "own_task_of_a_user"
    for name in ("own_task_of_a_user", "broken_task_of_a_user", "misspelt_task_of_a_user"):
        sys.modules.pop(name, None)


@pytest.mark.filterwarnings("ignore:`unsafe_no_isolation` is set")
def test_every_shipped_name_loads(tmp_path, sandbox_options):
    gsm8k, code, prompts = (tmp_path / f"{name}.jsonl" for name in ("gsm8k", "code", "prompts"))
    gsm8k.write_text(json.dumps({"question": "1 + 1?", "answer": "#### 2"}))
    row = {"task_id": "0", "prompt": "def f():\n", "test": "x", "entry_point": "f", "canonical_solution": "    pass"}
    code.write_text(json.dumps(row))
    prompts.write_text(json.dumps({"prompt": "Hello", "category": "writing", "answer": "Hi"}))
    made = {
        "arithmetic": tasks.load("arithmetic"),
        "gsm8k": tasks.load("gsm8k", str(gsm8k)),
        "code": tasks.load("code", str(code), **sandbox_options),
        "prompts": tasks.load("prompts", str(prompts)),
        "refusals": tasks.load("refusals"),
    }
    assert {name: task.name for name, task in made.items()} == {name: name for name in SHIPPED}
    for task in made.values():
        assert [e for split in task.splits for e in task.examples(split, 1)]


def test_a_class_or_a_function_of_one_s_own(own_module):
    assert tasks.load(f"{own_module}:Mine").size == 3
    assert tasks.load(f"{own_module}:make", size=5).size == 5


def test_options_are_typed_as_json_unless_a_text_is_asked_for(own_module):
    task = tasks.load(f"{own_module}:Mine", "7.jsonl", size="4", label="12", more="[1, 2]", flag="true", word="a b")
    assert (task.size, task.label) == (4, "12")
    assert task.rest == {"more": [1, 2], "flag": True, "word": "a b"}
    assert task.data == "7.jsonl"
    assert tasks.load(f"{own_module}:Mine", size=2, more=None).rest == {"more": None}


@pytest.mark.parametrize(
    ("spec", "options", "named"),
    [
        ("gsm9k", {}, "did you mean 'gsm8k'"),
        ("no_such_module:Task", {}, "'no_such_module'"),
        ("broken_task_of_a_user:Task", {}, "'nothing_of_this_name'"),
        ("misspelt_task_of_a_user:Task", {}, "'misspelt_task_of_a_user' .*never closed"),
        ("own_task_of_a_user:Nothing", {}, "'Nothing'"),
        ("own_task_of_a_user:constant", {}, "'constant'"),
        ("own_task_of_a_user:NoTask", {}, "NoTask"),
        ("own_task_of_a_user:", {}, "dotted path"),
        (":Task", {}, "dotted path"),
        ("arithmetic", {"sead": 1}, "'sead'"),
        ("arithmetic", {"data": "problems.jsonl"}, "'data'"),
        ("own_task_of_a_user:make", {}, "'size'"),
        ("prompts", {}, "'data'"),
    ],
)
def test_what_is_no_task_and_no_option_of_one_is_refused(own_module, spec, options, named):
    with pytest.raises(LossyValueError, match=named):
        tasks.load(spec, **options)
