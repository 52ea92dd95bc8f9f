"""The command dedup: against all pairs, in any order of the rows, where all are equal, and its counts."""

import numpy as np
import pyarrow.parquet as pq
import pytest
import storing
import torch
from helpers import embedded
from indexed import refuse
from scipy.sparse.csgraph import connected_components

from raycase.commands.dedup import DedupFlags, dedup
from raycase.explore import dedup as module
from raycase.explore.dedup import link
from raycase.index.build import build
from raycase.index.lance_files import vectors_of
from raycase.io.schema import embedding_array
from raycase.io.vectors import l2_normalize

CONDITION = "what they wear"


def of_all_pairs(vectors_ND, threshold):
    cosines_NN = vectors_ND.astype(np.float64) @ vectors_ND.astype(np.float64).T
    return connected_components(cosines_NN >= threshold - 1e-6, directed=False)[1].tolist()


def same(one, other):
    """Whether two lists of groups, of whatever numbers, are the same groups."""
    return len(set(zip(one, other, strict=True))) == len(set(one)) == len(set(other))


@pytest.mark.parametrize("threshold", [-1, 0.8, 0.95, 1])
def test_groups_are_those_of_all_pairs_in_any_order_and_tiles(threshold, monkeypatch):
    for name, size in {"ROWS": 20, "COLUMNS": 30, "HELD_ROWS": 60, "RESCORED": 5}.items():
        monkeypatch.setattr(module, name, size)
    draw = np.random.default_rng(0)
    base = draw.normal(size=(50, 16))
    far = [base + draw.normal(size=base.shape) * part for part in (0, 0, 0.1, 0.3, 0.6)]  # the second equals the first
    vectors_ND, offsets = l2_normalize(np.concatenate(far)), np.sort(draw.choice(400, 250, replace=False))

    def blocks():
        order = draw.permutation(250)
        for start in range(0, 250, 23):
            some = order[start : start + 23]
            yield offsets[some], torch.from_numpy(vectors_ND[some])

    found, groups = link(blocks, 400, threshold)
    assert found.tolist() == offsets.tolist() and same(groups.tolist(), of_all_pairs(vectors_ND, threshold))
    assert len(set(groups.tolist())) <= 200


@pytest.mark.parametrize("threshold", [0.95, 1])
def test_equal_rows_are_one_group_without_their_pairs_in_memory(threshold, monkeypatch):
    linked, tiles = module._linked, []
    monkeypatch.setattr(module, "_linked", lambda *given: tiles.append(given) or linked(*given))
    vectors_ND = torch.nn.functional.normalize(torch.ones(3000, 3), dim=1)
    assert len(set(link(lambda: iter([(np.arange(3000), vectors_ND)]), 3000, threshold)[1].tolist())) == 1
    assert max(len(row_R) for _, (row_R, _), _, _ in tiles) <= module.ROWS
    assert max(len(column_C) for _, _, (column_C, _), _ in tiles) <= module.COLUMNS
    assert len(tiles) <= 4  # tiles of one group are skipped


