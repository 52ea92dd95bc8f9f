"""Vectors of length 1, of int8 and of bits: jobs that write them, what checks them, and what refuses to read them."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import storing
import torch
from altered import alter, with_column
from helpers import embed_here, read_output, stopped

from raycase.commands.embed import check_embed
from raycase.commands.join import JoinFlags, join
from raycase.errors import RequestError, WorkError
from raycase.index.build import build
from raycase.io.schema import EMBEDDING, Reason, embedding_array, embedding_numbers
from raycase.job.results import Encoding, RowPairs, VectorResult, pair_reasons
from raycase.job.verify import verify
from raycase.models.embedder import Embedder
from raycase.models.pairs import Encoded

FORMS = [(True, "float16"), (True, "float32"), (False, "int8"), (False, "binary")]


def numbers(uri):
    return embedding_numbers(read_output(uri)[EMBEDDING])


@pytest.fixture
def floats(job):
    """A job of 60 rows in two units, and the vectors in float32 that it would write: (120, 32)."""
    job = replace(job, limit=60, unit_rows=30)
    plain = replace(job, output=job.output + "-float32")
    embed_here(plain)
    return job, numbers(plain.output)


@pytest.mark.parametrize(("normalize", "dtype"), FORMS)
def test_a_job_writes_what_the_formula_says_and_resumes(floats, normalize, dtype):
    job, vectors = floats
    job = replace(job, normalize=normalize, dtype=dtype)
    stopped(job, 1)
    assert embed_here(job)["units_resumed"] == 1 and embed_here(job)["units_done"] == 0
    with pytest.raises(RequestError, match=r"(dtype|normalize): .* there, .* requested"):
        embed_here(replace(job, dtype="float32", normalize=False))
    assert verify(job.output)["pairs"] == 120
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    written = numbers(job.output)
    if dtype == "binary":
        assert written.dtype == np.uint8 and np.array_equal(np.unpackbits(written, axis=1), vectors > 0)
    elif dtype == "int8":
        assert written.dtype == np.int8
        scaled = vectors * (127 / np.abs(vectors).max(axis=1, keepdims=True))
        assert np.abs(written - scaled).max() < 0.501
    else:
        assert written.dtype == dtype and np.allclose(written, unit, atol=3e-4 if dtype == "float16" else 1e-6)


def computed(rows, **how):
    """What a job makes of vectors that a model gives, and why each is rejected, or None."""
    count = len(rows)
    encoded = Encoded(vectors=rows, refused=[None] * count, truncated=np.zeros(count, bool), work=None, distinct=count)
    model, result = SimpleNamespace(encode_prepared=lambda _: encoded), VectorResult(**how)
    done = result.compute(model, None, None)
    encoding = Encoding(model=None, pairs=RowPairs(columns=None), result=result)
    return done, pair_reasons(encoding, done, None, np.arange(count))


@pytest.mark.parametrize(("normalize", "dtype"), FORMS)
def test_what_has_no_direction_or_is_not_finite_is_rejected(normalize, dtype):
    rows = np.array([[3, -4] * 4, [0] * 8, [np.nan] * 8, [np.inf, 1] * 4, [3e38] * 8, [1e-40] * 8], np.float32)
    done, reasons = computed(rows, dtype=dtype, normalize=normalize)
    assert reasons == [None, Reason.ZERO, Reason.NOT_FINITE, Reason.NOT_FINITE, None, None]
    [(_, column)] = VectorResult(dtype=dtype).computed(done)
    column = column.take(pa.array([0, 4, 5]))
    wanted = {
        "float16": [[0.3, -0.4] * 4, [0.125**0.5] * 8, [0.125**0.5] * 8],
        "int8": [[95, -127] * 4, [127] * 8, [127] * 8],
        "binary": [[0b10101010], [255], [255]],
    }
    wanted["float32"] = wanted["float16"]
    assert np.allclose(embedding_numbers(pa.chunked_array([column])), wanted[dtype], atol=1e-3)


@pytest.mark.parametrize("rounds", [False, True])  # the model, before the vectors leave its device
def test_what_float16_cannot_hold_is_rejected_and_a_true_zero_is_not(rounds):
    rows = torch.tensor(
        [[3, -4] * 4, [0] * 8, [1e-9, 3e-8] * 4, [-1e-6] * 8, [1e-45] * 8, [6.2e-5, 1e-9] * 4, [7e4] * 8]
    )
    encoder = SimpleNamespace(output_dtype=torch.float16 if rounds else torch.float32)
    vectors = Embedder.rounded(SimpleNamespace(encoder=encoder), rows).numpy()
    done, reasons = computed(vectors, dtype="float16")
    assert reasons == [None, None, *[Reason.TOO_SMALL] * 3, None, Reason.NOT_FINITE]
    assert np.array_equal(done.vectors[[0, 1, 5]], rows[[0, 1, 5]].half().numpy())
    assert computed(rows.numpy(), dtype="float32")[1] == [None] * 7


def test_verify_finds_vectors_that_no_job_writes(job):
    job = replace(job, limit=10, dtype="int8")
    embed_here(job)
    change = lambda table: embedding_array(embedding_numbers(table[EMBEDDING]).astype(np.uint8))  # noqa: E731 one line
    alter(job.output, with_column(EMBEDDING, change))
    with pytest.raises(WorkError, match=r"vectors of fixed_size_list<.*uint8"):
        verify(job.output)


def test_indexes_and_joins_refuse_small_vectors(floats, tmp_path):
    job, _ = floats
    embed_here(replace(job, dtype="int8"))
    floating = job.output + "-float32"
    words = "expected vectors of float16 or float32, got int8 in .*--dtype float16$"
    with pytest.raises(RequestError, match=f"--embeddings: {words}"):
        build(embeddings=(floating, job.output), output=str(tmp_path / "i.lance"))
    for queries, vectors, flag in ((job.output, floating, "--query-vectors"), (floating, job.output, "--vectors")):
        with pytest.raises(RequestError, match=f"{flag}: {words}"):
            join(JoinFlags(query_vectors=queries, vectors=vectors, output=str(tmp_path / "j")))


def test_requests_that_cannot_be(job, tmp_path):
    odd = replace(job, dtype="binary", model=storing.model_folder(tmp_path), prompt=None, pooling=None)
    for change, got in (({"normalize": True}, "--normalize"), ({"dtype": "int8"}, "--dtype int8")):
        words = replace(odd, dtype="float16", conditions=(), any_condition=True)
        with pytest.raises(RequestError, match=f"--any-condition: expected vectors as the model gives them, .* {got};"):
            check_embed(replace(words, **change))
    for dim, got in ((None, 11), (6, 6)):
        with pytest.raises(RequestError, match=f"--dtype binary: expected dimensions that 8 divides, .* got {got} of"):
            check_embed(replace(odd, dim=dim))
