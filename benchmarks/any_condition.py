"""Any condition at query time: what stored words cost, how near they are to vectors embedded in advance, and how fast.

    .venv/bin/python benchmarks/any_condition.py --index captions.lance [another.lance ...]

(settings) dimensions and bytes a word: bytes a caption; the share of the first ten neighbours of --queries captions
           that are those of the same head unquantised, under conditions of which three are typical ones, by which the
           basis was weighed; caption attributes of both; Spearman of both on C-STS validation. The basis comes from
           the first 2,000 captions.
(search)   for each index of 155,070 captions made by `raycase embed --any-condition` and `raycase index`: opening it
           and unpacking its words, the first answer under a new condition, the next answers under it (embedding the
           query apart); medians over conditions that no one asked before. All rows are pooled (`--effort exact`).
(stages)   the same in two stages, without the words of all rows in memory; and for all indexes, such as one of
           exchanged_copies.py (last at 79b0381), the recall at 10 against pooling all rows, where equal scores count as
           found.
           All rows are pooled for 24 queries at once, as the words of a large index do not fit into memory. How many
           of the candidates a next answer pools, for it has not before: the median and the most.
(filters)  first answers under new conditions, with a filter that leaves one row in a hundred and without one, in turns:
           in two stages and of all rows. The filter must take less than a tenth of the time.
(phrases)  the share of the ten captions nearest to a phrase, such as "guitar", that name it (as in caption
           attributes): embedded under the condition as a sentence is (--query), and as its answer (--phrase).
(again)    the alternative: embedding captions under one condition in this process, scaled to the corpus.
"""

import argparse
import time

import numpy as np
import torch
import torch.nn.functional as F
from attributes import attribute_patterns
from captions import DEFAULT, find_attributes, nearest, neighbour_share, read_captions
from turns import DATA, captions, finish, median

from raycase.data.rated import read_rated
from raycase.data.stored_words import StoredWords
from raycase.encoder.cosines import pair_cosines
from raycase.evaluation.metrics import spearman
from raycase.search.approximate import Options
from raycase.search.index import Index
from raycase.systems.registry import load
from raycase.systems.word_codes import fit_codes, typical_conditions
from raycase.systems.word_pooling import WordPooler, unpack_words

SETTINGS = ("512:288", "512:128", "256:288", "128:296", "128:288", "128:128")  # dimensions, bytes a word
ASKED = ("number of people", "color of the clothes", "what they wear on their heads", "where it takes place")
ASKED += ("musical instrument", "mood of the people", "kind of vehicle", "weather")
NEW = ("is anyone wearing a helmet", "what is thrown", "the season", "who is watching", "what is being eaten")
NEW += ("the material of the floor", "how crowded it is")
SAMPLED, K = 2000, 10


class Corpus:
    """Texts whose words are read once, and pooled by the head itself or from their codes."""

    def __init__(self, model, texts):
        self.model = model
        self.batches = []
        prepared = model.config.prepare(texts, None)

        def keep(rows, states):
            self.batches.append((rows, model.head.read(states.states, states.real)))

        with torch.inference_mode():
            model.reader.read(prepared.alone[0], keep)
        self.order = np.argsort(np.concatenate([rows for rows, _ in self.batches]), kind="stable")
        self.text_index = prepared.sentence[prepared.rows]

    @torch.inference_mode()
    def whole(self, condition, dim):
        """Vectors of the head itself, of length 1: (N, D)."""
        questions = self.model.questions([condition])
        parts = [
            self.model.head.pool(words, questions.take(torch.zeros(len(words.real), 1, dtype=torch.long)))[:, 0, :dim]
            for _, words in self.batches
        ]
        return F.normalize(torch.cat(parts), dim=-1)[self.order][self.text_index]

    def coded(self, codes):
        """The words ready to be pooled, and their bytes in storage."""
        with torch.inference_mode():
            stored = StoredWords.concat([codes.code(words) for _, words in self.batches])
        return unpack_words(stored.take(self.order), codes), stored.codes.flat.size + stored.part.flat.size

    def pooled(self, words, codes, condition):
        """Vectors from codes, of length 1: (N, D)."""
        pooler = WordPooler(codes, self.model.questions([condition]), self.model.head.temperatures.detach())
        vectors = torch.empty(len(words.order), len(codes.mean))
        vectors[torch.from_numpy(words.order)] = F.normalize(pooler.pool(words)[:, 0], dim=-1)
        return vectors[self.text_index]


