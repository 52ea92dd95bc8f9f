"""raycase in pipelines of Ray Data: what other people's sources and sinks give and take; the processor."""

import datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
import storing
from ray.data import ActorPoolStrategy

import raycase
from raycase.io.schema import mapped

pytestmark = pytest.mark.cluster
COUNT = 40


@pytest.fixture(scope="module")
def rows():
    return pa.table({"id": range(COUNT), "text": [f"a dog number {n}" if n % 10 else None for n in range(COUNT)]})


@pytest.fixture
def embed(cluster, tiny_model):
    """Embeds a dataset by one actor."""
    model = {"model": str(tiny_model), "prompt": "concat-sc", "pooling": "mean", "conditions": ["color", "animal"]}

    def embed(dataset):
        options = {"fn_constructor_kwargs": model, "batch_format": "pyarrow", "batch_size": 16}
        return dataset.map_batches(raycase.Embed, compute=ActorPoolStrategy(size=1), **options)

    return embed


def check(table):
    assert len(table) == 2 * COUNT
    assert sorted(set(table["id"].to_pylist())) == list(range(COUNT))
    assert table["rejected"].null_count == table["embedding"].length() - table["embedding"].null_count == 2 * COUNT - 8


def test_parquet_lance_and_a_dataset_of_hugging_face(embed, rows, tmp_path):
    import lance

    datasets, lance_ray = pytest.importorskip("datasets"), pytest.importorskip("lance_ray")
    pq.write_table(rows[:15], tmp_path / "in.parquet")
    lance.write_dataset(rows[15:], str(tmp_path / "in.lance"))
    read = ray.data.read_parquet(str(tmp_path / "in.parquet")).union(ray.data.read_lance(str(tmp_path / "in.lance")))
    embed(read).write_parquet(str(tmp_path / "out"))
    check(pq.read_table(tmp_path / "out"))
    lance_ray.write_lance(embed(ray.data.from_huggingface(datasets.Dataset(rows))), str(tmp_path / "out.lance"))
    check(lance.dataset(str(tmp_path / "out.lance")).to_table())


def test_a_processor_between_somebodys_steps(cluster, rows, tiny_model, tmp_path):
    """Theirs, ours, theirs: every row and reason; vectors stay float32 where a function gives back all of a row."""
    model = {"model": str(tiny_model), "options": {"prompt": "concat-sc", "pooling": "mean"}}
    config = raycase.ProcessorConfig(**model, conditions=["color", "animal"], batch_size=16, concurrency=(1, 2))
    process = raycase.build_processor(
        config,
        preprocess=lambda row: {"id": row["id"], "text": row["text"] and row["text"].upper()},
        postprocess=lambda row: row | {"has": row["embedding"] is not None, "truncated": str(row["truncated"])},
    )
    process(ray.data.from_arrow(rows)).write_parquet(str(tmp_path / "out"))
    found = pq.read_table(tmp_path / "out")
    check(found)
    assert found["text"][-1].as_py() == f"A DOG NUMBER {COUNT - 1}" and found.schema.field("embedding").type.list_size
    assert sum(found["has"].to_pylist()) == 2 * COUNT - 8 and set(found["truncated"].to_pylist()) == {"False"}


def test_a_processor_pools_stored_tokens(cluster, tmp_path):
    storing.stored(tmp_path, storing.model_folder(tmp_path), storing.texts(60), output=str(tmp_path / "tokens"))
    config = raycase.ProcessorConfig(tokens=str(tmp_path / "tokens"), conditions="animal")
    found = raycase.build_processor(config)(ray.data.read_parquet(str(tmp_path / "tokens" / "embeddings")))
    assert {row["condition"] for row in found.take_all()} == {"animal"}


@pytest.mark.parametrize("concurrency", [0, (2, 1), (0, 1)])
def test_a_wrong_configuration_is_refused(concurrency):
    with pytest.raises(ValueError, match=r"m.._size must be [<>]= "):
        raycase.build_processor(raycase.ProcessorConfig(concurrency=concurrency))


def test_a_column_keeps_its_type_where_its_values_still_fit():
    """A half was cut to a whole number where the column had whole ones before."""
    vector = pa.list_(pa.field("item", pa.float32(), nullable=False), 2)
    types = {"small": pa.int32(), "day": pa.date32(), "vector": vector, "words": pa.binary()}
    fields = [pa.field(name, type_, metadata={"form": "a"}) for name, type_ in types.items()]
    rows = pa.table([[1, 2], [None, 7], [[1, 0], None], [b"a", b"b"]], schema=pa.schema(fields))
    assert mapped(rows, dict).schema.equals(rows.schema, check_metadata=True)
    halves = mapped(rows, lambda row: row | {"small": row["small"] / 2, "vector": row["vector"] and [0.6, 0.8]})
    assert halves["vector"].chunk(0).values.to_pylist()[2:] == [0, 0], "Lance takes no null inside a null"
    assert halves["small"].to_pylist() == [0.5, 1.0] and halves["vector"].type == rows["vector"].type
    later = mapped(rows, lambda row: row | {"day": datetime.datetime(2026, 1, 1, 12), "words": str(row["words"])})
    assert later["day"][0].as_py().hour == 12 and later["words"].type == pa.string()


@pytest.mark.long
def test_iceberg(embed, rows, tmp_path):
    sql = pytest.importorskip("pyiceberg.catalog.sql")
    place = {"uri": f"sqlite:///{tmp_path}/catalogue.db", "warehouse": f"file://{tmp_path}"}
    catalogue = sql.SqlCatalog("default", **place)
    catalogue.create_namespace("corpus")
    catalogue.create_table("corpus.texts", schema=rows.schema).append(rows)
    there = {"catalog_kwargs": {"name": "default", "type": "sql", **place}}
    dataset = embed(ray.data.read_iceberg(table_identifier="corpus.texts", **there)).materialize()
    catalogue.create_table("corpus.vectors", schema=dataset.schema().base_schema)
    dataset.write_iceberg(table_identifier="corpus.vectors", **there)
    check(catalogue.load_table("corpus.vectors").scan().to_arrow())
