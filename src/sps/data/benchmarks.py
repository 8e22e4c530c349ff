"""The benchmarks: where each is found and how it is read. Their text is not shipped."""

from __future__ import annotations

import difflib
import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sps.data.load import Columns, Row, load_problems
from sps.errors import UserError
from sps.types import Problem


@dataclass(frozen=True)
class Benchmark:
    """One row of the registry."""

    name: str
    title: str
    kind: str  # of verifier: 'math' or 'choice'
    file: str  # its name under --data-dir, in the layout id, problem, answer
    hub: str
    split: str = "test"
    config: str | None = None
    columns: Columns | None = None
    convert: Callable[[Row], Row] | None = None  # a hub row to id, problem, answer


def _olympiad(row: Row) -> Row:
    return {**row, "answer": ", ".join(a.strip("$ ") for a in row["final_answer"])}


def _lettered(question: str, options: list[str], labels: list[str]) -> str:
    lines = "\n".join(f"{label}) {option}" for label, option in zip(labels, options, strict=True))
    return f"{question}\n\n{lines}"


def _mmlu(row: Row) -> Row:
    text = _lettered(row["question"], row["choices"], list("ABCD"))
    return {**row, "problem": text, "answer": "ABCD"[row["answer"]]}


def _arc(row: Row) -> Row:
    options, labels = row["choices"]["text"], row["choices"]["label"]
    return {
        **row,
        "problem": _lettered(row["question"], options, labels),
        "answer": row["answerKey"],
    }


def _gpqa(row: Row) -> Row:
    right = row["Correct Answer"].strip()
    options = [right, *(row[f"Incorrect Answer {i}"].strip() for i in (1, 2, 3))]
    # The right one is always the first in the file: shuffle, by the question alone.
    seed = hashlib.sha256(row["Question"].encode()).hexdigest()
    order = random.Random(seed).sample(range(4), 4)
    text = _lettered(row["Question"], [options[i] for i in order], list("ABCD"))
    return {"problem": text, "answer": "ABCD"[order.index(0)], "id": row.get("Record ID")}


_ARENA = Columns("problem", "answer", "problem_idx")
_QA = Columns("question", "answer")
_PA = Columns("problem", "answer")
_ALL = (
    Benchmark("aime24", "AIME 2024", "math", "aime_2024", "HuggingFaceH4/aime_2024", "train"),
    Benchmark(
        "aime25", "AIME 2025", "math", "aime_2025", "MathArena/aime_2025", "train", None, _ARENA
    ),
    Benchmark(
        "brumo25", "BrUMO 2025", "math", "brumo_2025", "MathArena/brumo_2025", "train", None, _ARENA
    ),
    Benchmark(
        "hmmt_feb25",
        "HMMT Feb 2025",
        "math",
        "hmmt_feb_2025",
        "MathArena/hmmt_feb_2025",
        "train",
        None,
        _ARENA,
    ),
    Benchmark(
        "hmmt_nov25",
        "HMMT Nov 2025",
        "math",
        "hmmt_nov_2025",
        "MathArena/hmmt_nov_2025",
        "train",
        None,
        _ARENA,
    ),
    Benchmark("math500", "MATH-500", "math", "math500", "HuggingFaceH4/MATH-500", columns=_PA),
    Benchmark("gsm8k", "GSM8K", "math", "gsm8k_test", "openai/gsm8k", "test", "main", _QA),
    Benchmark("amc23", "AMC 2023", "math", "amc23", "math-ai/amc23", columns=_QA),
    Benchmark(
        "minerva", "Minerva Math", "math", "minerva_math", "math-ai/minervamath", columns=_QA
    ),
    Benchmark(
        "olympiadbench",
        "OlympiadBench",
        "math",
        "olympiadbench_math_en",
        "Hothan/OlympiadBench",
        "train",
        "OE_TO_maths_en_COMP",
        _QA,
        _olympiad,
    ),
    Benchmark("mmlu", "MMLU", "choice", "mmlu_test", "cais/mmlu", "test", "all", _PA, _mmlu),
    Benchmark(
        "arc_c",
        "ARC-Challenge",
        "choice",
        "arc_challenge",
        "allenai/ai2_arc",
        "test",
        "ARC-Challenge",
        _PA,
        _arc,
    ),
    Benchmark(
        "gpqa_diamond",
        "GPQA Diamond",
        "choice",
        "gpqa_diamond",
        "Idavidrein/gpqa",
        "train",
        "gpqa_diamond",
        _PA,
        _gpqa,
    ),
)
BENCHMARKS = {benchmark.name: benchmark for benchmark in _ALL}


def find_benchmark(name: str) -> Benchmark:
    """The benchmark of that name; an unknown one is an error that names the nearest."""
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    near = difflib.get_close_matches(name.lower(), BENCHMARKS, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise UserError(
        f"benchmark {name!r} is not known; {hint}Known: {', '.join(BENCHMARKS)}; for sps eval "
        "also countdown, gym:NAME, math:ROWS and choice:ROWS for a file of your own questions, and "
        "python:FILE:ROWS for a judge of your own, too"
    )


def load_benchmark(name: str, data_dir: str | None = None) -> list[Problem]:
    """Its problems, from `data_dir` if given, else from the hub. Ids start with its name."""
    benchmark = find_benchmark(name)
    if data_dir:
        problems = _from_folder(benchmark, Path(data_dir).expanduser())
    else:
        problems = load_problems(
            benchmark.hub,
            benchmark.columns,
            split=benchmark.split,
            config=benchmark.config,
            key=f"benchmark {name}",
            convert=benchmark.convert,
        )
    return [Problem(f"{name}/{p.id}", p.question, p.answer, p.meta) for p in problems]


def _from_folder(benchmark: Benchmark, folder: Path) -> list[Problem]:
    for suffix in (".jsonl", ".parquet", ".csv", ".json"):
        path = folder / f"{benchmark.file}{suffix}"
        if path.exists():
            return load_problems(str(path), key=f"benchmark {benchmark.name}")
    raise UserError(
        f"benchmark {benchmark.name}: there is no {benchmark.file}.jsonl in {folder} (nor "
        ".parquet, .csv, .json). Put it there with the columns problem and answer, or leave "
        f"--data-dir (task.data_dir in a recipe) out to read {benchmark.hub} from the hub"
    )
