"""Warnings are about lines of the user."""

from __future__ import annotations

import inspect
import subprocess
import sys
import warnings

import hf_lossy_assist
from hf_lossy_assist.errors import warn, warn_once
from tests.tiny_models import noisy_copy, prompt, tiny


def line_here() -> int:
    return inspect.currentframe().f_back.f_lineno


def test_a_warning_from_deep_inside_is_about_the_call():
    target = tiny()
    with warnings.catch_warnings(record=True) as caught, hf_lossy_assist.enabled(target):
        warnings.simplefilter("always")
        line = line_here() + 1
        target.generate(prompt(), assistant_model=noisy_copy(target), lossy_mode="ears", max_new_tokens=2)
    (warning,) = [x for x in caught if "changes nothing in greedy decoding" in str(x.message)]
    assert (warning.filename, warning.lineno) == (__file__, line)


def test_what_is_called_directly_is_about_the_call_too():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn("one")
        warn_once("two")
        warn_once("two")
    assert [str(x.message) for x in caught] == ["one", "two"]
    assert {x.filename for x in caught} == {__file__}


def test_the_command_line_shows_warnings_as_a_line():
    code = "import warnings, hf_lossy_assist.cli as cli\ncli.run = lambda words: warnings.warn('mind this')\ncli.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr == "warning: mind this\n"