def overlap(found_ND, exact_ND, queries):
    """Share of the first ten neighbours of some rows, by exact query vectors, that exact vectors find too."""
    best = []
    for vectors_ND in (exact_ND, found_ND):
        cosines_QN = exact_ND[queries] @ vectors_ND.T
        cosines_QN[torch.arange(len(queries)), queries] = -2
        best.append(cosines_QN.topk(K).indices)
    return float((best[1][:, :, None] == best[0][:, None, :]).any(-1).float().mean())


def attribute_shares(vectors_of, found):
    """Mean share of neighbours with the query's attribute, %, under each condition of the task."""
    captions_, attributes = found
    return {
        name: 100 * float(neighbour_share(nearest(vectors_of(name).numpy(), captions_), attribute).mean())
        for name, attribute in attributes.items()
    }


def rated_spearman(vectors_of, row_of, rated):
    """C-STS: Spearman x 100; `vectors_of` gives all rows under a condition, `row_of` the row of each sentence."""
    vectors, by_condition = {}, {}
    for i, (sentence, condition) in enumerate(rated.distinct):
        by_condition.setdefault(condition, []).append((i, row_of[sentence]))
    for condition, places in by_condition.items():
        index, rows = zip(*places, strict=True)
        vectors.update(zip(index, vectors_of(condition)[list(rows)].numpy(), strict=True))
    stacked = np.stack([vectors[i] for i in range(len(vectors))])
    return 100 * spearman(pair_cosines(stacked, rated.pair_index), rated.ratings)


def settings_table(args):
    """A row of figures for each setting."""
    model = load(device="cpu")
    task = read_captions(str(DATA / "flickr30k"), args.captions)
    found = task, find_attributes(task, DEFAULT)
    corpus = Corpus(model, task.texts)
    sample = Corpus(model, list(dict.fromkeys(task.texts))[:SAMPLED])
    typical = model.questions(typical_conditions())
    rated = read_rated(str(DATA / "csts" / "validation.csv"), "--pairs")
    queries = torch.from_numpy(np.random.default_rng(0).permutation(len(task.texts))[: args.queries])
    rows, exact = [], {}
    for dim, token_bytes in (map(int, setting.split(":")) for setting in args.settings):
        began = time.perf_counter()
        codes = fit_codes(model.head, [w for _, w in sample.batches], typical, dim=dim, token_bytes=token_bytes)
        fitted = time.perf_counter() - began
        words, size = corpus.coded(codes)
        if dim not in exact:
            exact[dim] = attribute_shares(lambda c, dim=dim: corpus.whole(c, dim), found)
        coded = attribute_shares(lambda c, words=words, codes=codes: corpus.pooled(words, codes, c), found)
        overlaps = [overlap(corpus.pooled(words, codes, c), corpus.whole(c, dim), queries) for c in ASKED]
        rows.append(
            {
                "dimensions": dim,
                "bytes a word": codes.form.token_bytes,
                "bytes a caption": round(size / len(corpus.order)),
                "components": len(codes.bits),
                "overlap": round(float(np.mean(overlaps)), 4),
                "least overlap": round(min(overlaps), 4),
                "attributes": {name: (round(exact[dim][name], 1), round(coded[name], 1)) for name in coded},
                "seconds to choose the basis": round(fitted, 1),
            }
        )
        if args.spearman:
            texts = list(dict.fromkeys(sentence for sentence, _ in rated.distinct))
            place = {text: i for i, text in enumerate(texts)}
            pairs = Corpus(model, texts)
            pair_words, _ = pairs.coded(codes)
            rows[-1]["Spearman"] = [
                round(rated_spearman(of, place, rated), 2)
                for of in (
                    lambda c, pairs=pairs, dim=dim: pairs.whole(c, dim),
                    lambda c, pairs=pairs, w=pair_words, codes=codes: pairs.pooled(w, codes, c),
                )
            ]
        print(rows[-1], flush=True)
    return rows


