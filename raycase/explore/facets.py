"""Clusters of the rows of an index by their unit vectors under a condition, and the words and rows that they are about.

k-means (scikit-learn) is fitted on a sample of the rows, and every row joins the cluster whose centre has the largest
cosine with it. Of unit vectors the squared Euclidean distance is 2 - 2 cos, so Euclidean k-means with centres scaled to
length 1 is close to spherical k-means.

Shapes: N rows in blocks of B, S rows of a sample, K clusters, D dimensions.
"""

import math
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice, pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from raycase.errors import check_problems, is_words, needs_package, normal_words
from raycase.explore.groups import FLAG, NAMES, WORD, Groups, groups_table, made_by
from raycase.index.index import LEAST_STATED, Index, text_column, weigh_answers, why_unweighed
from raycase.index.lance_files import lance_errors
from raycase.index.rows import BATCH_ROWS
from raycase.index.topk import Block, Blocks, parts
from raycase.io.schema import CONDITION, ID, TEXT
from raycase.io.vectors import l2_normalize
from raycase.tokens.words import Word, content

FITTED = 10_000  # rows on which k-means is fitted; every row is assigned, whatever their number
PER_CLUSTER = 40  # rows of each cluster that are fitted at least, on average
STARTS = 3  # of k-means++; the best counts
TRIED = 4000  # rows on which numbers of clusters are compared: their silhouette takes all pairs of rows
NUMBERS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 17, 20, 24)  # of clusters that are compared, where none is asked for
NEAREST = 100  # rows of a cluster among which different texts are looked for
WEIGHED = 1000  # texts whose words are weighed, of all clusters together: about 400 a second on 2 CPU cores
WEIGHED_OF_EACH = 6, 100  # but at least and at most so many of each cluster
WORDS, EXAMPLES = 5, 3  # of a cluster
CANDIDATES = 30  # words of a cluster that are compared with its centre
FLAT = 10  # clusters that need no themes
FAR = -1  # in place of the number of a cluster: far from those of a file
PAIRED = 3  # texts of a cluster that have two words side by side before it is named by both


@dataclass(frozen=True, kw_only=True)
class Clusters:
    """Rows and their clusters, numbered from 0, the largest first; none is empty."""

    offsets: np.ndarray  # (N,) int64
    cluster: np.ndarray  # (N,) of each row
    cosine: np.ndarray  # (N,) with the centre of its cluster
    centres: np.ndarray  # (K, D), of unit length

    @property
    def sizes(self) -> np.ndarray:
        """Rows of each cluster: (K,)."""
        return np.bincount(self.cluster, minlength=len(self.centres))

    def members(self) -> list[np.ndarray]:
        """Row indices of each cluster, the nearest to its centre first; of equal ones the earlier."""
        order_N = np.lexsort((-self.cosine, self.cluster))
        return np.split(order_N, np.cumsum(self.sizes)[:-1])


def import_sklearn() -> Any:
    """The package scikit-learn."""
    with needs_package("scikit-learn", "facets", "for facets"):
        import sklearn.cluster
        import sklearn.exceptions
        import sklearn.metrics
    return sklearn


def find_clusters(blocks: Blocks, clusters: int | None = None) -> Clusters:
    """The clusters of the rows in these blocks, which are read twice, fewer where fewer vectors differ; default:
    `best_number`."""
    rows, sample_SD = sample(blocks(), max(FITTED, PER_CLUSTER * (clusters or NUMBERS[-1])))
    few = rows < (clusters or 0)
    problems = {
        "--stated: expected rows that state something of the condition, got none": not rows,
        f"--clusters: expected at most the {rows:,} rows there are to group, got {clusters or 0:,}": few,
        f"--clusters: expected a number for {rows} rows, got none; 3 rows or more need none": not clusters and rows < 3,
    }
    check_problems(problems)
    clusters = clusters or best_number(sample_SD[:TRIED])
    centres_KD = fit(sample_SD, clusters, STARTS)
    found = assign(blocks(), centres_KD)
    order_K = np.argsort(-found.sizes, kind="stable")
    centres_KD = centres_KD[order_K[: np.count_nonzero(found.sizes)]]
    return replace(found, cluster=np.argsort(order_K)[found.cluster], centres=centres_KD)


