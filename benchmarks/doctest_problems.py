"""``python -m benchmarks.doctest_problems``: programming problems from the docstrings of other packages.

A function whose docstring has examples is a problem: its signature and docstring are the prompt, and the examples are
the tests. A function stays if its own code alone passes these tests in the sandbox.
"""

from __future__ import annotations

import ast
import doctest
from collections.abc import Iterable, Iterator
from copy import copy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from hf_lossy_assist.errors import LossyUnsupportedError
from hf_lossy_assist.store.folder import append_lines
from hf_lossy_assist.tasks import Example
from hf_lossy_assist.tasks.code import PASSED, Code
from hf_lossy_assist.tasks.task import Row, read_jsonl

from . import command, write_lines


def tests_of(docstring: str) -> list[str]:
    """Return a docstring's examples as statements; those that print anything but a literal's repr are left out.

    Examples
    --------
    >>> tests_of("Add one.\\n\\n>>> x = 1\\n>>> inc(x)\\n2\\n>>> print('no literal')\\nno literal\\n")
    ['x = 1', 'assert inc(x) == 2']
    """
    statements = []
    for example in doctest.DocTestParser().get_examples(docstring):
        source, want = example.source.strip(), example.want.strip()
        if not want:
            statements.append(source)
            continue
        try:
            ast.literal_eval(want)
            ast.parse(source, mode="eval")
        except (SyntaxError, ValueError):
            continue
        statements.append(f"assert {source} == {want}")
    return statements


def problems_of(source: str, name: str) -> Iterator[Row]:
    """Yield the problems of a module in HumanEval's format.

    Examples
    --------
    >>> source = 'def inc(x: int):\\n    "Add one.\\\\n\\\\n>>> inc(1)\\\\n2"\\n    return x + 1\\n'
    >>> [problem] = problems_of(source, "mine")
    >>> problem["prompt"].splitlines()[0], problem["canonical_solution"]
    ('def inc(x):', '    return x + 1\\n')
    >>> problem["test"]
    'def check(candidate):\\n    assert inc(1) == 2\\n'
    """
    tree = ast.parse(source)
    imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    for function in tree.body:
        documented = isinstance(function, ast.FunctionDef) and not function.decorator_list
        docstring = ast.get_docstring(function) if documented else None
        tests = tests_of(docstring) if docstring else []
        if not any(test.startswith("assert") for test in tests) or '"""' in docstring or "\\" in docstring:
            continue
        parameters = _without_annotations(function.args)
        read = (function.args, *function.body)
        used = {node.id for part in read for node in ast.walk(part) if isinstance(node, ast.Name)}
        needed = [line for node in imports if (line := _import_of(node, used))]
        indented = "\n".join(f"    {line}".rstrip() for line in docstring.splitlines())
        prompt = "".join(f"{line}\n" for line in needed) + "\n\n" * bool(needed)
        prompt += f'def {function.name}({ast.unparse(parameters)}):\n    """{indented.strip()}\n    """\n'
        body = "\n".join(ast.unparse(node) for node in function.body[1:])
        yield {
            "task_id": f"{name}/{function.name}",
            "prompt": prompt,
            "entry_point": function.name,
            "canonical_solution": "".join(f"    {line}\n" for line in body.splitlines()),
            "test": "def check(candidate):\n" + "".join(f"    {line}\n" for t in tests for line in t.splitlines()),
        }


def _import_of(node: ast.Import | ast.ImportFrom, used: set[str]) -> str | None:
    """Return the import of the names that are used; None if there are none, or if it is relative."""
    names = [alias for alias in node.names if (alias.asname or alias.name).split(".")[0] in used]
    if not names or getattr(node, "level", 0):
        return None
    kept = copy(node)
    kept.names = names
    return ast.unparse(kept)


def _without_annotations(parameters: ast.arguments) -> ast.arguments:
    for each in ast.walk(parameters):
        if isinstance(each, ast.arg):
            each.annotation = None
    return parameters


def solvable(problems: Iterable[Row]) -> list[Row]:
    """Return the problems whose solution passes the tests by itself."""
    problems = list({row["entry_point"]: row for row in problems}.values())
    with TemporaryDirectory() as folder:
        path = Path(folder) / "problems.jsonl"
        append_lines(path, problems)
        task = Code(data=str(path))
        solved = {x.prompt for x in task.examples("test", len(problems)) if _solves_itself(task, x)}
    return [row for row in problems if row["prompt"] in solved]


def _solves_itself(task: Code, example: Example) -> bool:
    try:
        return task.answer(example, example.solution) == PASSED
    except LossyUnsupportedError:  # a test passes what can't be sent to the sandbox
        return False


def main(
    folders: Annotated[list[Path], typer.Argument(help="Folders of packages' sources; nothing in them is imported.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The JSONL file to write.")],
    without: Annotated[Path | None, typer.Option(help="Leave out functions of these problems, as HumanEval's.")] = None,
    longest: Annotated[int, typer.Option(min=1, help="Characters of the longest prompt.")] = 1200,
) -> None:
    """Write problems for ``--task code`` that have other functions than HumanEval."""
    known = set() if without is None else {row["entry_point"] for row in read_jsonl(str(without), ("entry_point",))}
    found = []
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        found += problems_of(path.read_text(encoding="utf-8"), path.stem)
    rows = solvable(row for row in found if row["entry_point"] not in known and len(row["prompt"]) <= longest)
    write_lines(out, rows)
    typer.echo(f"{len(rows)} problems of {len(found)} functions with examples")


app = command(main)
if __name__ == "__main__":
    app()
