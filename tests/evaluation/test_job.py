"""The request of an evaluation: what is refused whatever the task."""

from typing import get_type_hints

import pytest

from raycase.commands.evaluate import EvaluateFlags, check_places
from raycase.errors import RequestError
from raycase.evaluation.procedure import TASKS
from raycase.models.registry import of_papers


def checked(output, **options):
    return check_places(EvaluateFlags(**{"model": ("minilm",), "data": "data.csv", "output": str(output)} | options))


def test_a_folder_that_holds_something_else_is_refused(models, tmp_path):
    (tmp_path / "metrics.json").write_text("{}")
    for folder in (models[0], tmp_path):
        with pytest.raises(RequestError, match=r"--output: .*got one of another job: .*pass --output .*report"):
            checked(folder)
    (tmp_path / "metrics.json").write_text('{"task": "csts"}')
    assert checked(tmp_path) == tmp_path
    with pytest.raises(RequestError, match="on this machine"):
        checked("s3://bucket/report")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "sts", "threshold_from": "dev.csv"}, "--threshold-from: expected none but for --task rte"),
        ({"model": ("minilm", "minilm")}, "--model: expected one model or more, each once, got"),
        ({"resamples": 1}, "--resamples: expected 100 to 1,000,000, for"),
        ({"seed": 2**64}, "--seed: expected 0 to 4,294,967,295, got 18446744073709551616"),
    ],
)
def test_wrong_options_are_refused(tmp_path, options, message):
    with pytest.raises(RequestError, match=message):
        checked(tmp_path, **options)


def test_the_table_has_every_task():
    assert (*TASKS, *of_papers("tasks")) == get_type_hints(EvaluateFlags)["task"].__args__
