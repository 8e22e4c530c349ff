"""Which tasks of reasoning-gym may run what a model wrote: a reading of their scorers' source.

From `score_answer` on, every function of the package that may be called is read. A name is enough:
a method is taken for every method of that name in the files read so far, so what is called through
an object is not missed. What is neither the package's own nor on the list of libraries that take
text for text counts as evaluating. The reading errs on the side of refusing.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
import textwrap
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

# Nothing in these runs a string, short of the names below.
_PLAIN = frozenset({
    "abc", "ast", "bisect", "builtins", "calendar", "cmath", "collections", "contextlib", "copy",
    "dataclasses", "datetime", "decimal", "difflib", "enum", "fractions", "functools", "heapq",
    "itertools", "json", "logging", "magiccube", "math", "numbers", "numpy", "operator", "random",
    "re", "statistics", "string", "textwrap", "time", "typing", "unicodedata", "zoneinfo", "zss",
})  # fmt: skip
_EVALUATORS = frozenset({
    "eval", "exec", "compile", "execfile", "__import__", "import_module", "sympify", "parse_expr",
    "parse_latex", "lambdify", "system", "popen", "Popen", "check_output", "check_call", "spawn",
    "getattr", "setattr", "globals", "locals", "vars", "open", "input", "breakpoint", "fromfile",
    "tofile", "memmap", "genfromtxt", "loadtxt", "savetxt", "save", "savez", "load", "dump",
    "unsafe_load", "full_load", "find_class", "methodcaller", "attrgetter", "__builtins__",
    "__globals__", "__subclasses__",
})  # fmt: skip


def evaluator(dataset: type) -> str:
    """What may run an answer, and where; empty where nothing does."""
    package = dataset.__module__.partition(".")[0]
    found: list[FunctionType] = [inspect.unwrap(getattr(dataset, "score_answer"))]  # noqa: B009
    names: set[str] = set()
    modules = {sys.modules[c.__module__] for c in dataset.__mro__ if _own(c, package)}
    for function in found:  # grows while it is read
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        except (OSError, TypeError, SyntaxError):
            return f"{function.__qualname__}, whose source cannot be read"
        scope = {**vars(builtins), **vars(sys.modules[function.__module__])}
        for node in ast.walk(tree):
            if why := _danger(node, scope, package):
                line = function.__code__.co_firstlineno + getattr(node, "lineno", 1) - 1
                return f"{why} in {function.__module__}, line {line}"
            names |= {n for n in (_called(node),) if n}
            target = _resolve(node, scope)
            if _own(target, package):
                modules.add(sys.modules[target.__module__])
                found += [f for f in _functions(target) if f not in found]
        for module in list(modules):
            found += [f for f in _named(module, names, package) if f not in found]
    return ""


def _danger(node: ast.AST, scope: dict[str, Any], package: str) -> str:
    """The word that makes this node one that may run text."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        base = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        tops = {name.partition(".")[0] for name in base}
        relative = isinstance(node, ast.ImportFrom) and node.level > 0
        strange = set() if relative else tops - _PLAIN - {package}
        return f"import {min(strange)}" if strange else ""
    word, target = _called(node), _resolve(node, scope)
    if word in _EVALUATORS and not _is_pattern(node) and not _own(target, package):
        return word
    if isinstance(node, ast.Attribute) and word == "score_answer":
        return "the scorer of another task"
    home = target.__name__ if isinstance(target, ModuleType) else getattr(target, "__module__", "")
    top = str(home or "").partition(".")[0].lstrip("_")
    # `re` and `json` are packages of their own making; instances (numbers, tables) have no module.
    known = not top or top in _PLAIN or top in {package, "sre", "functools", "thread"}
    return "" if known else f"{word} of {top}"


def _is_pattern(node: ast.AST) -> bool:
    """`re.compile`."""
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr) == ("re", "compile")
    )


def _called(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) else ""


def _resolve(node: ast.AST, scope: dict[str, Any]) -> Any:
    """The object of a global name, or of an attribute of a module; else None."""
    if isinstance(node, ast.Name):
        return scope.get(node.id)
    if isinstance(node, ast.Attribute):
        value = _resolve(node.value, scope)
        return getattr(value, node.attr, None) if isinstance(value, ModuleType | type) else None
    return None


def _own(target: Any, package: str) -> bool:
    is_code = isinstance(target, FunctionType | type)
    return is_code and target.__module__.partition(".")[0] == package


def _functions(target: Any) -> Iterator[FunctionType]:
    """A function, or all those of a class."""
    if isinstance(target, type):
        members = [inspect.unwrap(getattr(v, "__func__", v)) for v in vars(target).values()]
        members += [v.fget for v in vars(target).values() if isinstance(v, property)]
        home = target.__module__  # an Enum also holds functions of the standard library
        written = (m for m in members if isinstance(m, FunctionType) and m.__module__ == home)
        yield from (m for m in written if m.__code__.co_filename != "<string>")  # by dataclass
    else:
        yield inspect.unwrap(target)


def _named(module: ModuleType, names: set[str], package: str) -> Iterator[FunctionType]:
    for member in vars(module).values():
        if isinstance(member, type) and _own(member, package):
            yield from (f for f in _functions(member) if f.__name__ in names)
