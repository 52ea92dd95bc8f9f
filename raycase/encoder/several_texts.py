"""Several texts in one sequence, for systems that read a pair of sentences, or a sentence and a condition, at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raycase.encoder.token_batch import NEVER, TokenBatch, Tokens
from raycase.encoder.tokenizer import PromptTokenizer, is_too_long
from raycase.errors import RequestError
from raycase.io.schema import Reason


@dataclass(frozen=True, kw_only=True)
class Frame:
    """The special tokens of several texts: before the first, between two, and after the last.

    zeros: how many of those between the first two texts have type 0, as all before them have; every token after these
    has type 1. None: all tokens have type 0.
    """

    head: list[int]
    between: list[int]
    tail: list[int]
    zeros: int | None = None


def frame(tokenize: PromptTokenizer) -> Frame:
    """What stands around and between texts. Raises RequestError where nothing ends a text, and for other types.

    A tokenizer that puts nothing between two texts does not tell them apart: each is then followed by what ends a text.
    """
    head, tail = tokenize.special_tokens
    pair = tokenize.tokenizer.encode("a", "b")
    texts = pair.sequence_ids  # 0, 1, or None of special tokens
    first, last = (range(texts.index(i), len(texts) - texts[::-1].index(i)) for i in (0, 1))
    between = pair.ids[first.stop : last.start]
    if not between:
        if not tail:
            raise RequestError("--model: expected an encoder whose texts end with a token, got one without")
        return Frame(head=head, between=tail, tail=tail)
    types = pair.type_ids
    if types != sorted(types) or not set(types) <= {0, 1} or 1 in types[: first.stop]:
        raise RequestError(f"--model: expected an encoder with tokens of types 0, then 1, of a pair, got {types}")
    after = pair.ids[last.stop :]
    if tokenize.end_id is not None and after[-1:] != [tokenize.end_id]:
        after = [*after, tokenize.end_id]
    zeros = types.count(0) - first.stop if 1 in types else None
    return Frame(head=pair.ids[: first.start], between=between, tail=after, zeros=zeros)


def separated(
    tokenize: PromptTokenizer,
    rows: Sequence[tuple[str, ...]],
    *,
    shortened: int,
    apart: int = 0,
) -> TokenBatch:
    """A sequence for each row of texts, with what the encoder's tokenizer puts around and between two texts.

    BERT's is [CLS] a [SEP] b [SEP], where b and its [SEP] have type 1; RoBERTa's <s> a </s></s> b </s>, all of type 0.
    A third text follows the second as the second follows the first, and has its type, for encoders know two:
    [CLS] a [SEP] b [SEP] c [SEP] with types 0, 1, 1. Each distinct text is tokenised once.

    apart 0: one view that pools every token; apart n: 1 + n views, of [CLS] and of each of the first n texts. Sequences
    above `max_tokens` lose the ends of their first `shortened` texts, one or two. Raises RequestError for an encoder
    whose texts cannot be told apart.
    """
    around = frame(tokenize)
    texts = list(dict.fromkeys(text for row in rows for text in row))
    ids_of = dict(zip(texts, tokenize.parts(texts), strict=True))
    too_long = set(filter(is_too_long, texts))
    views = [
        [Tokens(ids=[], start=0, end=0, refused=Reason.TEXT_TOO_LONG)] * (1 + apart)
        if too_long.intersection(row)
        else _one(around, tokenize, [ids_of[text] for text in row], shortened, apart)
        for row in rows
    ]
    return TokenBatch.of(*([view[i] for view in views] for i in range(1 + apart)))


def _one(around: Frame, tokenize: PromptTokenizer, parts: list[list[int]], shortened: int, apart: int) -> list[Tokens]:
    """The views of one row."""

    def refused(reason: Reason) -> list[Tokens]:
        return [Tokens(ids=[], start=0, end=0, refused=reason)] * (1 + apart)

    for i, part in enumerate(parts):
        if not part:
            return refused(Reason.EMPTY_TEXT if i < shortened else Reason.EMPTY_CONDITION)
        if not tokenize.known(part):
            return refused(Reason.UNKNOWN_TOKEN)
    free, fixed = parts[:shortened], parts[shortened:]
    special = len(around.head) + len(around.between) * (len(parts) - 1) + len(around.tail)
    room = tokenize.max_tokens - special - sum(map(len, fixed))
    if room < shortened:
        return refused(Reason.NO_ROOM)
    truncated = sum(map(len, free)) > room
    if truncated:  # each of two texts gets half of the room, and what the other does not need
        first = room if len(free) == 1 else min(len(free[0]), max(room - room // 2, room - len(free[1])))
        free = [free[0][:first], *(part[: room - first] for part in free[1:])]
    first_text, *others = [*free, *fixed]
    ids = [*around.head, *first_text]
    ends = [len(ids)]
    for part in others:
        ids += [*around.between, *part]
        ends.append(len(ids))
    ids += around.tail
    second = NEVER if around.zeros is None or not others else ends[0] + around.zeros
    spans = [(0, len(ids))]
    if apart:
        spans = [(0, 1), *((end - len(part), end) for part, end in zip([first_text, *others], ends, strict=True))]
    return [Tokens(ids=ids, start=a, end=b, truncated=truncated, second=second) for a, b in spans[: 1 + apart]]