def sample(blocks: Iterable[Block], most: int) -> tuple[int, np.ndarray]:
    """The number of rows, and the vectors of at most so many of them in random order, (S, D): those that draw the
    smallest numbers, the same however rows are cut into blocks."""
    draw, rows = np.random.default_rng(0), 0
    number_S, vectors_SD = np.empty(0), np.empty((0, 0), np.float32)
    for _, vectors_BD in blocks:
        number_B = draw.random(len(vectors_BD))
        first = np.argsort(number_B)[:most]
        chosen = vectors_BD.numpy()[first]
        number_S = np.concatenate([number_S, number_B[first]])
        vectors_SD = np.concatenate([vectors_SD, chosen]) if rows else chosen
        smallest = np.argsort(number_S)[:most]
        number_S, vectors_SD = number_S[smallest], vectors_SD[smallest]
        rows += len(vectors_BD)
    return rows, vectors_SD


def best_number(vectors_SD: np.ndarray) -> int:
    """The number of clusters with the largest mean silhouette (Rousseeuw, 1987); of equal ones the smallest."""
    metrics = import_sklearn().metrics
    distances_SS = metrics.pairwise.cosine_distances(vectors_SD)
    best, chosen = -1.0, NUMBERS[0]
    for number in [number for number in NUMBERS if number < len(vectors_SD)]:
        cluster_S = (vectors_SD @ fit(vectors_SD, number, starts=1).T).argmax(axis=1)
        if len(np.unique(cluster_S)) > 1:
            score = metrics.silhouette_score(distances_SS, cluster_S, metric="precomputed")
            if score > best:
                best, chosen = score, number
    return chosen


def fit(vectors_SD: np.ndarray, clusters: int, starts: int) -> np.ndarray:
    """Unit centres of so many clusters: (K, D)."""
    sklearn = import_sklearn()
    with warnings.catch_warnings():  # equal vectors leave clusters empty, and these are dropped
        warnings.simplefilter("ignore", sklearn.exceptions.ConvergenceWarning)
        k_means = sklearn.cluster.KMeans(clusters, init="k-means++", n_init=starts, random_state=0).fit(vectors_SD)
    return l2_normalize(k_means.cluster_centers_)


def assign(blocks: Iterable[Block], centres_KD: np.ndarray) -> Clusters:
    """The rows in these blocks, each in the cluster with the nearest of these centres; some clusters may be empty."""
    offsets, cluster, cosine = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, np.float32)]
    for offsets_B, vectors_BD in parts(blocks, BATCH_ROWS):  # of many clusters, cosines of more would not fit in memory
        expected = f"expected centres of {vectors_BD.shape[1]} numbers, as these rows have, got {centres_KD.shape[1]}"
        check_problems({f"{FLAG}: {expected}": vectors_BD.shape[1] != centres_KD.shape[1]})
        offsets.append(offsets_B)
        cosines_BK = vectors_BD.numpy() @ centres_KD.T
        cluster.append(cosines_BK.argmax(axis=1))
        cosine.append(cosines_BK.max(axis=1).clip(-1, 1))
    offsets_N, cluster_N = np.concatenate(offsets), np.concatenate(cluster)
    return Clusters(offsets=offsets_N, cluster=cluster_N, cosine=np.concatenate(cosine), centres=centres_KD)


def themes_of(clusters: Clusters) -> list[np.ndarray]:
    """The clusters of each theme, the largest first, joined by the mean cosine of their centres; few have none."""
    count, join = len(clusters.centres), import_sklearn().cluster.AgglomerativeClustering
    if count <= FLAT:
        return []
    theme_K = join(round(count**0.5), metric="cosine", linkage="average").fit_predict(clusters.centres)
    sizes_T = np.bincount(theme_K, clusters.sizes)
    return [np.flatnonzero(theme_K == theme) for theme in np.argsort(-sizes_T, kind="stable")]


# --------------------------------------------------------------------------------------------- what clusters are about


class CarriedWord(NamedTuple):
    """A word of a cluster, in lower case, and its score."""

    word: str
    score: float


