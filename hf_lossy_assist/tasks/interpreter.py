"""A small part of Python that runs inside this process, and can do nothing but compute.

Generated programs are untrusted and are run by the thousand. Nothing here is compiled or executed: a program's syntax
tree is walked, and a node that has no method here does not exist. Values are integers and flat lists of integers;
every step is counted.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable
from typing import Any

MAX_CHARACTERS = 1000
MAX_STEPS = 5000
MAX_INTEGER = 10**9

_ARITHMETIC: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Mod: operator.mod,
}
_COMPARISONS: dict[type, Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sum": sum,
    "len": len,
    "max": max,
    "min": min,
    "sorted": sorted,
    "list": list,
}


class ProgramError(Exception):
    """A program that is no program of this language, fails, or takes too long."""


class _Return(Exception):
    """Leaves a function with a value, which is the argument."""


class _Continue(Exception):
    """Goes on with a loop's next element."""


class Program:
    """A function of one list of integers.

    Parameters
    ----------
    text
        Python source whose last top-level statement is ``def name(values):``, and there is nothing else.

    Raises
    ------
    ProgramError
        If the text is longer than 1000 characters, isn't Python, or isn't one such function.

    Examples
    --------
    >>> Program("def f(a):\\n    return sum(x * x for x in a if x > 1)")([1, 2, 3])
    13
    >>> Program("def f(a):\\n    return open(a)")([1])
    Traceback (most recent call last):
    ...
    hf_lossy_assist.tasks.interpreter.ProgramError: there is no function open
    """

    def __init__(self, text: str) -> None:
        if len(text) > MAX_CHARACTERS:
            raise ProgramError(f"a program has at most {MAX_CHARACTERS} characters")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                body = ast.parse(text).body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ProgramError(f"this is not Python: {error}") from None
        if len(body) != 1 or type(body[0]) is not ast.FunctionDef or body[0].decorator_list:
            raise ProgramError("a program is one function")
        self._body, self._parameter = body[0].body, ast.unparse(body[0].args)
        if not self._parameter.isidentifier():
            raise ProgramError("a program has one parameter, without a default or an annotation")

    def __call__(self, values: list[int]) -> int | list[int] | None:
        """Return what the function returns.

        Raises
        ------
        ProgramError
            If it fails, uses what this language does not have, or takes more than 5000 steps.
        """
        try:
            _Execution({self._parameter: list(values)}).block(self._body)
        except _Return as result:
            return result.args[0]
        except (_Continue, TypeError, ValueError, IndexError, ZeroDivisionError, RecursionError) as error:
            raise ProgramError(f"the program failed: {error}") from None
        return None


