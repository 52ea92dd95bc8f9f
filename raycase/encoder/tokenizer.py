"""Complete prompts -> token ids and the pooled tokens; texts that many prompts share are tokenised once."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

from raycase.data.ragged import Ragged
from raycase.data.schema import Reason
from raycase.encoder.prompts import Rendered, Template, TokenSpan
from raycase.encoder.token_batch import NEVER, TokenBatch, Tokens

log = logging.getLogger(__name__)
LONG_TEXT = 32  # characters a token that a prompt may have: twice as long a text is tokenised in parts
MOST_CHARACTERS = 2**23  # of a text that is not cut: a tokenizer takes a minute and 7 GB for six times as many
CHECKED_PROMPTS = 16  # of every batch that is joined from halves, compared with tokenising in full


@dataclass(kw_only=True)
class PromptTokenizer:
    """Prompts -> token ids and pooled tokens, with the end token and the maximum length of the encoder.

    rows: of the encoder's weights for tokens; a prompt with a token above them is refused (`known`).
    space_too: pieces of white space alone before a pooled text are pooled with it, as NV-Embed's authors count.
    """

    tokenizer: Tokenizer
    max_tokens: int
    rows: int = NEVER
    end_token: str | None = None
    space_too: bool = False
    in_parts: bool = True  # `pairs` may tokenise sentence and condition apart; False once the result differed
    end_id: int | None = field(init=False)

    def __post_init__(self) -> None:
        self.end_id = None if self.end_token is None else self.tokenizer.token_to_id(self.end_token)
        assert self.end_token is None or self.end_id is not None

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

    def parts(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of the stripped texts, without special tokens; of a very long one, its middle is left out (`cut`), and
        one that is too long has none."""
        texts = [self.cut(text) for text in texts]
        texts = ["" if _is_too_long(text) else text.strip() for text in texts]
        return [e.ids for e in self.tokenizer.encode_batch(texts, add_special_tokens=False)]

    def is_too_long(self, text: str) -> bool:
        """Whether a text, its middle left out, is longer than a tokenizer should be asked for."""
        return _is_too_long(text) and _is_too_long(self.cut(text))

    def cut(self, text: str) -> str:
        """A very long text without its middle, which is not tokenised in vain: as a sentence it is truncated to the
        same tokens, and as a condition it is refused as before.

        What is left out begins and ends where pieces end (`boundary`), so the tokens of the three parts are those of
        the text; and what stays before it has `max_tokens` tokens or more, of which a prompt keeps fewer.
        """
        size = LONG_TEXT * self.max_tokens
        if len(text) <= 2 * size or self._cuts is None:
            return text
        text = text.strip()  # as in a prompt
        last = self._cuts.search(text, max(0, len(text) - size))
        while last and (first := self._cuts.search(text, size)) and first.start() < last.start():
            head = text[: first.start() + 1]
            if len(self.tokenizer.encode(head, add_special_tokens=False)) >= self.max_tokens:
                return head + text[last.start() + 1 :]
            size *= 4
        return text

    @cached_property
    def _cuts(self) -> re.Pattern[str] | None:
        """Where a text may be cut; None where that is not certain, or an added token may lie across."""
        colon = _ends_pieces(self.tokenizer)
        cuts = _AT_MARKS if colon else _AT_SPACES
        added = [t.content for t in self.tokenizer.get_added_tokens_decoder().values() if not t.special]
        return None if colon is None or any(map(cuts.search, added)) else cuts

    def __call__(self, prompts: Sequence[Rendered]) -> list[Tokens]:
        """Tokenise complete prompts and find the pooled tokens.

        A prompt above `max_tokens` loses tokens from the end of the sentence, never of the condition or the template.
        `refused` gives the reason why a prompt cannot be encoded: no room for the sentence, a text without tokens or
        far too long.
        """
        fit = [p.text for p in prompts if not _is_too_long(p.text)]
        encodings = iter(self.tokenizer.encode_batch(fit))
        too_long = Tokens(ids=[], start=0, end=0, refused=Reason.TEXT_TOO_LONG)
        return [too_long if _is_too_long(p.text) else self._tokens(p, next(encodings)) for p in prompts]

    def _tokens(self, prompt: Rendered, encoding: Encoding) -> Tokens:
        ids = encoding.ids
        if not self.known(ids):
            return Tokens(ids=[], start=0, end=0, refused=Reason.UNKNOWN_TOKEN)
        if self.end_id is not None and (not ids or ids[-1] != self.end_id):
            ids = [*ids, self.end_id]
        tokens_of: dict[tuple[int, int] | None, tuple[int, int]] = {None: (0, len(ids))}  # of a span of characters
        for span, reason in ((prompt.sentence, Reason.EMPTY_TEXT), (prompt.condition, Reason.EMPTY_CONDITION)):
            if span is not None:
                tokens_of[span] = self._span(encoding, prompt.text, *span)
                if tokens_of[span] == (0, 0):
                    return Tokens(ids=[], start=0, end=0, refused=reason)
        start, end = tokens_of[prompt.pooled]
        over = len(ids) - self.max_tokens
        if over > 0:
            first, last = (0, 0) if prompt.sentence is None else tokens_of[prompt.sentence]
            if prompt.sentence and encoding.offsets[last - 1][1] > prompt.sentence[1]:
                last -= 1  # a token of the sentence's end and of what follows it, as `."`, stays
            if last - first <= over:
                return Tokens(ids=[], start=0, end=0, refused=Reason.NO_ROOM)
            ids = ids[: last - over] + ids[last:]
            start, end = (i if i < last else i - over for i in (start, end))
        return Tokens(ids=ids, start=start, end=end, truncated=over > 0)

    def _span(self, encoding: Encoding, text: str, start: int, end: int) -> tuple[int, int]:
        """Tokens [first, last) of the characters [start, end); (0, 0) where there are none."""
        first, last = token_span(encoding, start, end)
        while self.space_too and first > 0 and text[slice(*encoding.offsets[first - 1])].isspace():
            first -= 1
        return first, last

    def pairs(self, templates: Sequence[Template], pairs: Sequence[tuple[str, str]]) -> TokenBatch:
        """Tokenise the prompts of (sentence, condition) pairs; one view for each template.

        The templates share one pattern and differ in what they pool. Where no token can cross the boundary between the
        two texts (`boundary`), each distinct text is tokenised once and the halves are joined. A sample of the result
        is compared with tokenising in full; the first difference logs a warning and turns joining off for good.
        """
        cut = {text: self.cut(text) for text in dict.fromkeys(text for pair in pairs for text in pair)}
        pairs = [(cut[sentence], cut[condition]) for sentence, condition in pairs]
        texts = len({s for s, _ in pairs}) + len({c for _, c in pairs})
        apart = self.in_parts and texts < len(pairs) and not any(map(_is_too_long, cut.values()))
        halves = boundary(templates[0], self.tokenizer) if apart else None
        if halves is None:
            return self._in_full(templates, pairs)
        batch = self._joined(halves, templates, pairs)
        sample = np.unique(np.linspace(0, len(pairs) - 1, CHECKED_PROMPTS).astype(np.int64))
        if _same(batch.take(sample), self._in_full(templates, [pairs[i] for i in sample.tolist()])):
            return batch
        self.in_parts = False
        log.warning("sentences and conditions are tokenised together from now on: apart, their tokens differ")
        return self._in_full(templates, pairs)

    def _in_full(self, templates: Sequence[Template], pairs: Sequence[tuple[str, str]]) -> TokenBatch:
        return TokenBatch.of(*(self([template.render(*pair) for pair in pairs]) for template in templates))

    def _joined(
        self, halves: tuple[Template, Template], templates: Sequence[Template], pairs: Sequence[tuple[str, str]]
    ) -> TokenBatch:
        """Tokenise each distinct half once and join; other prompts than whole ones are tokenised in full."""
        head, tail = self.special_tokens
        pieces: list[list[int]] = [[]]
        piece_index, spans = [], []  # of the left halves, then of the right halves
        for half, before, after in ((halves[0], head, []), (halves[1], [], tail)):
            text = 0 if "{sentence}" in half.pattern else 1
            number = {t: i for i, t in enumerate(dict.fromkeys(pair[text] for pair in pairs))}
            text_index = np.array([number[pair[text]] for pair in pairs], dtype=np.int64)
            rendered = [half.render(t, t) for t in number]
            encodings = self.tokenizer.encode_batch([r.text for r in rendered], add_special_tokens=False)
            piece_index.append(len(pieces) + text_index)
            text_spans = [self._span(e, r.text, *r.texts[0]) for e, r in zip(encodings, rendered, strict=True)]
            spans.append(np.array(text_spans, dtype=np.int64)[text_index])
            pieces += [[*before, *e.ids, *after] for e in encodings]
        lengths = np.array([len(p) for p in pieces], dtype=np.int64)
        total = lengths[piece_index[0]] + lengths[piece_index[1]]
        first = [np.full(len(pairs), len(head)), lengths[piece_index[0]]]  # where the tokens of each half begin
        pooled = {TokenSpan.ALL: np.stack([np.zeros_like(total), total], axis=1)}
        for half, begins, span in zip(halves, first, spans, strict=True):
            pooled[TokenSpan.SENTENCE if "{sentence}" in half.pattern else TokenSpan.CONDITION] = begins[:, None] + span
        start, end = np.stack([pooled[template.span] for template in templates], axis=-1).transpose(1, 0, 2)
        unknown_P = np.array([not self.known(piece) for piece in pieces])
        in_full = np.flatnonzero(
            (total > self.max_tokens)
            | (spans[0][:, 1] == 0)
            | (spans[1][:, 1] == 0)
            | unknown_P[piece_index[0]]
            | unknown_P[piece_index[1]]
        )
        whole = self._in_full(templates, [pairs[i] for i in in_full.tolist()])
        joined = TokenBatch(
            pieces=Ragged.of_ids(pieces),
            left=piece_index[0],
            right=piece_index[1],
            start=start,
            end=end,
            truncated=np.zeros(len(pairs), dtype=bool),
            refused=np.full(len(pairs), -1),
        )
        return joined.replaced(in_full, whole) if len(in_full) else joined