def nearest_examples(clusters: Clusters, index: Index, text: str | None, count: int) -> list[list[dict[str, Any]]]:
    """The rows nearest to the centre of each cluster, K lists of id, text and cosine; texts, if any, are different."""
    found = []
    for rows in clusters.members():
        nearest = rows[: NEAREST if text else count]
        taken = index.dataset.take(clusters.offsets[nearest], columns=[ID, text] if text else [ID])
        texts = taken[text].to_pylist() if text else [None] * len(nearest)
        examples: dict[Any, dict[str, Any]] = {}
        for row_id, words, cosine in zip(taken[ID].to_pylist(), texts, clusters.cosine[nearest].tolist(), strict=True):
            examples.setdefault(words if text else row_id, {ID: row_id, "text": words, "cosine": cosine})
        found.append(list(examples.values())[:count])
    return found


def name_clusters(
    clusters: Clusters, index: Index, condition: str | None, text: str | None, count: int
) -> list[dict[str, Any]]:
    """`NAMES` of each cluster; the words, of texts nearest to its centre and as many others, are null without texts."""
    members, themes = clusters.members(), themes_of(clusters)
    names: list[dict[str, Any]] = [dict.fromkeys(NAMES) for _ in members]
    for theme, own in enumerate(themes, 1):
        for cluster in own:
            names[cluster]["theme"] = theme
    if text is None:
        return names
    least, most = WEIGHED_OF_EACH
    of_each, draw = max(least, min(most, WEIGHED // len(members))), np.random.default_rng(0)
    rows = []
    for of_cluster in members:
        near, far = of_cluster[: of_each // 2], of_cluster[of_each // 2 :]
        rows.append(np.concatenate([near, draw.permutation(far)[: of_each - len(near)]]))
    texts = index.dataset.take(clusters.offsets[np.concatenate(rows)], columns=[text])[text].to_pylist()
    [words] = weigh_texts(index, texts, [condition])
    every = iter(zip((each or "" for each in texts), words, strict=True))
    weighed = [[*islice(every, len(of_cluster))] for of_cluster in rows]
    fits = partial(answer_cosines, index.encoder, condition)
    for name, carried in zip(names, score_words(weighed, count, partial(fits, clusters.centres)), strict=True):
        name["words"] = carried
    if not themes:
        return names
    centres_TD = l2_normalize(np.array([clusters.sizes[own] @ clusters.centres[own] for own in themes]))
    joined = [[text for cluster in own for text in weighed[cluster]] for own in themes]
    for own, carried in zip(themes, score_words(joined, count, partial(fits, centres_TD)), strict=True):
        for cluster in own:
            names[cluster]["theme_words"] = carried
    return names


def answer_cosines(
    encoder: Any, condition: str | None, centres_KD: np.ndarray, words: Sequence[str]
) -> np.ndarray | None:
    """The cosines of centres with words as answers to the condition, (K, V), 0 where the model does not know a word;
    None where it compares no answers."""
    if condition is None or not hasattr(encoder, "phrase_vectors"):
        return None
    vectors_VD, unknown_V = encoder.phrase_vectors(words, condition)
    return np.where(unknown_V, 0, centres_KD @ l2_normalize(vectors_VD).T)


def weigh_texts(index: Index, texts: Sequence[str | None], conditions: Sequence[str | None]) -> list[list[list[Word]]]:
    """The words of each of N texts with their weights under each of C conditions, C lists of N; no words where there is
    no text or condition. A text is encoded once for all conditions."""
    under = [condition for condition in conditions for _ in texts]
    pairs = {TEXT: [*texts] * len(conditions), CONDITION: under}
    answers = pa.table({name: pa.array(values, pa.string()) for name, values in pairs.items()})
    weighed = weigh_answers(answers, index, TEXT).to_pylist()
    words = ([Word(**word) for word in row or []] for row in weighed)
    return [[*islice(words, len(texts))] for _ in conditions]


def score_words(
    clusters: Iterable[Iterable[tuple[str, list[Word]]]],
    count: int,
    cosines: Callable[[Sequence[str]], np.ndarray | None] = lambda words: None,
) -> list[list[CarriedWord]]:
    """The words that carry each cluster of weighed texts, best first, by class-based TF-IDF (BERTopic, Grootendorst,
    2022, arXiv:2203.05794, eq. 4) on the weights that the condition gives the words, instead of counts:

        W(t, c) = tf(t, c) * log(1 + A / f(t))

    tf: the word's share of the weight of the cluster, f: the sum of its shares of all clusters, A: the mean weight of a
    cluster, 1 here. English function words carry none, and a word counts together with its plural. cosines: of words
    with the centres, (K, V), whose square W is multiplied by; without, a word of one text comes after all others."""
    every = [[*texts] for texts in clusters]
    counted = [weight_shares(texts) for texts in every]
    names = {name for of_words, _ in counted for name in of_words}
    form_of = {name: name[:-1] if name[-1] == "s" and name[:-1] in names else name for name in names}
    ranked: list[list[tuple[float, str]]] = []
    spelled: list[defaultdict[Any, Counter[str]]] = []  # form, or pair of them -> texts with each of its spellings
    everywhere: defaultdict[str, float] = defaultdict(float)
    for texts, (of_words, texts_with) in zip(every, counted, strict=True):
        shares: defaultdict[str, float] = defaultdict(float)
        spelled.append(defaultdict(Counter))
        for name, share in of_words.items():
            shares[form_of[name]] += share
            everywhere[form_of[name]] += share
            spelled[-1][form_of[name]][name] = texts_with[name]
        for first, name in chain.from_iterable(_pairs(text, words) for text, words in texts):
            if first in names and name in names:
                spelled[-1][form_of[first], form_of[name]][f"{first} {name}"] += 1
        ranked.append([(share, form) for form, share in shares.items()])
    ranked = [sorted((-share * math.log(1 + 1 / everywhere[form]), form) for share, form in own) for own in ranked]
    candidates = sorted({form for own in ranked for _, form in own[:CANDIDATES] if is_words(normal_words(form))})
    cosines_KV = cosines(candidates) if candidates else None
    for cluster, own in enumerate(ranked):
        if cosines_KV is None:
            own.sort(key=lambda each: spelled[cluster][each[1]].total() < 2)
        else:
            near = dict(zip(candidates, cosines_KV[cluster].tolist(), strict=True))
            ranked[cluster] = sorted((score * near[form] ** 2, form) for score, form in own if near.get(form, 0) > 0)
    return [_named(*of_cluster, count) for of_cluster in zip(ranked, spelled, strict=True)]


def weight_shares(texts: Iterable[tuple[str, list[Word]]]) -> tuple[dict[str, float], Counter[str]]:
    """Each word's share of the weight of weighed texts, and in how many of them it is; without function words."""
    weight_of: defaultdict[str, float] = defaultdict(float)
    texts_with: Counter[str] = Counter()
    for text, words in texts:
        contents = [content(text, word) for word in words]
        for name, word in zip(contents, words, strict=True):
            if name:
                weight_of[name] += word.weight
        texts_with.update(set(contents))
    total = sum(weight_of.values())
    return {name: weight / total for name, weight in weight_of.items() if weight > 0}, texts_with


def _pairs(text: str, words: Sequence[Word]) -> dict[tuple[str, str], None]:
    """The different words of a text that carry and stand side by side, each pair once."""
    sides = pairwise((content(text, word), word) for word in words)
    return {
        (name, other): None
        for (name, word), (other, after) in sides
        if name and other and name != other and text[word.end : after.start].isspace()
    }


def _named(ranked: list[tuple[float, str]], spelled: dict[Any, Counter[str]], count: int) -> list[CarriedWord]:
    """The best words, each as most texts spell it, or with the word beside it in most texts with either."""
    texts_with, joined = {form: counts.total() for form, counts in spelled.items()}, dict[str, Any]()
    for pair in sorted(filter(lambda form: isinstance(form, tuple), spelled), key=texts_with.__getitem__, reverse=True):
        if texts_with[pair] >= max(PAIRED, *(texts_with[form] / 2 for form in pair)) and not {*pair} & joined.keys():
            joined |= dict.fromkeys(pair, pair)
    best: dict[Any, float] = {}
    for score, form in ranked:
        best.setdefault(joined.get(form, form), -score)
    return [CarriedWord(spelled[form].most_common(1)[0][0], score) for form, score in [*best.items()][:count]]


# ------------------------------------------------------------------------------------------------ facets of an index


@dataclass(frozen=True, kw_only=True)
class Facets:
    """Rows of an index in clusters."""

    table: pa.Table  # a row for each cluster; after them those of `FAR`, and of 0, which state nothing of the condition
    assignments: pa.Table | None  # id, cluster, and cosine with its centre, of every row in the order of the index
    unweighed: str | None  # why words were not weighed; None where they were
    kept: pa.Table | None  # `groups_table`; None where they were read


def find_facets(
    index: Index,
    condition: str | None,
    blocks: Blocks,
    *,
    clusters: int | None = None,
    stated: bool = False,
    column: str | None = None,
    model: str | None = None,
    assigned: bool = False,
    groups: Groups | None = None,
) -> Facets:
    """Group the rows in these blocks, which are under a condition of the index. stated: those that state nothing of it
    stand apart. column: with the texts; model: the index's, if it has moved. assigned: with assignments. groups: in
    place of new clusters, which `stated` was for, too; rows far from all are apart."""
    stated = stated or (groups is not None and groups.made["stated"])
    index.check_conditional([] if condition is None else [condition], phrases=False, stated=stated)
    made, text = made_by(index, condition, stated=stated), text_column(index, column)
    unweighed = why_unweighed(index, column, model) if groups is None else None
    not_stated = np.empty(0, np.int64)
    if groups:
        groups.check(made)
    if stated:
        offsets_N = np.concatenate([offsets_B for offsets_B, _ in blocks()])
        not_stated = offsets_N[index.stated_at(str(condition), offsets_N) < LEAST_STATED]

    def kept() -> Iterator[Block]:
        for offsets_B, vectors_BD in blocks():
            kept_B = ~np.isin(offsets_B, not_stated)
            yield offsets_B[kept_B], vectors_BD[kept_B]

    among = kept if stated else blocks
    found = find_clusters(among, clusters) if groups is None else assign(among(), groups.centres)
    is_far = np.zeros(len(found.offsets), bool) if groups is None else found.cosine < groups.least[found.cluster]
    apart = {FAR: found.offsets[is_far], 0: not_stated}
    near = replace(found, offsets=found.offsets[~is_far], cluster=found.cluster[~is_far], cosine=found.cosine[~is_far])
    with lance_errors(index.root):
        names = groups.names if groups else name_clusters(near, index, condition, None if unweighed else text, WORDS)
        examples = nearest_examples(near, index, text, EXAMPLES)
        table = _table(near.sizes, names, examples, apart, index.dataset.schema.field(ID).type)
        assignments = _assignments(index, found, is_far, not_stated) if assigned else None
    cosines = [near.cosine[rows] for rows in near.members()]
    new = None if groups else groups_table(table[: len(cosines)], made, near.centres, cosines)
    return Facets(table=table, assignments=assignments, unweighed=unweighed, kept=new)


def _table(
    sizes_K: np.ndarray,
    names: list[dict[str, Any]],
    examples: list[list[dict[str, Any]]],
    apart: dict[int, np.ndarray],
    id_type: pa.DataType,
) -> pa.Table:
    """`Facets.table`: the rows, their share, names and examples of each cluster, and of the rows apart, if any."""
    total = sizes_K.sum() + sum(map(len, apart.values()))
    every = [*zip(range(1, len(sizes_K) + 1), sizes_K.tolist(), names, examples, strict=True)]
    every += [(number, len(rows), dict.fromkeys(NAMES), []) for number, rows in apart.items() if len(rows)]
    rows = [
        {"cluster": number, "rows": size, "share": size / total, "examples": of_cluster, **name}
        for number, size, name, of_cluster in every
    ]
    example = pa.struct([(ID, id_type), ("text", pa.string()), ("cosine", pa.float32())])
    types = {"cluster": pa.int32(), "rows": pa.int64(), "share": pa.float32(), "words": pa.list_(WORD)}
    types |= {"examples": pa.list_(example)} | NAMES
    return pa.Table.from_pylist(rows, pa.schema(types))


def _assignments(index: Index, clusters: Clusters, is_far: np.ndarray, not_stated: np.ndarray) -> pa.Table:
    """`Facets.assignments`; a row that states nothing of the condition has no cosine."""
    offsets_N = np.append(clusters.offsets, not_stated)
    order_N, none = np.argsort(offsets_N), np.zeros(len(not_stated))
    cluster_N = np.append(np.where(is_far, FAR, clusters.cluster + 1), none)[order_N]
    cosine_N = np.append(clusters.cosine, none)[order_N]
    columns = {
        ID: index.dataset.take(offsets_N[order_N], columns=[ID])[ID],
        "cluster": pa.array(cluster_N.astype(np.int32)),
        "cosine": pa.array(cosine_N.astype(np.float32), mask=cluster_N == 0),
    }
    return pa.table(columns)