class _Execution:
    """One call: its variables, and how many steps are left."""

    def __init__(self, variables: dict[str, Any]) -> None:
        self.variables = variables
        self.left = MAX_STEPS

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise ProgramError(f"a program has {MAX_STEPS} steps")

    def block(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            self.visit(statement)

    def visit(self, node: ast.AST) -> Any:
        self.spend(1)
        method = getattr(self, f"on_{type(node).__name__}", None)
        if method is None:
            raise ProgramError(f"there is no {type(node).__name__}")
        return method(node)

    def integer(self, value: Any) -> int:
        """Return a value that has to be an integer of bounded size, so that lists are flat and sums are short."""
        if type(value) not in (int, bool) or abs(value) > MAX_INTEGER:
            raise ProgramError(f"a number is an integer up to {MAX_INTEGER}")
        return value

    def elements(self, node: ast.AST) -> list[int]:
        """Return what an expression lists; going over it costs as many steps as it has elements."""
        value = self.visit(node)
        if type(value) is not list:
            raise ProgramError("only a list can be gone through")
        self.spend(len(value))
        return value

    def assign(self, target: ast.AST, value: Any) -> None:
        if type(target) is not ast.Name:
            raise ProgramError("only a name can be assigned to")
        self.variables[target.id] = value

    # Statements.

    def on_Assign(self, node: ast.Assign) -> None:
        value = self.visit(node.value)
        for target in node.targets:
            self.assign(target, value)

    def on_AugAssign(self, node: ast.AugAssign) -> None:
        self.assign(node.target, self.visit(ast.BinOp(ast.Name(getattr(node.target, "id", "")), node.op, node.value)))

    def on_For(self, node: ast.For) -> None:
        for value in self.elements(node.iter):
            self.assign(node.target, value)
            try:
                self.block(node.body)
            except _Continue:
                continue
        self.block(node.orelse)

    def on_If(self, node: ast.If) -> None:
        self.block(node.body if self.visit(node.test) else node.orelse)

    def on_Return(self, node: ast.Return) -> None:
        raise _Return(None if node.value is None else self.visit(node.value))

    def on_Continue(self, node: ast.Continue) -> None:
        raise _Continue

    def on_Expr(self, node: ast.Expr) -> None:
        self.visit(node.value)

    # Expressions.

    def on_Constant(self, node: ast.Constant) -> int:
        return self.integer(node.value)

    def on_Name(self, node: ast.Name) -> Any:
        if node.id not in self.variables:
            raise ProgramError(f"there is no variable {node.id}")
        return self.variables[node.id]

    def on_BinOp(self, node: ast.BinOp) -> Any:
        left, right = self.visit(node.left), self.visit(node.right)
        if type(left) is list and type(right) is list and type(node.op) is ast.Add:
            self.spend(len(left) + len(right))
            return left + right
        if type(node.op) not in _ARITHMETIC:
            raise ProgramError(f"there is no {type(node.op).__name__}")
        return self.integer(_ARITHMETIC[type(node.op)](self.integer(left), self.integer(right)))

    def on_UnaryOp(self, node: ast.UnaryOp) -> Any:
        value = self.visit(node.operand)
        if type(node.op) is ast.Not:
            return not value
        if type(node.op) is not ast.USub:
            raise ProgramError(f"there is no {type(node.op).__name__}")
        return -self.integer(value)

    def on_BoolOp(self, node: ast.BoolOp) -> Any:
        decides = type(node.op) is ast.Or
        for value in map(self.visit, node.values):
            if bool(value) is decides:
                break
        return value

    def on_Compare(self, node: ast.Compare) -> bool:
        left = self.visit(node.left)
        for op, comparator in zip(node.ops, node.comparators, strict=True):
            right = self.visit(comparator)
            if type(op) not in _COMPARISONS:
                raise ProgramError(f"there is no {type(op).__name__}")
            if not _COMPARISONS[type(op)](left, right):
                return False
            left = right
        return True

    def on_IfExp(self, node: ast.IfExp) -> Any:
        return self.visit(node.body if self.visit(node.test) else node.orelse)

    def on_List(self, node: ast.List) -> list[int]:
        return [self.integer(self.visit(element)) for element in node.elts]

    def on_ListComp(self, node: ast.ListComp) -> list[int]:
        if len(node.generators) != 1:
            raise ProgramError("a comprehension has one loop")
        outside = dict(self.variables)
        loop, values = node.generators[0], []
        for value in self.elements(loop.iter):
            self.assign(loop.target, value)
            if all(map(self.visit, loop.ifs)):
                values.append(self.integer(self.visit(node.elt)))
        self.variables = outside
        return values

    def on_Subscript(self, node: ast.Subscript) -> Any:
        values = self.elements(node.value)
        if type(node.slice) is not ast.Slice:
            return values[self.integer(self.visit(node.slice))]
        bounds = (node.slice.lower, node.slice.upper, node.slice.step)
        return values[slice(*(None if bound is None else self.integer(self.visit(bound)) for bound in bounds))]

    def on_Call(self, node: ast.Call) -> Any:
        if type(node.func) is ast.Attribute:
            return self._append(node)
        name = getattr(node.func, "id", None)
        if name not in _FUNCTIONS or name in self.variables or len(node.args) != 1:
            raise ProgramError(f"there is no function {name}")
        [values] = node.args
        if type(values) is ast.GeneratorExp and name != "len":
            values = ast.ListComp(values.elt, values.generators)
        options = {keyword.arg: self.integer(self.visit(keyword.value)) for keyword in node.keywords}
        if set(options) - {"default"}:
            raise ProgramError(f"{name} has no such option")
        return _FUNCTIONS[name](self.elements(values), **options)

    def _append(self, node: ast.Call) -> None:
        values = self.visit(node.func.value)
        if type(values) is not list or node.func.attr != "append" or len(node.args) != 1 or node.keywords:
            raise ProgramError("the only method is append, of a list")
        values.append(self.integer(self.visit(node.args[0])))
