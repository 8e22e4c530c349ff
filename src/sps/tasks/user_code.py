"""The user's own Python file: found, imported, checked; and its judge as a verifier runs it.

Workers import this module: no torch, no pyarrow.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import math
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from sps.errors import UserError
from sps.types import KINDS, Problem, Verdict

EXAMPLES = {
    "judge": "def judge(problem, text): return text.strip() == str(problem.answer)",
    "problems": 'def problems(split): return [{"id": "1", "question": "1 + 1?", "answer": "2"}]',
    "prompt": "def prompt(problem): return problem.question",
    "mode": "def mode(problem, text): return text.strip()",
}
_ARGUMENTS = {"judge": ("problem", "text"), "problems": ("split",), "prompt": ("problem",)}
_ARGUMENTS["mode"] = _ARGUMENTS["judge"]
RETURNED = "judge returned"  # how the detail begins of what is no verdict
_WANTED = "True, False, a number from 0 to 1, or a sps.types.Verdict"
_FRAMES = 3  # of a traceback that are told, the innermost
_LONGEST = 480  # characters of a detail; a worker sends no more than 500


@dataclass(frozen=True)
class UserCode:
    """A file that was imported, and its functions."""

    key: str  # what the recipe calls it: 'task.path: my_task.py'
    file: Path
    sha256: str
    module: ModuleType

    def get(self, name: str) -> Callable[..., Any] | None:
        """A function of the file, checked as far as that goes without calling it."""
        found = getattr(self.module, name, None)
        if found is None:
            return None
        if not callable(found):
            raise self.wrong(name, f"{name} is a {type(found).__name__}, not a function")
        if inspect.iscoroutinefunction(found):
            raise self.wrong(name, f"{name} is async; a plain function is called")
        try:
            inspect.signature(found).bind(*_ARGUMENTS[name])
        except TypeError:
            takes = ", ".join(_ARGUMENTS[name])
            raise self.wrong(name, f"{name} is called as {name}({takes})") from None
        except ValueError:  # a built-in function that does not say what it takes
            pass
        return found

    def need(self, name: str) -> Callable[..., Any]:
        """A function that must be there."""
        found = self.get(name)
        if found is None:
            own = [n for n, f in vars(self.module).items() if inspect.isfunction(f)]
            has = f"it has {', '.join(own)}" if own else "it has no function"
            raise UserError(f"{self.key}: no function {name} ({has}). Write: {EXAMPLES[name]}")
        return found

    def wrong(self, name: str, what: str, example: str = "") -> UserError:
        """What is wrong with one of its functions, where, and what to write."""
        code = getattr(getattr(self.module, name, None), "__code__", None)
        line = f", line {code.co_firstlineno}" if code else ""
        return UserError(f"{self.key}{line}: {what}. Write: {example or EXAMPLES[name]}")

    def call(self, name: str, *given: Any) -> Any:
        """Call a function before any work; what it raises is the user's to mend."""
        try:
            return self.need(name)(*given)
        except (Exception, SystemExit) as error:
            if isinstance(error, UserError):
                raise
            shown = given[0].id if isinstance(given[0], Problem) else given[0]
            raise UserError(f"{self.key}: {name}({shown!r}) {told(error, self.file)}") from None


def load(path: str | None, module: str | None) -> UserCode:
    """Import a file, or a module by its name; whatever goes wrong names file and line."""
    if module:
        return _load_module(module)
    assert path is not None
    key, file = f"task.path: {path}", Path(path).expanduser()
    if not file.is_file():
        raise UserError(
            f"{key}: there is no such file in {Path.cwd()}; a path starts at the folder that sps "
            "is started in"
        )
    if file.suffix != ".py":
        raise UserError(f"{key}: name a Python file, such as my_task.py")
    file = file.resolve()
    if str(file.parent) not in sys.path:  # last: it shall hide no module of anybody else
        sys.path.append(str(file.parent))
    name = f"sps_task_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made  # dataclasses look themselves up there
    data = file.read_bytes()
    _imported(key, file, lambda: spec.loader.exec_module(made))
    return UserCode(key, file, hashlib.sha256(data).hexdigest(), made)


