"""The request of an evaluation: what is refused whatever the task."""

from typing import get_type_hints

import pytest

from raycase.errors import RequestError
from raycase.evaluation.job import EvaluateJob, check_request, open_report_folder
from raycase.evaluation.procedure import TASKS
from raycase.models.registry import of_papers


def test_a_folder_that_holds_something_else_is_refused(models, tmp_path):
    with pytest.raises(RequestError, match=r"--output: .*got one of another job: .*pass --output .*report"):
        open_report_folder(str(models[0]))
    (tmp_path / "metrics.json").write_text("{}")
    with pytest.raises(RequestError, match=r"--output: .*got one of another job"):
        open_report_folder(str(tmp_path))
    (tmp_path / "metrics.json").write_text('{"task": "csts"}')
    assert open_report_folder(str(tmp_path)) == tmp_path
    with pytest.raises(RequestError, match="on this machine"):
        check_request(EvaluateJob(model=("minilm",), data="data.csv", output="s3://bucket/report"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "sts", "threshold_from": "dev.csv"}, "--threshold-from: expected none but for --task rte"),
        ({"resamples": 1}, "--resamples: expected 100 to 1,000,000, for"),
        ({"seed": 2**64}, "--seed: expected 0 to 4,294,967,295, got 18446744073709551616"),
    ],
)
def test_wrong_options_are_refused(tmp_path, options, message):
    with pytest.raises(RequestError, match=message):
        check_request(EvaluateJob(model=("minilm",), data="data.csv", output=str(tmp_path), **options))


def test_the_table_has_every_task():
    assert (*TASKS, *of_papers("tasks")) == get_type_hints(EvaluateJob)["task"].__args__
