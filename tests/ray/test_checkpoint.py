"""Somebody's pipeline with raycase's checkpoint is killed, its driver and its nodes; no row is lost, none is twice."""

import contextlib
import random
import subprocess
import sys
import time
from collections import Counter

import piped
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from clusters import Head
from helpers import ROOT, sentences, wait_for
from ray import cloudpickle
from ray.data import DataContext

from raycase.ray.checkpoint import RowCheckpoint, read_rows

pytestmark = pytest.mark.cluster
ROWS, FILES = 1200, 24


@pytest.fixture
def source(tmp_path):
    """Files of which each is a span, so that a kill meets some in hand."""
    texts = sentences(ROWS)
    for i in range(FILES):
        some = range(i * ROWS // FILES, (i + 1) * ROWS // FILES)
        (tmp_path / "in").mkdir(exist_ok=True)
        pq.write_table(pa.table({"id": some, "text": [texts[n] for n in some]}), tmp_path / "in" / f"{i:02d}.parquet")
    return tmp_path / "in"


def written(folder, id_column):
    return Counter(pq.read_table(folder / "out", columns=[id_column])[id_column].to_pylist())


@pytest.fixture
def run(cluster, source, tiny_model, tmp_path, monkeypatch):
    """Runs the pipeline here, at full speed, in a context that is as before afterwards."""
    monkeypatch.setattr(piped, "slow", lambda table: table)
    cloudpickle.register_pickle_by_value(piped)  # the workers do not find the module

    def run(*ids, **settings):
        context = DataContext.get_current().copy()
        for name, value in settings.items():
            setattr(context, name, value)
        with DataContext.current(context):
            piped.run(str(source), str(tmp_path), str(tiny_model), *ids)

    return run


def test_a_pipeline_by_ids_of_its_own_goes_on(run, source, tmp_path):
    """Ray's own filter, with our intervals: what was written is left out, new files are done."""
    held = [source / f"{i:02d}.parquet" for i in range(10, FILES)]
    for file in held:
        file.rename(tmp_path / file.name)
    run("ids", "color")
    for file in held:
        (tmp_path / file.name).rename(file)
    run("ids", "color")
    assert written(tmp_path, "id") == dict.fromkeys(range(ROWS), 1)


@pytest.mark.parametrize(("ids", "column"), [((), "row_id"), (("ids", "color", "animal"), "id")])
def test_the_rows_of_one_number_stay_in_one_file(run, source, tmp_path, ids, column):
    """However small Ray's blocks shall be; a file with half of them, and its checkpoint, would lose the other half."""
    run(*ids, target_max_block_size=1500)
    for file in (tmp_path / "out").glob("*.parquet"):
        assert {*Counter(pq.read_table(file)[column].to_pylist()).values()} == {2}
    assert len(written(tmp_path, column)) == ROWS
    run(*ids)  # with all done
    assert written(tmp_path, column).total() == 2 * ROWS


def test_a_column_that_is_called_as_the_numbers_is_refused(source, tmp_path):
    with pytest.raises(ValueError, match="expected the column 'id' once"):
        read_rows(str(source), ["id", "text"], RowCheckpoint(str(tmp_path / "state"), id_column="id"))


@pytest.mark.long
def test_a_pipeline_that_is_killed_five_times_on_two_nodes(source, tiny_model, tmp_path):
    """Three times its driver, twice a node, at random times."""
    chance = random.Random(0)
    with Head() as head, contextlib.ExitStack() as stack:
        nodes = [head.add_node(cpus=1) for _ in range(2)]
        wait_for(lambda: len(head.nodes()) == 2)
        command = [sys.executable, str(ROOT / "tests" / "piped.py"), str(source), str(tmp_path), str(tiny_model)]
        log = stack.enter_context(open(tmp_path / "log", "ab"))

        def start():
            return subprocess.Popen(command, env=head.environment, stdout=log, stderr=log)

        def files():
            assert driver.poll() is None, (tmp_path / "log").read_text()[-3000:]
            return len([*(tmp_path / "out").glob("*.parquet")])

        driver, seen = start(), []
        for kill in ("driver", "node", "driver", "node", "driver"):
            before = files()
            wait_for(lambda before=before: files() > before + 1, 240)
            time.sleep(chance.random())
            seen.append(files())
            if kill == "node":
                nodes.pop(0).kill()
                nodes.append(head.add_node(cpus=1))
            else:
                driver.kill()
                driver.wait()
                driver = start()
        assert driver.wait(240) == 0, (tmp_path / "log").read_text()[-3000:]
        assert seen[0] > 0 and seen[-1] < FILES, seen
    assert set(written(tmp_path, "row_id").values()) == {2} and len(written(tmp_path, "row_id")) == ROWS
    assert not [*(tmp_path / "state").glob("*.pending.parquet")]
