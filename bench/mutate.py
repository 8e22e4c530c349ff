"""Mutation tests: mutmut breaks the code in one place at a time, and a test should notice.

python -m bench.mutate [NAME ...] [--jobs N] [--minutes M] [--results FILE] [--survivors] [--show]

What is mutated and by which tests is `[tool.mutmut]` of pyproject.toml. Each mutant is a line of
the results file as soon as it is known, and what is known is not run again. NAME is a pattern
such as `sps.algo.rl.*`. docs/mutation.md has the figures.
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import gc
import json
import multiprocessing
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from queue import Empty
from tempfile import TemporaryDirectory
from typing import Any

# Before torch is imported anywhere: a mutant gets one core, and no GPU, which does not survive a
# fork. The path is for tests that start processes; theirs has to be the mutated code as well.
os.environ |= {
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "TOKENIZERS_PARALLELISM": "false",
}
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path("mutants/src").absolute())]
    + [
        p
        for p in os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if p and Path(p) != Path("src")
    ]
)

import pytest
from mutmut import __main__ as mutmut
from mutmut.configuration import config
from mutmut.mutation import mutators
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.mutation.trampoline_templates import mangle_function_name
from mutmut.runners.harness import PytestRunner
from mutmut.state import state
from mutmut.stats import status_by_exit_code
from mutmut.utils.file_utils import change_cwd, walk_mutatable_files
from mutmut.utils.format_utils import mangled_name_from_mutant_name
from mutmut.workers.isolation import ForkServerRunner, MutantResult

KILLED = ("killed", "timeout")
RUNS = "tests/e2e/"  # slow and strong: for the modules of the loop alone
LOOP = ("sps.phases", "sps.store", "sps.evaluation")
UNTESTED, SKIPPED = 33, 34  # exit codes, as mutmut has them


class Watch:
    """A plugin of pytest: which tests call which functions, their seconds, and which fail.

    mutmut has its own, which reads an attribute that pytest 9.2 no longer has.
    """

    def __init__(self) -> None:
        self.callers: dict[str, set[str]] = defaultdict(set)
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: set[str] = set()
        self.shared: dict[str, set[str]] = defaultdict(set)  # by fixture

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef):
        """What a shared fixture calls counts for every test that has it, not for the first."""
        before = set(state()._stats)
        state()._stats.clear()
        made = yield
        if fixturedef.scope != "function":
            self.shared[fixturedef.argname] |= state()._stats
        state()._stats.update(before)
        return made

    def pytest_runtest_teardown(self, item) -> None:
        """Before what the test set up is taken down."""
        for name in item.fixturenames:
            for function in self.shared.get(name, ()):
                self.callers[function].add(item.nodeid)

    def pytest_runtest_logreport(self, report) -> None:
        """After setup, call and teardown of a test."""
        self.seconds[report.nodeid] += report.duration
        for function in state()._stats:
            self.callers[function].add(report.nodeid)
        state()._stats.clear()
        if report.failed:
            self.failed.add(report.nodeid)

    def pytest_collectreport(self, report) -> None:
        """After a file was imported."""
        if report.failed:
            self.failed.add(report.nodeid)


class Tests(PytestRunner):
    """Pytest in a folder of its own for temporary files: many run at the same time."""

    def warm_up(self) -> None:
        """As mutmut's. What is imported then is left alone by the garbage collector, which would
        else go through all of it, and so copy it, in every mutant: ten times a quick test."""
        super().warm_up()
        gc.collect()
        gc.freeze()

    def execute_pytest(self, params: list[str], **kwargs: Any) -> int:
        """As mutmut's."""
        with TemporaryDirectory() as folder:
            return super().execute_pytest([*params, f"--basetemp={folder}/made"], **kwargs)


def _watch(tests: list[str]) -> Watch:
    watch = Watch()
    with change_cwd("mutants"):
        Tests().execute_pytest(["-q", *tests], plugins=[watch])
    return watch


