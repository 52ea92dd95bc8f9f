"""Figures and labels that are no numbers, or none that can be told apart."""

import json
import math
from functools import partial

import numpy as np
import pytest
from helpers import rated_rows, to_csv, vectors_of

from raycase.cli import main
from raycase.commands.evaluate import measure
from raycase.errors import RequestError
from raycase.io.rated_pairs import read_rated
from raycase.io.storage import json_bytes

NAN = math.nan


def test_json_has_null_for_what_is_no_number(capsys):
    value = {"a": NAN, "b": [math.inf, (np.float64("nan"), 1.5)], "c": {"d": -math.inf}}
    wanted = {"a": None, "b": [None, [None, 1.5]], "c": {"d": None}}
    assert json.loads(json_bytes(value), parse_constant=pytest.fail) == wanted
    main(["verify", "x"], work=lambda job: value)
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == wanted


def test_labels_that_float32_cannot_hold_or_tell_apart_are_refused(tmp_path):
    for label, said in (
        ([1e308, *[1] * 9], "row 0: expected a number"),
        ([3 + n * 1e-9 for n in range(10)], "got only 3"),
    ):
        with pytest.raises(RequestError, match=said):
            read_rated(to_csv(rated_rows(10, 0).assign(label=label), tmp_path / "a.csv"), "--train")


def test_an_evaluation_without_any_figure_says_why_and_ends_with_an_error(tiny_model, tmp_path, capsys):
    frame = rated_rows(20, 0)
    file = to_csv(frame.assign(sentence2=frame.sentence1), tmp_path / "same.csv")
    words = ["evaluate", "--model", str(tiny_model), "--prompt", "concat-sc", "--pooling", "mean", "--data", file]
    words += ["--output", str(tmp_path / "r"), "--resamples", "100", "--compute", "float32"]
    with pytest.raises(SystemExit) as stop:
        main(words, work=partial(measure, vectors_of=vectors_of))
    printed = capsys.readouterr()
    assert stop.value.code == 1 and "error: expected a system with a figure that is a number" in printed.err
    assert f"undefined for {tiny_model}: spearman" in printed.err
    assert f"- undefined for {tiny_model}: spearman" in (tmp_path / "r" / "report.md").read_text()
