"""Clusters that are kept: the same rows fall into the same ones, later rows join them, other files are refused."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import storing
from helpers import embedded
from indexed import refuse

from raycase.commands.facets import FacetsFlags, facets
from raycase.explore.groups import CENTRE, LEAST, RECORD
from raycase.index.build import build

KINDS = {"dog": "dog " * 9, "dress": "red dress " * 5, "ball": "people play ball " * 3}
WORDS = ["man", "woman", "cat", "shirt", "run", "sit"]


def rows_of(*numbers, text=None):
    kinds = list(KINDS)
    return [{"id": i, "text": text or f"A {KINDS[kinds[i % 3]]}and {WORDS[i % 6]}"} for i in numbers]


@pytest.fixture(scope="module")
def made(tmp_path_factory, tiny_model):
    """A folder with an index of 54 texts of three topics, and what embeds further rows."""
    home = tmp_path_factory.mktemp("kept")
    settings = {"prompt": None, "pooling": None, "keep_columns": ("text",), "conditions": ("color", "place")}

    def embed(name, rows, model=tiny_model, **options):
        return embedded(home / name, f"condition-pooling:{model}", rows, **settings | options)

    return storing.indexed(home / "i.lance", embed("a", rows_of(*range(54)))), embed


def run(uri, folder, name="of", **options):
    """The last line of facets, the clusters, and the cluster of each id."""
    files = {"output": str(folder / f"{name}.parquet"), "assignments": str(folder / f"{name}-rows.parquet")}
    result = facets(FacetsFlags(**{"index": uri, "condition": "color"} | files | options))
    rows = pq.read_table(files["assignments"]).to_pylist()
    return result, pq.read_table(files["output"]).to_pylist(), {row["id"]: row["cluster"] for row in rows}


def test_what_was_saved_gives_the_same_clusters_and_takes_later_rows(made, tmp_path, capsys):
    (index, embed), kept, again = made, str(tmp_path / "groups.parquet"), str(tmp_path / "again.parquet")
    uri = shutil.copytree(index, tmp_path / "i.lance")
    first = run(str(uri), tmp_path, clusters=3, save=kept)
    run(str(uri), tmp_path, "twice", clusters=3, save=again)
    assert (tmp_path / "again.parquet").read_bytes() == (tmp_path / "groups.parquet").read_bytes()
    second = run(str(uri), tmp_path, groups=kept)
    assert second[1:] == first[1:] and second[0]["far"] == 0 and second[0]["clusters"] == 3
    later = [*rows_of(60, 61, 62), {"id": 99, "text": "bar"}]
    build(str(uri), [embed("b", later)])
    assert run(str(uri), tmp_path, where="id < 54", groups=kept)[2] == first[2]
    result, clusters, cluster_of = run(str(uri), tmp_path, groups=kept)
    assert {id: cluster_of[id] for id in first[2]} == first[2]
    assert [cluster_of[id] for id in (60, 61, 62, 99)] == [first[2][0], first[2][1], first[2][2], -1]
    assert (result["rows"], result["far"]) == (58, 1)
    assert [row["cluster"] for row in clusters] == [1, 2, 3, -1] and clusters[-1]["rows"] == 1
    assert [row["words"] for row in clusters[:3]] == [row["words"] for row in first[1]]
    shown = capsys.readouterr()
    assert "1 of 58 rows are far from every group of" in shown.err
    assert "  -1           1    1.7%  far from every group" in shown.out
    few = run(str(uri), tmp_path, groups=kept, where="id = 0")  # clusters without rows stay
    assert sorted(row["rows"] for row in few[1]) == [0, 0, 1] and few[2] == {0: first[2][0]}


def test_one_cluster_is_kept_and_many_have_themes(made, tmp_path, capsys):
    _, embed = made
    same = storing.indexed(tmp_path / "same.lance", embed("same", rows_of(0, 1, 2, 3, text="red dress")))
    kept = str(tmp_path / "one.parquet")
    assert run(same, tmp_path, clusters=2, save=kept)[0]["clusters"] == 1
    assert set(run(same, tmp_path, groups=kept)[2].values()) == {1}
    index = storing.indexed(tmp_path / "many.lance", embed("many", storing.texts(90)))
    result, clusters, _ = run(index, tmp_path, clusters=12, save=str(tmp_path / "many.parquet"))
    themes = [row["theme"] for row in clusters]
    assert result["themes"] == max(themes) == 3 and {*themes} == {1, 2, 3}
    sizes = [sum(row["rows"] for row in clusters if row["theme"] == theme) for theme in (1, 2, 3)]
    assert sizes == sorted(sizes, reverse=True) and sum(sizes) == 90
    assert all(row["theme_words"] for row in clusters)
    lines = capsys.readouterr().out.splitlines()
    assert f'90 rows under "color" in {len(clusters)} clusters of 3 themes' in lines
    assert [line.split()[1] for line in lines if line.startswith("theme")] == ["1", "2", "3"]
    assert run(index, tmp_path, groups=str(tmp_path / "many.parquet"))[1] == clusters


def test_files_of_other_clusters_are_refused(made, tmp_path):
    index, kept = made[0], str(tmp_path / "groups.parquet")
    run(index, tmp_path, clusters=3, save=kept)
    table = pq.read_table(kept)
    record, bad = json.loads(table.schema.metadata[RECORD]), str(tmp_path / "bad.parquet")

    def ask(words, **options):
        refuse(FacetsFlags(**{"index": index, "condition": "color", "groups": bad} | options), words, facets)

    def write(changed=table, **of_record):
        metadata = {RECORD: json.dumps(record | of_record)}
        pq.write_table(changed.replace_schema_metadata(metadata), bad)

    ask("expected the condition of these groups, 'color', got 'place'", groups=kept, condition="place")
    ask("--clusters: expected none beside --groups", groups=kept, clusters=3)
    ask("--save: expected none beside --groups", groups=kept, save=str(tmp_path / "x.parquet"))
    ask("--save: expected another place than --groups", groups=kept, save=kept)
    write(model="0" * 64, name="another")
    ask(r"expected the model of these groups, another \(00000000\), got condition-pooling")
    write(taught="1" * 64)
    ask("expected what was taught of 'color' to be as when these groups were made, got other")
    wanted = "expected a file that `raycase facets --save` wrote"
    for content in (b"", b"PAR1 no", b"a,b\n1,2\n", (tmp_path / "groups.parquet").read_bytes()[:-9]):
        (tmp_path / "bad.parquet").write_bytes(content)
        ask(wanted)
    ask(wanted, groups=str(tmp_path / "none.parquet"))
    ask(wanted, groups=str(tmp_path / "of.parquet"))  # clusters, without centres
    pq.write_table(table.replace_schema_metadata({RECORD: b"[[[{"}), bad)
    ask(wanted)

    def with_centres(numbers):
        return pa.FixedSizeListArray.from_arrays(pa.array(numbers.reshape(-1), pa.float32()), numbers.shape[1])

    def changed(name, values):
        return table.set_column(table.schema.get_field_index(name), name, values)

    centres = np.stack(table[CENTRE].to_pylist())
    for each in (centres * 2, centres * np.nan):
        write(changed(CENTRE, with_centres(each)))
        ask(wanted)
    write(changed(CENTRE, pa.array([[1.0]] * 3)))
    ask(wanted)
    write(changed(CENTRE, with_centres(np.eye(3, 5))))
    ask("expected centres of .* numbers, as these rows have, got 5")
    nones, words = pa.array([0.5, None, 0.5], pa.float32()), pa.array(["a", "b", "c"])
    others = [
        changed(LEAST, nones),
        changed(LEAST, words),
        changed(LEAST, pa.array([2.0] * 3)),
        changed("words", words),
    ]
    others += [changed("theme", words), table.drop_columns([LEAST]), table[::-1], table[:0], table.take([0, 0, 1])]
    others += [changed("cluster", pa.array([2, 1, 3], pa.int32()))]
    for other in others:
        write(other)
        ask(wanted)
    assert not (tmp_path / "x.parquet").exists()
