"""Complete prompts, and several texts in one sequence -> token ids that the encoder reads, and the pooled ones."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from tokenizers import Encoding, Tokenizer

from raycase.encoder.prompts import Rendered, Template
from raycase.encoder.token_batch import NEVER, TokenBatch, Tokens
from raycase.errors import RequestError
from raycase.io.schema import Reason

LONG_TEXT = 32  # characters for each token that a prompt may have; longer texts are cut before they meet in prompts
MOST_CHARACTERS = 2**23  # of a text: a tokenizer takes a minute and 7 GB for six times as many


@dataclass(kw_only=True)
class PromptTokenizer:
    """Prompts -> token ids and pooled tokens, with the end token and the maximum length of the encoder."""

    tokenizer: Tokenizer
    max_tokens: int
    rows: int = NEVER  # of the encoder's weights for tokens
    end_token: str | None = None
    space_too: bool = False  # tokens of white space before a pooled text are pooled with it, as NV-Embed's authors do

    def __post_init__(self) -> None:
        self.end_id = None if self.end_token is None else self.tokenizer.token_to_id(self.end_token)
        assert self.end_token is None or self.end_id is not None, f"{self.end_token!r} is no token"
        self.unknown_id: int | None = None
        with suppress(Exception):  # of a model that has no token for such a character
            [token] = self.tokenizer.model.tokenize("\U0010fffd")  # in no vocabulary; where there are bytes, several
            self.unknown_id = token.id

    @property
    def special_tokens(self) -> tuple[list[int], list[int]]:
        """Ids of the special tokens before and after a text."""
        encoding = self.tokenizer.encode("a")
        first = encoding.special_tokens_mask.index(0)
        last = len(encoding) - encoding.special_tokens_mask[::-1].index(0)
        head, tail = encoding.ids[:first], encoding.ids[last:]
        if self.end_id is not None and tail[-1:] != [self.end_id]:
            tail = [*tail, self.end_id]
        return head, tail

    def known(self, ids: Sequence[int]) -> bool:
        """Whether the encoder has weights for all these tokens; some published tokenizers have more."""
        return max(ids, default=0) < self.rows

    def is_unknown(self, ids: Sequence[int]) -> bool:
        """Whether these tokens of a text all stand for what the vocabulary lacks, or are a tokenizer's blanks."""
        return self.unknown_id in ids and {*ids} <= {self.unknown_id, self.tokenizer.token_to_id("\u2581")}

    def parts(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of the stripped texts, without special tokens; one that is too long has none."""
        texts = ["" if len(text) > MOST_CHARACTERS else text.strip() for text in texts]
        return [e.ids for e in self.tokenizer.encode_batch(texts, add_special_tokens=False)]

    def pairs(self, templates: Sequence[Template], pairs: Sequence[tuple[str, str]]) -> TokenBatch:
        """Tokenise the prompts of (sentence, condition) pairs; one view for each template, all of one pattern."""
        short = {text: self._shortened(text) for text in dict.fromkeys(text for pair in pairs for text in pair)}
        prompts = [[template.render(short[s], short[c]) for template in templates] for s, c in pairs]
        tokens = self.views(prompts)
        return TokenBatch.of(*([views[i] for views in tokens] for i in range(len(templates))))

    def _shortened(self, text: str) -> str:
        """A very long text without its end, to be tokenised as fast as others. It keeps twice as many tokens as
        a prompt may have, so that what is cut off decides none of them."""
        if not LONG_TEXT * self.max_tokens < len(text) <= MOST_CHARACTERS:
            return text
        text, kept = text.strip(), 2 * self.max_tokens
        offsets = self.tokenizer.encode(text, add_special_tokens=False).offsets
        head = text if len(offsets) <= kept else text[: offsets[kept - 1][1]]
        return text if head[-1:].isspace() else head  # a prompt strips it

    def views(self, prompts: Sequence[Sequence[Rendered]]) -> list[list[Tokens]]:
        """Tokenise complete prompts, whose views have one text, and find the pooled tokens. One above `max_tokens`
        loses tokens from the end of the sentence, never of the condition or the template."""
        texts = [prompt.text if len(prompt.text) <= MOST_CHARACTERS else "" for prompt, *_ in prompts]
        each = zip(prompts, self.tokenizer.encode_batch(texts), strict=True)
        return [_or_refused(self._tokens(views, encoding), len(views)) for views, encoding in each]

    def _tokens(self, views: Sequence[Rendered], encoding: Encoding) -> list[Tokens] | Reason:
        """The views of one prompt, or why it is refused."""
        ids, prompt = encoding.ids, views[0]
        if len(prompt.text) > MOST_CHARACTERS:
            return Reason.TOO_MANY_CHARACTERS
        if not self.known(ids):
            return Reason.UNKNOWN_TOKEN
        if self.end_id is not None and (not ids or ids[-1] != self.end_id):
            ids = [*ids, self.end_id]
        tokens_of: dict[tuple[int, int] | None, tuple[int, int]] = {None: (0, len(ids))}  # of a span of characters
        for span, reason in ((prompt.sentence, Reason.EMPTY_TEXT), (prompt.condition, Reason.EMPTY_CONDITION)):
            if span is not None:
                tokens_of[span] = self._span(encoding, prompt.text, *span)
                if tokens_of[span] == (0, 0):
                    return reason
        for part in {view.pooled for view in views} - tokens_of.keys():
            assert part is not None
            tokens_of[part] = self._span(encoding, prompt.text, *part)
        spans, over = [tokens_of[view.pooled] for view in views], len(ids) - self.max_tokens
        first, last = (0, 0) if prompt.sentence is None else tokens_of[prompt.sentence]
        if over > 0:
            if prompt.sentence and encoding.offsets[last - 1][1] > prompt.sentence[1]:
                last -= 1  # a token of the sentence's end and of what follows it, as `."`, stays
            if last - first <= over:
                return Reason.NO_ROOM
            ids = ids[: last - over] + ids[last:]
            spans = [(a if a < last else a - over, b if b < last else b - over) for a, b in spans]
            last -= over
        unknown = self.is_unknown(ids[first:last])
        return [Tokens(ids=ids, start=a, end=b, truncated=over > 0, unknown=unknown) for a, b in spans]

    def _span(self, encoding: Encoding, text: str, start: int, end: int) -> tuple[int, int]:
        """Tokens [first, last) of the characters [start, end); (0, 0) where there are none."""
        first, last = token_span(encoding, start, end)
        while self.space_too and first > 0 and text[slice(*encoding.offsets[first - 1])].isspace():
            first -= 1
        return first, last


def _or_refused(found: list[Tokens] | Reason, views: int) -> list[Tokens]:
    """The views of a prompt, or as many that are refused."""
    return [Tokens(ids=[], start=0, end=0, refused=found)] * views if isinstance(found, Reason) else found


def token_span(encoding: Encoding, start: int, end: int) -> tuple[int, int]:
    """Tokens [first, last) that cover the characters [start, end); (0, 0) where there are none."""
    first, last = encoding.char_to_token(start), encoding.char_to_token(end - 1) if end > start else None
    if first is None or last is None:  # the normaliser dropped that character
        covering = [i for i, (a, b) in enumerate(encoding.offsets) if a < end and b > start]
        return (covering[0], covering[-1] + 1) if covering else (0, 0)
    while (chars := encoding.token_to_chars(last + 1)) and chars[0] < end and chars[1] > chars[0]:
        last += 1  # one character can be several byte-level tokens
    return first, last + 1


# ----------------------------------------------------------------------------------- several texts in one sequence


# Special tokens before the first text, between two, and after the last; how many of those between the first two texts
# have type 0, as all before them; those behind have type 1. None: all tokens have type 0.
Frame = tuple[list[int], list[int], list[int], int | None]


def frame(tokenize: PromptTokenizer) -> Frame:
    """What stands around and between texts: what ends a text where the tokenizer puts nothing between two."""
    head, tail = tokenize.special_tokens
    pair = tokenize.tokenizer.encode("a", "b")
    texts, types = pair.sequence_ids, pair.type_ids  # texts: 0, 1, or None of special tokens
    end = len(texts) - texts[::-1].index(0)
    between = pair.ids[end : texts.index(1)]
    if not between:
        if not tail:
            raise RequestError("--model: expected an encoder whose texts end with a token, got one without")
        return head, tail, tail, None
    if types != sorted(types) or not set(types) <= {0, 1} or 1 in types[:end]:
        raise RequestError(f"--model: expected an encoder with tokens of types 0, then 1, of a pair, got {types}")
    return head, between, tail, types.count(0) - end if 1 in types else None


def separated(
    tokenize: PromptTokenizer, rows: Sequence[tuple[str, ...]], *, shortened: int, apart: int = 0
) -> TokenBatch:
    """A sequence for each row of texts, with what the encoder's tokenizer puts around and between two texts.

    BERT's is [CLS] a [SEP] b [SEP] with types 0, 1, a third text of type 1; RoBERTa's <s> a </s></s> b </s>, all of
    type 0. apart 0: one view that pools every token; apart n: 1 + n views, of [CLS] and of each of the first n texts.
    Sequences above `max_tokens` lose the ends of their first `shortened` texts, one or two.
    """
    around = frame(tokenize)
    texts = list(dict.fromkeys(text for row in rows for text in row))
    ids_of = dict(zip(texts, tokenize.parts(texts), strict=True))
    found = [_joined(around, tokenize, row, [ids_of[text] for text in row], shortened, apart) for row in rows]
    views = [_or_refused(each, 1 + apart) for each in found]
    return TokenBatch.of(*([view[i] for view in views] for i in range(1 + apart)))


def _joined(
    around: Frame, tokenize: PromptTokenizer, row: tuple[str, ...], parts: list[list[int]], shortened: int, apart: int
) -> list[Tokens] | Reason:
    """The views of one row, or why it is refused."""
    if max(map(len, row)) > MOST_CHARACTERS:
        return Reason.TOO_MANY_CHARACTERS
    for i, part in enumerate(parts):
        if not part:
            return Reason.EMPTY_TEXT if i < shortened else Reason.EMPTY_CONDITION
        if not tokenize.known(part):
            return Reason.UNKNOWN_TOKEN
    free, fixed = parts[:shortened], parts[shortened:]
    head, between, tail, zeros = around
    special = len(head) + len(between) * (len(parts) - 1) + len(tail)
    room = tokenize.max_tokens - special - sum(map(len, fixed))
    if room < shortened:
        return Reason.NO_ROOM
    truncated = sum(map(len, free)) > room
    if truncated:  # each of two texts gets half of the room, and what the other does not need
        first = room if len(free) == 1 else min(len(free[0]), max(room - room // 2, room - len(free[1])))
        free = [free[0][:first], *(part[: room - first] for part in free[1:])]
    ids, spans = list(head), list[tuple[int, int]]()
    for part in [*free, *fixed]:
        ids += [*(between if spans else ()), *part]
        spans.append((len(ids) - len(part), len(ids)))
    ids += tail
    second = NEVER if zeros is None or len(spans) == 1 else spans[0][1] + zeros
    views = [(0, 1), *spans[:apart]] if apart else [(0, len(ids))]
    unknown = any(map(tokenize.is_unknown, free))
    return [Tokens(ids=ids, start=a, end=b, truncated=truncated, unknown=unknown, second=second) for a, b in views]