class Runner(ForkServerRunner):
    """mutmut's fork server with a deadline, quick tests first, and a log of what it found."""

    def __init__(self, jobs: int, deadline: float, budget: float, results: Path) -> None:
        super().__init__(max_workers=jobs, test_runner_class=Tests, test_runner_args={})
        self.deadline = deadline
        self.budget = budget
        self.results = results
        self.hashes = _hashes()
        self.done = 0

    def collect_stats(self, tests: Iterable[str] | None) -> int:
        """Test files side by side. A test that fails without a mutant is left out, and named."""
        files = defaultdict(list)
        for test in tests or _test_files():
            files[test.split("::")[0]].append(test)
        context = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(self.max_workers, mp_context=context) as pool:
            for watch in pool.map(_watch, files.values()):
                for test in sorted(watch.failed):
                    print("left out, fails by itself:", test, file=sys.__stderr__, flush=True)
                    _append(self.results, {"left_out": test})
                for function, callers in watch.callers.items():
                    state().tests_by_mangled_function_name[function] |= callers - watch.failed
                state().duration_by_test.update(watch.seconds)
        for function, callers in state().tests_by_mangled_function_name.items():
            near = {test for test in callers if not test.startswith(RUNS)}
            if near and not function.startswith(LOOP):
                state().tests_by_mangled_function_name[function] = near
        return 0

    def run_clean_tests(self, tests: Iterable[str]) -> int:
        """`collect_stats` was that."""
        return 0

    def submit(
        self, mutant_name: str, tests: list[str], cpu_time_limit: int, estimated_time: float
    ) -> None:
        """As mutmut's, the quickest test first."""
        seconds = state().duration_by_test
        tests = sorted(tests, key=lambda test: (seconds[test], test))
        spent = accumulate((seconds[test] for test in tests), initial=0.0)
        tests = [test for test, before in zip(tests, spent, strict=False) if before <= self.budget]
        super().submit(mutant_name, tests, cpu_time_limit, estimated_time)

    def wait_for_result(self, timeout: float | None = None) -> MutantResult:
        """As mutmut's; each result is on file when it is returned."""
        while self._shutting_down or time.time() < self.deadline:
            began = {name: work[3].timestamp() for name, work in self._pending_work.items()}
            try:
                result = super().wait_for_result(timeout=1.0)
            except Empty:
                if timeout is not None:
                    raise
                continue
            seconds = time.time() - began[result.mutant_name]
            hash_ = self.hashes[result.mutant_name]
            _append(self.results, _line(result.mutant_name, hash_, result.exit_code, seconds))
            self.done += 1
            if self.done % 100 == 0:
                print(self.done, "mutants", flush=True)
            return result
        print("\nout of time: the same command goes on from here", file=sys.__stderr__)
        raise KeyboardInterrupt


def _test_files() -> list[str]:
    names = config().pytest_add_cli_args_test_selection
    found = [Path(n) if n.endswith(".py") else sorted(Path(n).rglob("test_*.py")) for n in names]
    return [str(p) for entry in found for p in ([entry] if isinstance(entry, Path) else entry)]


def _line(name: str, hash_: str, code: int, seconds: float) -> dict[str, Any]:
    # 255 is an exception of the harness itself: not the test's verdict, whatever mutmut calls it.
    status = "error" if code == 255 else status_by_exit_code[code]
    line = {"mutant": name, "status": status, "exit": code, "seconds": round(seconds, 2)}
    return line | {"function": hash_}