def _is_too_long(text: str) -> bool:
    return len(text) > MOST_CHARACTERS


def token_span(encoding: Encoding, start: int, end: int) -> tuple[int, int]:
    """Tokens [first, last) that cover the characters [start, end); (0, 0) where there are none."""
    first, last = encoding.char_to_token(start), encoding.char_to_token(end - 1) if end > start else None
    if first is None or last is None:  # the normaliser dropped that character
        covering = [i for i, (a, b) in enumerate(encoding.offsets) if a < end and b > start]
        return (covering[0], covering[-1] + 1) if covering else (0, 0)
    while (chars := encoding.token_to_chars(last + 1)) and chars[0] < end and chars[1] > chars[0]:
        last += 1  # one character can be several byte-level tokens
    return first, last + 1


# Where a very long text is cut, after a character: pieces end there whatever stands before and after.
_AT_SPACES = re.compile(r"[A-Za-z0-9](?= [A-Za-z0-9])")
_AT_MARKS = re.compile(_AT_SPACES.pattern + r"|[A-Za-z\u4e00-\u9fff](?=[:/+,;\uff0c\u3002\u3001])")
_TWO_TEXTS = re.compile(r"(.*?\{(?:sentence|condition)\})(.*)(\{(?:sentence|condition)\}.*)", re.DOTALL)
# Normalisers that treat each character alike wherever it is in a text.
NORMALIZERS = {"BertNormalizer", "NFC", "NFKC", "NFD", "NFKD", "Lowercase", "Precompiled", "StripAccents"}
# The pre-tokenizer of Qwen2. As with GPT-2's, pieces end before a single space, and between a letter and a colon.
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def boundary(template: Template, tokenizer: Tokenizer) -> tuple[Template, Template] | None:
    """Cut a template into two halves with a text each, where no token crosses the cut; None where that is not certain.

    Texts are stripped, so that a single space between them, or a colon after a letter, ends a piece of the
    pre-tokenizer; tokens are merged within pieces only.
    """
    match = _TWO_TEXTS.fullmatch(template.pattern)
    colon = _ends_pieces(tokenizer)
    if match is None or colon is None:
        return None
    before, middle, after = match.groups()
    middle = "x" + middle  # stands for the text's last character
    cuts = [
        i
        for i in range(1, len(middle))
        if (middle[i] == " " and not middle[i - 1].isspace() and not middle[i + 1 : i + 2].isspace())
        or (colon and middle[i] == ":" and middle[i - 1].isalpha() and i > 1)
    ]
    if not cuts:
        return None
    halves = (before + middle[1 : cuts[-1]], middle[cuts[-1] :] + after)
    left, right = (Template(pattern=half, span=TokenSpan.ALL) for half in halves)
    return left, right


