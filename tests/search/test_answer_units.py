"""Files of answers are cut into units and read back; files of another kind are refused."""

import pyarrow as pa
import pytest
from indexed import index_of_thirty, searched

from raycase.data.inputs import find_input
from raycase.errors import RequestError
from raycase.search.answer_units import AnswerUnit, cut_answers, read_unit


@pytest.fixture(scope="module")
def thirty(tmp_path_factory, tiny_model):
    return index_of_thirty(tmp_path_factory.mktemp("thirty"), tiny_model)


@pytest.fixture
def files(thirty, tmp_path):
    return searched(tmp_path, thirty[0])


def units(uri, text="text", queries=27, **settings):
    [file] = find_input(uri, "--answers")
    return cut_answers(file, text=text, queries=queries, **settings)


def test_all_answers_to_a_query_are_in_one_unit(files):
    cuts = [(unit.start, unit.stop) for unit in units(files["answers"], unit_rows=50)]
    assert cuts == [(0, 56), (56, 112), (112, 168), (168, 216)]
    assert [(unit.start, unit.stop) for unit in units(files["answers"])] == [(0, 216)]
    assert not units(files["answers"])[0].unconditional


def test_a_unit_is_read_from_the_row_groups_that_hold_it(files, tmp_path):
    table = pa.parquet.read_table(files["answers"])
    pa.parquet.write_table(table, tmp_path / "groups.parquet", row_group_size=10)
    for start, stop in ((0, 10), (5, 6), (9, 31), (200, len(table))):
        assert (
            read_unit(AnswerUnit(file=str(tmp_path / "groups.parquet"), start=start, stop=stop, unconditional=False))
            == table[start:stop]
        )


def test_answers_of_another_kind_are_refused(files, tmp_path):
    (tmp_path / "queries.csv").write_text("text\na\n")
    with pytest.raises(RequestError, match=r"--answers: expected a .parquet file, got .*queries.csv"):
        units(str(tmp_path / "queries.csv"))
    with pytest.raises(RequestError, match=r"--text-column: expected a column that .*searched.parquet keeps .*'words'"):
        units(files["answers"], text="words")
    pa.parquet.write_table(pa.parquet.read_table(files["answers"]).drop_columns("rank"), files["answers"])
    with pytest.raises(RequestError, match=r"searched.parquet: expected the column 'rank'"):
        units(files["answers"])


def test_answers_to_other_queries_are_refused(files):
    answers = pa.parquet.read_table(files["answers"])
    pa.parquet.write_table(pa.concat_tables([answers, answers]), files["answers"])
    with pytest.raises(RequestError, match="expected the answers to each query together, got them apart"):
        units(files["answers"])
    more = answers.set_column(0, "query", pa.array(answers["query"].to_numpy() + 20))
    pa.parquet.write_table(more, files["answers"])
    with pytest.raises(RequestError, match=r"--queries: expected the queries that .* has answers to, up to 47, got 27"):
        units(files["answers"])
