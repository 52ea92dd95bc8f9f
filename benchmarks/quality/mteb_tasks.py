"""MTEB on data at hand: C-STS, sentence similarity and our left-out labelled tables; with a network, a benchmark of it.

    python -m benchmarks.quality.mteb_tasks --model minilm-conditional-v3
    python -m benchmarks.quality.mteb_tasks --model minilm-conditional-v3 --benchmark "MTEB(eng, v2)"

C-STS: Spearman's correlation of cosines under each pair's condition with ratings (validation, without those rated -1),
and without a condition. STS-B and SICK-R (validation): the same without a condition, of the model and of its encoder
alone. Tables: V-measure of MTEB's k-means of each column's labelled rows, under the column's first wording and without.
"""

import csv

import numpy as np

import raycase
from benchmarks.turns import DATA, ROOT, finish, parser_of
from raycase.encoder.sources import weights_folder
from raycase.io.labelled_texts import labels_of, read_labelled

LEAST = 30  # labelled rows of a column
ABOUT = {
    "description": "Local data.", "reference": None, "modalities": ["text"], "eval_splits": ["test"],
    "eval_langs": ["eng-Latn"], "dataset": {"path": "local", "revision": "0"}, "category": "t2t", "license": None,
    "date": None, "domains": None, "task_subtypes": None, "annotations_creators": None, "dialect": None,
    "sample_creation": None, "bibtex_citation": None,
}  # fmt: skip


def task_of(base, name, kind, score, rows, **choices):
    """A task of MTEB of rows at hand; choices: its attributes."""
    from datasets import Dataset, DatasetDict
    from mteb.abstasks.task_metadata import TaskMetadata

    def load_data(self, num_proc=None, **options):
        self.dataset = DatasetDict(test=Dataset.from_list(rows))
        self.data_loaded = True

    metadata = TaskMetadata(name=name, type=kind, main_score=score, **ABOUT)
    return type(name, (base,), choices | {"metadata": metadata, "load_data": load_data})()


def similarity(name, file, scale):
    """A file of pairs as a task; under a condition where it has one."""
    from mteb.abstasks.sts import AbsTaskSTS

    with (DATA / file).open(encoding="utf-8", newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if float(row.get("label") or row["score"]) >= 0]
    rated = [{"score": float(row.get("label") or row["score"])} for row in rows]
    texts = [{f"sentence{side}": row[f"sentence{side}"] for side in (1, 2)} for row in rows]
    rows = [one | other for one, other in zip(texts, rated, strict=True)]
    return task_of(AbsTaskSTS, name, "STS", "cosine_spearman", rows, min_score=scale[0], max_score=scale[1])


def conditional():
    """C-STS: MTEB's evaluator hands a model each sentence and its condition apart."""
    from mteb._evaluators import AnySTSEvaluator
    from mteb.abstasks.sts import AbsTaskSTS

    class Conditional(AbsTaskSTS):
        def _evaluate_subset(
            self, model, data_split, *, encode_kwargs, hf_split, hf_subset, timer, num_proc=None, **more
        ):
            sides = ({f"text{side}": "text", f"sentence{side}": "query", "condition": "instruction"} for side in (1, 2))
            evaluator = AnySTSEvaluator(
                data_split, tuple(sides), task_metadata=self.metadata, hf_split=hf_split, hf_subset=hf_subset,
                input1_prompt_type=None, input2_prompt_type=None, timer=timer,
            )  # fmt: skip
            scores = evaluator(model, encode_kwargs=encode_kwargs, num_proc=num_proc)
            return self._calculate_scores(scores, [self._normalize(score) for score in data_split["score"]])

    with (DATA / "csts" / "validation.csv").open(encoding="utf-8", newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if float(row["label"]) > 0]
    rows = [
        {f"text{side}": f"{row[f'sentence{side}']} {row['condition']}" for side in (1, 2)}
        | {name: row[name] for name in ("sentence1", "sentence2", "condition")}
        | {"score": float(row["label"])}
        for row in rows
    ]
    return task_of(Conditional, "CSTSLocal", "STS", "cosine_spearman", rows, min_score=1, max_score=5)


def tables():
    """(condition, task) of each column of the left-out tables with labels enough."""
    from mteb.abstasks.clustering import AbsTaskClustering

    files = sorted(str(file) for file in (ROOT / "datasets" / "labelled" / "test").glob("*.csv"))
    labels = tuple(file.replace(".csv", ".json") for file in files)
    for uri, of in zip(files, labels_of(files, labels), strict=True):
        table = read_labelled(uri, of, "--data")
        for column in table.columns:
            rows = [{"sentences": t, "labels": min(v)} for t, v in zip(table.texts, column.labels, strict=True) if v]
            if len(rows) >= LEAST:
                name = (
                    f"{uri.rpartition('/')[2].removesuffix('.csv')} {column.name}".title()
                    .replace(" ", "")
                    .replace("_", "")
                )
                choices = {"max_fraction_of_documents_to_embed": None, "max_document_to_embed": len(rows)}
                yield column.conditions[0], task_of(AbsTaskClustering, name, "Clustering", "v_measure", rows, **choices)


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--benchmark", help="of MTEB, which downloads its data")
    parser.add_argument("--condition", help="for --benchmark; without one, unconditional vectors")
    args = parser.parse_args()
    import mteb
    from sentence_transformers import SentenceTransformer

    model = raycase.load(args.model)

    def score(task, condition=None, of=None):
        """MTEB's main score x 100 of the model under a condition, or of another."""
        tested = raycase.to_mteb(model, condition) if of is None else of
        results = mteb.evaluate(tested, task, cache=None, show_progress_bar=False)
        return 100 * float(np.mean([each.get_score() for each in results.task_results]))

    if args.benchmark:
        tasks = mteb.get_benchmark(args.benchmark)
        results = mteb.evaluate(raycase.to_mteb(model, args.condition), tasks)
        print(results.to_dataframe().to_string())
        return finish(benchmark=args.benchmark, scores={r.task_name: r.get_score() for r in results.task_results})
    encoder = SentenceTransformer(weights_folder(model.config.encoder.source, large=True), device="cpu")
    found = {
        "C-STS": score(conditional()),
        "C-STS, unconditional": score(similarity("CSTSAlone", "csts/validation.csv", (1, 5))),
    }
    for name, file, scale in (
        ("STSBLocal", "stsb/validation.csv", (0, 5)),
        ("SICKRLocal", "sick_r/validation.csv", (1, 5)),
    ):
        task = similarity(name, file, scale)
        found |= {name: score(task), f"{name}, encoder alone": score(task, of=encoder)}
    each = [(score(task, condition), score(task)) for condition, task in tables()]
    found |= dict(zip(("tables", "tables, unconditional"), map(float, np.mean(each, axis=0)), strict=True))
    for name, value in found.items():
        print(f"{name:<28}{value:6.1f}")
    return finish(scores=found, columns=len(each), model=args.model)


if __name__ == "__main__":
    main()