def _load_module(name: str) -> UserCode:
    key = f"task.module: {name}"
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        spec = None
    except (Exception, SystemExit) as error:  # of its package
        raise UserError(f"{key}: cannot be imported: {told(error)}") from None
    if spec is None or not spec.origin or not Path(spec.origin).is_file():
        raise UserError(
            f"{key}: there is no such Python module here; it must be installed, or lie below "
            f"{Path.cwd()} or PYTHONPATH. For a file give task.path"
        )
    file = Path(spec.origin)
    made = _imported(key, file, lambda: importlib.import_module(name))
    return UserCode(key, file, hashlib.sha256(file.read_bytes()).hexdigest(), made)


def _imported(key: str, file: Path, run: Callable[[], Any]) -> Any:
    try:
        return run()
    except SyntaxError as error:
        where = f"line {error.lineno} of {error.filename or file}"
        text = f": {error.text.strip()[:100]}" if error.text else ""
        raise UserError(f"{key}: {where} is not Python: {error.msg}{text}") from None
    except (Exception, SystemExit) as error:
        raise UserError(f"{key}: cannot be imported: it {told(error, file)}") from None


def told(error: BaseException, file: Path | None = None) -> str:
    """'raised ValueError: no (my_task.py line 3, in judge: int(text))', innermost last."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [i for i, f in enumerate(frames) if file and Path(f.filename) == file]
    frames = frames[own[0] :] if own else []
    shown = [
        f"{Path(f.filename).name} line {f.lineno}, in {f.name}: {(f.line or '').strip()[:80]}"
        for f in frames[-_FRAMES:]
    ]
    if own and len(frames) > _FRAMES:  # the user's own line is told whatever it called
        f = frames[max(i - own[0] for i in own)]
        shown[0] = f"{Path(f.filename).name} line {f.lineno}, in {f.name}: {(f.line or '')[:80]}"
    text = f"raised {type(error).__name__}: {str(error)[:150]}"
    if "'Problem' object" in text:
        text += "; it has id, question, answer, and meta, which is the row"
    return (text + (f" ({'; '.join(shown)})" if shown else ""))[:_LONGEST]


def make_judge(
    path: str | None = None, module: str | None = None, right: float = 1.0, cut: str = "zero"
) -> Callable[[Problem, str, bool], Verdict]:
    """The file's judge, whatever it raises or returns; the factory that workers call."""
    code = load(path, module)
    own = code.need("judge")

    def judge(problem: Problem, text: str, finished: bool) -> Verdict:
        if not finished and cut == "zero":
            return Verdict("truncated", 0.0, "cut off at the token limit")
        try:
            return verdict_of(own(problem, text), right)
        except MemoryError:  # the verifier's to handle
            raise
        except (Exception, SystemExit) as error:
            return Verdict("crashed", 0.0, told(error, code.file))

    return judge


def verdict_of(value: Any, right: float) -> Verdict:
    """What a judge returned as a verdict; what is none is 'crashed', and says what it was."""
    if isinstance(value, Verdict):
        return value if _is_whole(value) else _no_verdict(value)
    if hasattr(value, "item") and not isinstance(value, bool | int | float):  # numpy, torch
        value = value.item() if getattr(value, "size", 1) == 1 else value
    if not isinstance(value, bool | int | float) or not 0 <= value <= 1:
        return _no_verdict(value)
    reward = float(value)
    return Verdict("correct" if reward >= right else "wrong", reward)


def _is_whole(v: Verdict) -> bool:
    """A kind of KINDS and the reward that goes with it."""
    texts = isinstance(v.detail, str) and isinstance(v.answer, str)
    if not texts or v.kind not in KINDS or not isinstance(v.reward, bool | int | float):
        return False
    if v.kind == "correct":
        return 0 < v.reward <= 1
    return 0 <= v.reward < 1 if v.kind == "wrong" else v.reward == 0


def _no_verdict(value: Any) -> Verdict:
    hint = "; Verdict: correct has a reward up to 1, wrong one below 1, other kinds 0"
    why = f"{RETURNED} {_short(value)}, not {_WANTED}{hint if isinstance(value, Verdict) else ''}"
    return Verdict("crashed", 0.0, why)


def _short(value: Any) -> str:
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    try:
        return f"{value!r:.120}"
    except Exception:
        return f"a {type(value).__name__}"
