"""Programs that want to pass without being right, or never to end."""

from __future__ import annotations

from hf_lossy_assist.tasks.sandbox import Sandbox

ENDLESS = [
    "while True: pass",
    "import time; time.sleep(1000)",
    "import signal; signal.raise_signal(signal.SIGSTOP)",
    "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: print('x' * 1000)",
    "import sys\nsys.setrecursionlimit(10**9)\ndef f(): return [f()]\nf()",
    "import os\nwhile True: os.mkdir('d'); os.chdir('d')",
    "import os\nfor i in range(10**9): open(str(i), 'w').close()",
]

WRITE_TO_ALL = """
import os
def write(data):
    for descriptor in range(3, 64):
        try: os.write(descriptor, data)
        except OSError: pass
"""
CHEATS = {
    "compiles the tests away": "import builtins\nbuiltins.compile = lambda *a, **k: (lambda: 0).__code__",
    "executes nothing": "import builtins\nbuiltins.exec = lambda *a: None",
    "patches what runs it": """
import __main__
for name in list(vars(__main__)):
    if name != '__builtins__': setattr(__main__, name, lambda *a, **k: True)
""",
    "patches messages": "import json\njson.dumps = lambda message: '{\"returned\": true}'",
    "patches writing": """
import os
write = os.write
os.write = lambda descriptor, data: write(descriptor, b'{"returned": 4}\\n') and len(data)
""",
    "answers in advance": WRITE_TO_ALL + "write(b'{\"returned\": 4}\\n' * 9)",
    "reports itself": WRITE_TO_ALL + "write(b'ready\\n++\\npassed')",
    "ends well": "import atexit, os\natexit.register(os._exit, 0)\nraise SystemExit(0)",
    "equals everything": """
class Equal(int):
    __eq__ = lambda *a: True
    __ne__ = lambda *a: False
    __hash__ = int.__hash__
def f(x): return Equal()
""",
    "is a list that equals everything": """
class Equal(list):
    __eq__ = lambda *a: True
    __getitem__ = lambda *a: 4
def f(x): return Equal([5])
""",
    "is an object that equals everything": "class A:\n  __eq__ = lambda *a: True\ndef f(x): return A()",
    "looks for the tests": """
import gc, sys
def f(x):
    found = [o for o in gc.get_objects() if isinstance(o, dict) and '_mark_of_a_test' in o]
    frame = sys._getframe()
    while frame:
        found.append(frame.f_locals.get('failures'))
        frame = frame.f_back
    for thing in filter(None, found): thing.clear()
    return 0
""",
    "ends its results": "def f(x): raise StopIteration",
    "floods": "def f(x): return 'x' * (1 << 25)",
    "nests": WRITE_TO_ALL + "def f(x): write(b'[' * 60_000 + b'\\n')",
    "sends nonsense": WRITE_TO_ALL
    + """
def f(x):
    write(b'3\\n{"raised": 3}\\n{"returned": {"set": [[1]]}}\\n{"returned": {"no": 1}}\\n')
""",
}


def assert_no_cheat(sandbox: Sandbox, program: str) -> None:
    """Run a program whose function should double its argument, and doesn't."""
    report = sandbox.run(f"def f(x): return 0\n{program}", "f", "assert f(2) == 4\nassert f(3) == 6\nassert f(4) == 8")
    assert not report.passed
    assert report.reason != "passed"
    assert report.marks.count("+") <= 1  # one right answer may be guessed
