"""Complete prompts -> token ids, truncated to what the encoder reads, and the pooled tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tokenizers import Encoding, Tokenizer

from raycase.encoder.prompts import Rendered, Template
from raycase.encoder.token_batch import NEVER, TokenBatch, Tokens
from raycase.io.schema import Reason

LONG_TEXT = 32  # characters for each token that a prompt may have; longer texts are cut before they meet in prompts
MOST_CHARACTERS = 2**23  # of a text: a tokenizer takes a minute and 7 GB for six times as many


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
        """Ids of the stripped texts, without special tokens; one that is too long has none."""
        texts = ["" if is_too_long(text) else text.strip() for text in texts]
        return [e.ids for e in self.tokenizer.encode_batch(texts, add_special_tokens=False)]

    def __call__(self, prompts: Sequence[Rendered]) -> list[Tokens]:
        """Tokenise complete prompts and find the pooled tokens.

        A prompt above `max_tokens` loses tokens from the end of the sentence, never of the condition or the template.
        `refused` gives the reason why a prompt cannot be encoded: no room for the sentence, a text without tokens or
        far too long.
        """
        return [tokens for [tokens] in self._views([[prompt] for prompt in prompts])]

    def pairs(self, templates: Sequence[Template], pairs: Sequence[tuple[str, str]]) -> TokenBatch:
        """Tokenise the prompts of (sentence, condition) pairs; one view for each template.

        The templates share one pattern and differ in what they pool.
        """
        short = {text: self._shortened(text) for text in dict.fromkeys(text for pair in pairs for text in pair)}
        prompts = [[template.render(short[s], short[c]) for template in templates] for s, c in pairs]
        tokens = self._views(prompts)
        return TokenBatch.of(*([views[i] for views in tokens] for i in range(len(templates))))

    def _shortened(self, text: str) -> str:
        """A very long text without its end, so that its prompts are tokenised as quickly as others.

        It keeps twice as many tokens as a prompt may have: what is cut off is never a prompt's, nor decides what its
        tokens are.
        """
        if not LONG_TEXT * self.max_tokens < len(text) <= MOST_CHARACTERS:
            return text
        text, kept = text.strip(), 2 * self.max_tokens
        offsets = self.tokenizer.encode(text, add_special_tokens=False).offsets
        head = text if len(offsets) <= kept else text[: offsets[kept - 1][1]]
        return text if head[-1:].isspace() else head  # a prompt strips it

    def _views(self, prompts: Sequence[Sequence[Rendered]]) -> list[list[Tokens]]:
        """The views of each prompt, which have the same text."""
        encodings = iter(self.tokenizer.encode_batch([p.text for p, *_ in prompts if not is_too_long(p.text)]))
        return [
            [_refused(Reason.TEXT_TOO_LONG)] * len(views)
            if is_too_long(views[0].text)
            else self._tokens(views, next(encodings))
            for views in prompts
        ]

    def _tokens(self, views: Sequence[Rendered], encoding: Encoding) -> list[Tokens]:
        ids, prompt = encoding.ids, views[0]
        if not self.known(ids):
            return [_refused(Reason.UNKNOWN_TOKEN)] * len(views)
        if self.end_id is not None and (not ids or ids[-1] != self.end_id):
            ids = [*ids, self.end_id]
        tokens_of: dict[tuple[int, int] | None, tuple[int, int]] = {None: (0, len(ids))}  # of a span of characters
        for span, reason in ((prompt.sentence, Reason.EMPTY_TEXT), (prompt.condition, Reason.EMPTY_CONDITION)):
            if span is not None:
                tokens_of[span] = self._span(encoding, prompt.text, *span)
                if tokens_of[span] == (0, 0):
                    return [_refused(reason)] * len(views)
        spans, over = [tokens_of[view.pooled] for view in views], len(ids) - self.max_tokens
        if over > 0:
            first, last = (0, 0) if prompt.sentence is None else tokens_of[prompt.sentence]
            if prompt.sentence and encoding.offsets[last - 1][1] > prompt.sentence[1]:
                last -= 1  # a token of the sentence's end and of what follows it, as `."`, stays
            if last - first <= over:
                return [_refused(Reason.NO_ROOM)] * len(views)
            ids = ids[: last - over] + ids[last:]
            spans = [(a if a < last else a - over, b if b < last else b - over) for a, b in spans]
        return [Tokens(ids=ids, start=start, end=end, truncated=over > 0) for start, end in spans]

    def _span(self, encoding: Encoding, text: str, start: int, end: int) -> tuple[int, int]:
        """Tokens [first, last) of the characters [start, end); (0, 0) where there are none."""
        first, last = token_span(encoding, start, end)
        while self.space_too and first > 0 and text[slice(*encoding.offsets[first - 1])].isspace():
            first -= 1
        return first, last


def _refused(reason: Reason) -> Tokens:
    return Tokens(ids=[], start=0, end=0, refused=reason)


def is_too_long(text: str) -> bool:
    """Whether a text is longer than a tokenizer should be asked for."""
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
