"""An evaluation's folder that somebody has touched."""

import json

import pytest

from sps.errors import UserError
from sps.evaluation.claim import held
from sps.evaluation.compare import read_results

WHOLE = {"model": "m", "dtype": "float32", "questions": {"aime24": "x"}, "cut": {"aime24": "zero"}}


def test_eval_json_is_read_or_one_sentence(tmp_path):
    assert held(tmp_path) == {}
    path = tmp_path / "eval.json"
    path.write_text(json.dumps(WHOLE))
    assert held(tmp_path) == {}  # of a call that failed before its first sample
    (tmp_path / "aime24").mkdir()
    (tmp_path / "aime24" / "part-00000.parquet").touch()
    assert held(tmp_path) == WHOLE
    changes = {"questions": 3, "model": None, "cut": "zero", "answers": [], "judge": None}
    wrong = [{**WHOLE, key: value} for key, value in changes.items()]
    for text in ["{", "[]", "3", "[" * 100_000, "\0", *map(json.dumps, wrong)]:
        path.write_text(text)
        with pytest.raises(UserError, match=r"eval\.json cannot be read .* --out$"):
            held(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000, '{"benchmarks": {"a": {"n": 1}}}'])
def test_results_json_is_read_or_one_sentence(tmp_path, text):
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(UserError, match=r"results\.json is not a result of `sps eval`"):
        read_results(tmp_path)