def search_times(uri):
    """Seconds of an index: opened and unpacked, first and next answers."""
    queries = captions(64)
    began = time.perf_counter()
    index, every = Index.open(uri), Options(exact=True)
    index.search(queries[:1], NEW[0], options=every)
    opened = time.perf_counter() - began
    first, following, embedding = [], [], []
    for condition in NEW[1:]:
        began = time.perf_counter()
        index.search(queries[:1], condition, options=every)
        first.append(time.perf_counter() - began)
        for query in queries[1:9]:
            began = time.perf_counter()
            vector = index.embed([query], condition)
            embedding.append(time.perf_counter() - began)
            began = time.perf_counter()
            index.nearest(vector, condition, K, options=every)
            following.append(time.perf_counter() - began)
    dim = index.embed(queries[:1], NEW[0]).shape[1]
    cached = sum(words.nbytes for *_, words in index.pooled.rows.cached or ())
    return {
        "rows": index.metadata.words,
        "dimensions": dim,
        "opened, s": round(opened, 2),
        "first answer, s": round(median(first), 3),
        "next answer, ms": round(1e3 * median(following), 1),
        "embedding a query, ms": round(1e3 * median(embedding), 1),
        "words in memory, MiB": cached // 2**20,
    }


def stage_times(uri, candidates, conditions):
    """Seconds of an index in two stages, and their recall at 10 by numbers of candidates."""
    queries = captions(64)
    began = time.perf_counter()
    index = Index.open(uri)
    index.search(queries[:1], NEW[0])
    opened = time.perf_counter() - began
    first, following, pooled, every, recall = [], [], [], [], {refine: [] for refine in candidates}
    read = count_read(index.pooled)
    for condition in NEW[1 : 1 + conditions]:
        began = time.perf_counter()
        index.search(queries[:1], condition)
        first.append(time.perf_counter() - began)
        vectors = index.embed(queries[:24], condition)
        read.clear()
        for vector in vectors[1:9]:
            began = time.perf_counter()
            index.nearest(vector[None], condition, K)
            following.append(time.perf_counter() - began)
            pooled.append(sum(read))
            read.clear()
        began = time.perf_counter()
        wanted, _ = index.nearest(vectors, condition, K, options=Options(exact=True))
        every.append(time.perf_counter() - began)
        index.vectors.cached.clear()
        for refine, shares in recall.items():
            for vector, best in zip(vectors, wanted, strict=True):
                found, _ = index.nearest(vector[None], condition, K, options=Options(refine=refine))
                shares.append(float((found[0] >= best[-1] - 1e-5).mean()))
    sketches = sum(words.nbytes for *_, words in index.sketched.rows.cached or ())
    return {
        "rows": index.metadata.words,
        "dimensions": vectors.shape[1],
        "opened, s": round(opened, 2),
        "first answer, s": round(median(first), 2),
        "next answer, ms": round(1e3 * median(following), 1),
        "pooled anew for a next answer, median and most": (median(pooled), max(pooled)),
        "all rows, s": round(median(every), 1),
        "recall at 10, mean and least query": {
            refine * K: (round(float(np.mean(shares)), 3), round(min(shares), 2)) for refine, shares in recall.items()
        },
        "sketches in memory, MiB": sketches // 2**20,
    }


def count_read(pooled):
    """How many rows are pooled by their offsets, each time from now on."""
    read, at = [], pooled.at

    def counted(condition, offsets):
        read.append(len(offsets))
        return at(condition, offsets)

    pooled.at = counted
    return read


