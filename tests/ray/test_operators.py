"""`raycase.Embed` in pipelines of Ray Data: what other people's sources and sinks give and take."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray

import raycase

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
        return dataset.map_batches(raycase.Embed, concurrency=1, **options)

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
