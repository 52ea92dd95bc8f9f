"""The flags of every command that reads sentence and condition as one text, and the file of a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raycase.data.json_values import from_json
from raycase.data.storage import json_file
from raycase.encoder.pooling import Pooling
from raycase.encoder.prompts import OwnPrompt, PooledPart, PromptStyle, parse_views
from raycase.errors import RequestError


@dataclass(frozen=True, kw_only=True)
class TextFlags:
    """How sentence and condition become one text, and how that text becomes one vector."""

    prompt: str | None = None
    """Prompt of sentence and condition: a name, several as views side by side (a+b), or a file NAME.json with a
    template of one's own (docs/encoders.md). Default: the encoder's."""
    pooling: Pooling | None = None
    """How the states of the tokens become one vector. Default: the encoder's that fits the prompt."""

    @property
    def text_choices(self) -> dict[str, Any]:
        """These flags for `raycase.encoder.choices.find_encoder`. Raises RequestError."""
        views, own = read_prompt(self.prompt)
        return {"prompt": views, "pooling": self.pooling, "own": own}


@dataclass(frozen=True, kw_only=True)
class PromptFlags(TextFlags):
    """How a frozen encoder embeds a sentence under a condition (eq. 1)."""

    subtract: bool | None = None
    """Whether the base, the condition's own vector, is subtracted (eq. 1). Default: the encoder's; with a template
    only where it has a base_template."""

    @property
    def prompt_choices(self) -> dict[str, Any]:
        """These flags for `raycase.systems.registry.resolve`."""
        return {"prompt": self.prompt, "pooling": self.pooling, "subtract": self.subtract}


@dataclass(frozen=True, kw_only=True)
class _PromptFile:
    """What a file of --prompt holds: an `OwnPrompt`, and the views, of which it is one."""

    template: str
    base_template: str | None = None
    pool: PooledPart | None = None
    views: tuple[str, ...] = (PromptStyle.TEMPLATE,)


def prompt_file(prompt: str | Mapping[str, Any] | None) -> str | None:
    """The file among what a prompt may be; None for a name, and for the contents of a file."""
    return prompt if isinstance(prompt, str) and prompt.lower().endswith(".json") else None


def read_prompt(prompt: str | Mapping[str, Any] | None) -> tuple[str | None, OwnPrompt | None]:
    """The views of a prompt, joined by +, and the template of one's own among them: from a name, a file, or the
    contents of one. Raises RequestError."""
    if prompt is None or (isinstance(prompt, str) and not prompt_file(prompt)):
        if prompt is not None and any(style is PromptStyle.TEMPLATE for style, _ in parse_views(prompt)):
            raise RequestError(f"--prompt: expected a file NAME.json with the template, got {prompt}")
        return prompt, None
    try:
        values = json_file(prompt, "--prompt") if isinstance(prompt, str) else dict(prompt)
        file = from_json(_PromptFile, values)
        own = OwnPrompt(template=file.template, base_template=file.base_template, pool=file.pool)
    except RequestError:
        raise
    except ValueError as error:
        raise RequestError(f"--prompt: {error}{f', in {prompt}' if isinstance(prompt, str) else ''}") from error
    views = "+".join(file.views)
    if not any(style is PromptStyle.TEMPLATE for style, _ in parse_views(views)):
        raise RequestError(f"--prompt: views: expected template among them, got {views}")
    return views, own