def _ends_pieces(tokenizer: Tokenizer) -> bool | None:
    """Whether pieces end before a colon too; None where it is not certain that they end before a space."""
    if any(t.lstrip or t.rstrip for t in tokenizer.get_added_tokens_decoder().values() if not t.special):
        return None  # these tokens absorb the white space beside them
    if not {step["type"] for step in _steps(tokenizer.normalizer, "normalizers")} <= NORMALIZERS:
        return None
    steps = _steps(tokenizer.pre_tokenizer, "pretokenizers")
    match [step["type"] for step in steps]:
        case ["BertPreTokenizer"]:
            return True
        case ["WhitespaceSplit", "Metaspace"]:
            return False
        case ["ByteLevel"] if steps[0]["use_regex"] and not steps[0]["add_prefix_space"]:
            return True
        case ["Split", "ByteLevel"] if steps[0]["pattern"].get("Regex") == QWEN_WORDS and not steps[1]["use_regex"]:
            return not steps[1]["add_prefix_space"] or None
    return None


def _steps(component: Any, name: str) -> list[dict[str, Any]]:
    """The steps of a component of the tokenizer, as in tokenizer.json."""
    if component is None:
        return []
    saved = json.loads(component.__getstate__())
    return list(saved.get(name, [saved]))


def _same(a: TokenBatch, b: TokenBatch) -> bool:
    """Whether two batches hold the same prompts, however they are cut into pieces."""
    rows = np.arange(len(a))
    names = ("lengths", "start", "end", "truncated", "refused")
    return np.array_equal(a.ids(rows).flat, b.ids(rows).flat) and all(
        np.array_equal(getattr(a, name), getattr(b, name)) for name in names
    )
