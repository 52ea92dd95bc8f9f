"""The flags of every command that reads sentence and condition as one text: prompt, template, pooling."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from raycase.encoder.pooling import Pooling
from raycase.encoder.prompts import OwnPrompt, Pool, own_prompt


@dataclass(frozen=True, kw_only=True)
class TextFlags:
    """How sentence and condition become one text, and that one vector."""

    prompt: str | None = None
    """Prompt of sentence and condition, or several as views side by side, a+b. Default: the encoder's."""
    template: str | None = None
    """Instead of --prompt, one's own: a text with {sentence} and {condition} once each, as 'Express this text
    "{sentence}" in one word in terms of {condition}: "'. Beside --prompt, its view `template`."""
    pool: Pool | None = None
    """Which tokens of --template are pooled. last: the last of the prompt, the pooling of that name. condition,
    sentence, all: what the poolings mean and latent average. Default: what --pooling says, over the condition."""
    pooling: Pooling | None = None
    """How the states of the tokens become one vector. Default: the encoder's that fits --pool."""

    @property
    def own(self) -> OwnPrompt | None:
        """The prompt of one's own, if any. Raises RequestError."""
        return own_prompt(self.template, None, self.pool)


@dataclass(frozen=True, kw_only=True)
class PromptFlags(TextFlags):
    """How a frozen encoder embeds a sentence under a condition (eq. 1)."""

    base_template: str | None = None
    """The text of the base for --template, with {condition} alone. Default: none, and nothing is subtracted."""
    subtract: bool | None = None
    """Whether the base, the condition's own vector, is subtracted (eq. 1). Default: the encoder's; with --template
    only beside --base-template."""

    @property
    def own(self) -> OwnPrompt | None:
        """The prompt of one's own, if any. Raises RequestError."""
        return own_prompt(self.template, self.base_template, self.pool)

    @property
    def prompt_choices(self) -> dict[str, Any]:
        """These flags for `raycase.systems.registry.resolve`."""
        return {field.name: getattr(self, field.name) for field in fields(PromptFlags)}