def test_a_threshold_is_of_cosines_though_float16_rounded_the_vectors():
    written_ND = l2_normalize(np.random.default_rng(0).normal(size=(300, 384))).astype(np.float16)
    far_ND = written_ND.astype(np.float64)
    cosine = far_ND[0] @ far_ND[1] / np.linalg.norm(far_ND[0]) / np.linalg.norm(far_ND[1])

    def groups(some_ND, threshold):
        vectors_ND = vectors_of(embedding_array(some_ND))
        return link(lambda: iter([(np.arange(len(some_ND)), vectors_ND)]), len(some_ND), threshold)[1].tolist()

    twice = groups(np.concatenate([written_ND, written_ND]), 1)
    assert twice[:300] == twice[300:] and len(set(twice)) == 300
    for i in range(30):
        assert len(set(groups(np.repeat(written_ND[i : i + 1], 200, axis=0), 1))) == 1
    for above, count in ((-1e-7, 1), (1e-7, 1), (2.1e-6, 2)):
        assert len(set(groups(written_ND[:2], cosine + above))) == count


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Indexes of 60 texts, of which 20 stand twice: `words` with stored tokens, `shuffled` the same in another order,
    `under` under the condition."""
    home = tmp_path_factory.mktemp("alike")
    model, texts = storing.model_folder(home), [row["text"] for row in storing.texts(40)]
    rows = [{"id": f"r{i}", "text": texts[i % 40], "year": i} for i in range(60)]
    order = np.random.default_rng(0).permutation(60)
    storing.indexed(home / "words", storing.stored(home / "a", model, rows))
    storing.indexed(home / "shuffled", storing.stored(home / "b", model, [rows[i] for i in order]))
    storing.indexed(home / "under", storing.stored_under(home / "c", model, rows, CONDITION))
    return home


def asked(home, tmp_path, index="words", **options):
    settings = {"threshold": 1.0, "output": str(tmp_path / "groups.parquet")}
    return DedupFlags(**{"index": str(home / index)} | settings | options)


def test_planted_duplicates_are_found_and_counts_reconcile(home, tmp_path, capsys):
    for index, condition in (("words", None), ("words", CONDITION), ("shuffled", CONDITION), ("under", CONDITION)):
        result = dedup(asked(home, tmp_path, index, condition=condition))
        rows = {row["id"]: row for row in pq.read_table(result["output"]).to_pylist()}
        for i in range(60):
            alike = sorted({f"r{i % 40}", f"r{i % 40 + 40}" if i % 40 < 20 else f"r{i}"})
            assert rows[f"r{i}"]["group"] == alike[0] and rows[f"r{i}"]["kept"] == (alike[0] == f"r{i}")
        counts = {name: result[name] for name in ("rows", "kept", "duplicates", "groups", "largest")}
        assert counts == {"rows": 60, "kept": 40, "duplicates": 20, "groups": 20, "largest": 2} and len(rows) == 60
        under = f'under "{CONDITION}"' if condition else "without a condition"
        assert f"60 rows {under}: 40 kept, 20 duplicates in 20 groups of two or more\n" in capsys.readouterr().out


def test_rows_that_were_deleted_are_in_no_group(home, tmp_path, tiny_model):
    rows = [{"id": i, "text": f"a dog {i // 2}"} for i in range(20)]
    uri = storing.indexed(tmp_path / "i", embedded(tmp_path, tiny_model, rows, unconditional=True))
    build(output=uri, delete="id IN (0, 3, 8, 9)")
    dedup(asked(home, tmp_path, index=uri))
    groups = {row["id"]: row["group"] for row in pq.read_table(tmp_path / "groups.parquet").to_pylist()}
    assert groups == {i: i if i in (1, 2) else i - i % 2 for i in range(20) if i not in (0, 3, 8, 9)}


def test_wrong_requests_are_refused(home, tmp_path):
    def ask(words, **options):
        refuse(asked(home, tmp_path, **options), words, dedup)

    for threshold in (1.01, -1.5, float("nan")):
        ask("--threshold: expected a cosine from -1 to 1, got ", threshold=threshold)
    ask("--where: expected a filter that leaves rows, got one", where="year > 3000")
    ask("^unconditional: expected unconditional vectors in .*, got none", index="under")
    ask("condition: expected one of the index's", index="under", condition="another", exact_condition=True)
    ask("--output: expected a file that ends with .parquet", output="groups.csv")
    assert not (tmp_path / "groups.parquet").exists()


def test_different_texts_without_a_known_token_are_no_duplicates(tmp_path, capsys):
    model, odd = storing.model_folder(tmp_path), ["\U0001f642", "\u16a0", "\u1780", "dog", "dog", "red dog"]
    rows = [{"id": i, "text": text, "year": 1} for i, text in enumerate(odd)]
    storing.indexed(tmp_path / "i", storing.stored(tmp_path / "a", model, rows, on_unknown="embed"))
    for threshold, groups in ((1.0, [0, 1, 2, 3, 3, 5]), (-1.0, [0, 1, 2, 3, 3, 3])):
        for condition in (None, CONDITION):
            dedup(asked(tmp_path, tmp_path, "i", threshold=threshold, condition=condition))
            assert pq.read_table(tmp_path / "groups.parquet")["group"].to_pylist() == groups
    assert "without the texts" not in capsys.readouterr().err
    options = {"on_unknown": "embed", "keep_columns": ("year",)}
    storing.indexed(tmp_path / "without", storing.stored(tmp_path / "b", model, rows, **options))
    assert dedup(asked(tmp_path, tmp_path, "without"))["largest"] == 3
    assert "without the texts or their model" in capsys.readouterr().err


def test_an_id_of_two_rows_is_named_and_nothing_is_written(tmp_path, tiny_model, monkeypatch):
    monkeypatch.setattr("raycase.job.run.repeated_ids", lambda *_: [])  # as a job that did not look
    rows = [{"id": i % 3, "text": f"a dog {i}"} for i in range(4)]
    uri = storing.indexed(tmp_path / "i", embedded(tmp_path, tiny_model, rows, unconditional=True))
    refuse(asked(tmp_path, tmp_path, index=uri), "--index: expected each id in one row, .* got 0 in 2 of", dedup)
    assert not (tmp_path / "groups.parquet").exists()
