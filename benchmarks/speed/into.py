"""Fill columns of a Lance dataset while another process appends, then again after 1 % of the texts changed.

    python -m benchmarks.speed.into [--rows 20000]

Captions of Flickr30k (docs/data.md) under two conditions by the default model. Each run is the command in a process of
its own. processor_s are its seconds of processor time, which other work on the machine does not lengthen.
"""

import subprocess
import sys
import tempfile

from benchmarks.turns import RAYCASE, captions, finish, parser_of, run

CONDITIONS = {"color": "color of the clothes", "people": "number of people"}
APPENDS = 100
WRITER = """
import sys, time, lance, pyarrow as pa
for i in range(int(sys.argv[2])):
    lance.write_dataset(pa.table({"id": [10**6 + i], "text": [f"{i} dogs play"]}), sys.argv[1], mode="append")
    time.sleep(float(sys.argv[3]))
"""


def embed(place):
    """The counts of the command, its seconds, and those of processor time."""
    into = ["--into", *CONDITIONS, "--conditions", *CONDITIONS.values(), "--no-ray"]
    done = run(*RAYCASE, "embed", "--input", place, *into)
    kept = {name: done.line[name] for name in ("rows_in", "rows_written", "rows_left", "version", "seconds")}
    return kept | {"command_s": round(done.seconds, 1), "processor_s": round(done.processor_seconds, 1)}


def main():
    import lance
    import pyarrow as pa

    parser = parser_of(__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    rows = parser.parse_args().rows
    texts = captions(rows)
    with tempfile.TemporaryDirectory() as folder:
        place = f"{folder}/captions.lance"
        lance.write_dataset(pa.table({"id": range(rows), "text": texts}), place, max_rows_per_file=rows // 4)
        writer = subprocess.Popen([sys.executable, "-c", WRITER, place, str(APPENDS), "0.3"])
        runs = {"all, beside the appends": embed(place)}
        assert not writer.wait()
        runs["what was appended"] = embed(place)
        changed = list(range(0, rows, 100))
        new = pa.table({"id": changed, "text": [f"{texts[i]} Changed." for i in changed]})
        lance.dataset(place).merge_insert("id").when_matched_update_all().execute(new)
        runs["1 % changed"] = embed(place)
        runs["nothing changed"] = embed(place)
        whole = lance.dataset(place)
        null = {name: whole.count_rows(f"{name} IS NULL") for name in CONDITIONS}
        finish(rows=whole.count_rows(), appends=APPENDS, rows_without=null, runs=runs)


if __name__ == "__main__":
    main()