def _append(path: Path, line: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")


def read_results(path: Path) -> dict[str, dict[str, Any]]:
    """The last word on each mutant whose function is still the same."""
    lines = map(json.loads, path.read_text().splitlines()) if path.exists() else []
    now = _hashes()
    known = {line["mutant"]: line for line in lines if "mutant" in line}
    return {name: line for name, line in known.items() if now.get(name) == line["function"]}


def _mutated() -> list[SourceFileMutationData]:
    found = [SourceFileMutationData(path=path) for path in walk_mutatable_files()]
    for data in found:
        data.load()
    return found


def _hashes() -> dict[str, str]:
    """Of the function each mutant is of; mutmut's own differ between versions of Python."""
    found = {}
    for data in _mutated():
        texts = _functions(Path(data.path).read_text(encoding="utf-8"))
        for name in data.exit_code_by_key:
            text = texts[mangled_name_from_mutant_name(name).rpartition(".")[2]]
            found[name] = sha256(text.encode()).hexdigest()[:12]
    return found


def _functions(source: str) -> dict[str, str]:
    """Source of each function and method, by the name that mutmut gives it."""
    tree = ast.parse(source)
    classes = [(c.name, c.body) for c in tree.body if isinstance(c, ast.ClassDef)]
    return {
        mangle_function_name(name=node.name, class_name=name): ast.get_source_segment(source, node)
        for name, body in [(None, tree.body), *classes]
        for node in body
        if isinstance(node, ast.FunctionDef)
    }


def _asked(name: str, patterns: list[str]) -> bool:
    return not patterns or any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def recall(results: Path, patterns: list[str], survivors: bool) -> None:
    """Give mutmut what the results file knows; of survivors nothing, to run them again."""
    known = read_results(results)
    for data in _mutated():
        for name in data.exit_code_by_key:
            line = known.get(name)
            done = line is not None and (line["status"] in KILLED or not survivors)
            skip = SKIPPED if not _asked(name, patterns) else None
            data.exit_code_by_key[name] = line["exit"] if done else skip
        data.save()


def _note_untested(results: Path) -> None:
    """mutmut does not hand mutants that no test reaches to its runner."""
    known, hashes = read_results(results), _hashes()
    for data in _mutated():
        for name, code in data.exit_code_by_key.items():
            if code == UNTESTED and name not in known:
                _append(results, _line(name, hashes[name], code, 0.0))


def table(results: Path, names: list[str], show: bool) -> None:
    """Mutants of each module; with `show` what each survivor changes."""
    known = read_results(results)
    counts: dict[str, Counter] = defaultdict(Counter)
    left = []
    for data in _mutated():
        for name in data.exit_code_by_key:
            if not _asked(name, names):
                continue
            status = known[name]["status"] if name in known else "not run"
            counts[str(data.path)][status] += 1
            if status not in (*KILLED, "not run"):
                left.append((name, status, data.path))
    counts["all"] = sum(counts.values(), Counter())
    print("| module | mutants | not run | killed | of these by timeout | left | killed, % |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for module, count in counts.items():
        run = count.total() - count["not run"]
        killed = sum(count[status] for status in KILLED)
        share = f"{100 * killed / run:.1f}" if run else ""
        row = [
            module,
            count.total(),
            count["not run"],
            killed,
            count["timeout"],
            run - killed,
            share,
        ]
        print("|", " | ".join(map(str, row)), "|")
    for name, status, path in left:
        print(f"\n{name}: {status}" if show else f"{name}: {status}")
        if show:
            lines = get_diff_for_mutant(name, path=path).splitlines()
            print("\n".join(x for x in lines[2:] if x[:1] in "+-@"))


def main() -> None:
    """See the top of the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="patterns of mutants, such as 'sps.algo.rl.*'")
    parser.add_argument("--tests", nargs="+", help="instead of those in pyproject.toml")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--minutes", type=float, default=24 * 60, help="stop after so long")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds of tests a mutant")
    parser.add_argument("--results", type=Path, default=Path("mutants/results.jsonl"))
    parser.add_argument("--survivors", action="store_true", help="run those again")
    parser.add_argument("--show", action="store_true", help="run nothing, show what was left")
    told = parser.parse_args()
    # Texts are not mutated: what a message says is no behaviour that a test should pin.
    operators = mutators.mutation_operators
    operators[:] = [pair for pair in operators if pair[1] is not mutators.operator_string]
    if told.tests:
        config().pytest_add_cli_args_test_selection[:] = told.tests
    deadline = time.time() + 60 * told.minutes
    told.results.parent.mkdir(parents=True, exist_ok=True)

    def recalled(**given: Any) -> Any:
        recall(told.results, told.names, told.survivors)  # other tests make mutmut forget
        return collected(**given)

    if not told.show:
        collected = mutmut.collect_source_file_mutation_data
        mutmut.collect_source_file_mutation_data = recalled
        mutmut.get_mutant_runner = lambda jobs=1: Runner(jobs, deadline, told.budget, told.results)
        # It counts all mutants again for each one, which takes longer than most of them do.
        mutmut.print_stats = lambda *_, **__: None
        mutmut._run((), told.jobs)
        _note_untested(told.results)
    table(told.results, told.names, told.show)


if __name__ == "__main__":
    main()
