"""A corpus as it is published gives the output of its plain files: the same rows, ids and rejected rows."""

import json
from dataclasses import replace

import lance
import pyarrow as pa
import pytest
from helpers import embed_here, read_output, read_rejected, sentences, stopped
from input_files import compressed

from raycase.job.verify import verify

FILES = ("a 0.jsonl", "a 1.csv", "b.jsonl")  # compressed as .gz, .zst and not at all


@pytest.fixture
def folders(tmp_path):
    """A folder of plain files, and one of the same files compressed, beside what is no data; some rows are broken."""
    texts = iter(sentences(300))
    plain, published = tmp_path / "plain", tmp_path / "published"
    for folder in (plain, published):
        folder.mkdir()
    for name, ending in zip(FILES, (".gz", ".zst", ""), strict=True):
        rows = [next(texts) for _ in range(100)]
        if name.endswith("csv"):
            content = "text\r\n" + "".join(f'"{text}"\r\n' for text in rows) + '"",\r\n""\r\n'
        else:
            content = "\ufeff" + "".join(json.dumps({"text": text}) + "\n" for text in [*rows, ""]) + "{\n\n"
        data = content.encode()
        (plain / name).write_bytes(data)
        (published / f"{name}{ending}").write_bytes(compressed(data, ending, 5) if ending else data)
    for name in ("README.md", ".gitattributes", "dataset_infos.json", "_SUCCESS"):
        (published / name).write_text("{}")
    return f"{plain}/**", f"{published}/**"


@pytest.mark.parametrize("unit_rows", [20, 500])
def test_the_output_is_that_of_the_plain_files_and_resumes(job, folders, unit_rows):
    """In units of their own, and in one that all the files share."""
    plain, published = (
        replace(job, input=folder, output=f"{job.output}-{i}", unit_rows=unit_rows, max_rejected=1)
        for i, folder in enumerate(folders)
    )
    wanted = embed_here(plain)
    if unit_rows == 20:
        stopped(published, 7)
    result = embed_here(published)
    assert (result["rows_in"], result["rows_out"], result["rows_rejected"]) == (306, 300, 6)
    assert result["rows_in"] == wanted["rows_in"] and (result["units_resumed"] == 7 or unit_rows == 500)
    ids = ["id", "condition", "text"]
    assert read_output(published.output).select(ids).equals(read_output(plain.output).select(ids))
    assert rejected(published) == rejected(plain)
    verify(published.output)


def rejected(job):
    """Rejected rows, with the files by their names alone."""
    rows = read_rejected(job.output)
    return [row | {"file": row["file"].rpartition("/")[2].removesuffix(".gz").removesuffix(".zst")} for row in rows]


# --------------------------------------------------------------------------------------------------- Lance datasets


@pytest.fixture
def things(job, tmp_path):
    """A job of a Lance dataset of 200 rows, of which 20 are deleted and one has no text."""
    texts = [*sentences(199), ""]
    table = pa.table({"id": list(range(200)), "text": texts})
    dataset = lance.write_dataset(table, str(tmp_path / "things.lance"), max_rows_per_file=45)
    dataset.delete("id < 20")
    return replace(job, input=str(tmp_path / "things.lance"), unit_rows=20, max_rejected=1)


def test_a_lance_dataset_is_embedded_and_resumes_with_the_rows_it_began_with(things, capsys):
    stopped(things, 3)
    lance.dataset(things.input).delete("id < 150")
    result = embed_here(things)
    assert (result["rows_in"], result["rows_out"], result["units_resumed"]) == (180, 179, 3)
    assert list(dict.fromkeys(read_output(things.output)["id"].to_pylist())) == list(range(20, 199))
    assert [(row["row"], row["file"]) for row in read_rejected(things.output)] == [(179, things.input)]
    said = f"{things.input} is now lance version 3; this job continues with lance version 2"
    assert capsys.readouterr().err.count(said) == 1
    verify(things.output)
    assert embed_here(replace(things, overwrite=True))["rows_in"] == 50