def filter_times(uri, conditions):
    """Seconds of first answers with a filter that leaves one row in a hundred, and without one."""
    queries, times = captions(2), {}
    ids = sorted(Index.open(uri).dataset.to_table(columns=["id"])["id"].to_pylist())
    where = f"id < {ids[len(ids) // 100]!r}"
    for way, options in (("two stages", Options()), ("all rows", Options(exact=True))):
        index = Index.open(uri)
        index.search(queries[:1], NEW[0], options=options)
        index.search(queries[:1], NEW[0], where=where, options=options)
        index.vectors.cached.clear()
        names = iter(NEW[1:] + ASKED)
        seconds = {"filtered": [], "all": []}
        for _ in range(min(conditions, len(NEW[1:] + ASKED) // 2)):
            for name, passing in (("filtered", where), ("all", None)):
                condition = next(names)
                began = time.perf_counter()
                index.search(queries[1:], condition, where=passing, options=options)
                seconds[name].append(time.perf_counter() - began)
                index.vectors.cached.clear()
        times[way] = {name: round(median(each), 4) for name, each in seconds.items()}
        times[way]["filtered / all"] = round(median(seconds["filtered"]) / median(seconds["all"]), 4)
    return {"rows": index.metadata.words} | times


def phrase_shares(count):
    """For each condition the phrases that enough captions name, and the mean share of both ways, %."""
    model = load(device="cpu")
    task = read_captions(str(DATA / "flickr30k"), count)
    corpus, shares = Corpus(model, task.texts), {}
    for condition, patterns in attribute_patterns().items():
        vectors = corpus.whole(condition, model.dim)
        named = {v: np.array([bool(p.search(t.lower())) for t in task.texts]) for v, p in patterns.items()}
        values = [value for value, there in named.items() if there.sum() >= 2 * K and value.replace(" ", "").isalpha()]
        ways = {"--query": model.embed(values, condition), "--phrase": model.embed_phrases(values, condition)}
        shares[condition] = {"phrases": len(values)}
        for way, phrases in ways.items():
            best = (vectors @ F.normalize(torch.from_numpy(phrases), dim=-1).T).topk(K, dim=0).indices.numpy()
            found = [named[value][best[:, i]].mean() for i, value in enumerate(values)]
            shares[condition][way] = round(100 * float(np.mean(found)), 1)
        print(condition, shares[condition], flush=True)
    return shares | {
        "mean": {way: round(float(np.mean([s[way] for s in shares.values()])), 1) for way in ("--query", "--phrase")}
    }


def again(rows):
    """Seconds to embed so many captions under one condition, from a part of them."""
    model = load(device="cpu")
    texts = captions(4096)
    model.embed(texts[:512], NEW[0])
    began = time.perf_counter()
    model.embed(texts, NEW[1])
    return (time.perf_counter() - began) * rows / len(texts)


def main(args):
    result = {"settings": [], "search": [], "stages": [], "filters": [], "ratios": {}}
    for uri in args.stages:
        result["stages"].append(stage_times(uri, args.refine, args.conditions))
        print(result["stages"][-1], flush=True)
    for uri in args.filters:
        result["filters"].append(filter_times(uri, args.conditions))
        print(result["filters"][-1], flush=True)
    for uri in args.index:
        result["search"].append(search_times(uri))
        print(result["search"][-1], flush=True)
    if args.index:
        result["again, s"] = round(again(result["search"][0]["rows"]), 1)
        for row in result["search"]:
            ratio = result["again, s"] / row["first answer, s"]
            result["ratios"][f"embedding again / first answer, {row['dimensions']} dimensions"] = ratio
    if args.phrases:
        result["phrases"] = phrase_shares(args.phrases)
    if args.captions:
        result["settings"] = settings_table(args)
    finish(result)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", nargs="*", default=[], help="indexes of outputs with stored words")
    parser.add_argument("--stages", nargs="*", default=[], help="indexes that are searched in two stages")
    parser.add_argument("--filters", nargs="*", default=[], help="indexes that are searched with a filter")
    parser.add_argument("--refine", type=int, nargs="*", default=[500], help="candidates of (stages), in tens")
    parser.add_argument("--conditions", type=int, default=6, help="of (stages) and (filters)")
    parser.add_argument("--phrases", type=int, default=0, help="captions of (phrases)")
    parser.add_argument("--captions", type=int, default=20_000, help="captions of (settings); 0: leave it out")
    parser.add_argument("--settings", nargs="*", default=SETTINGS, metavar="DIMENSIONS:BYTES")
    parser.add_argument("--queries", type=int, default=400, help="of the overlap")
    parser.add_argument("--spearman", action="store_true", help="C-STS too, which takes minutes")
    main(parser.parse_args())
