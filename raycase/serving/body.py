"""The JSON of a request's body, read as strictly as RFC 8259 allows."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from raycase.data.json_values import object_of_once


def read_json(body: bytes) -> Any:
    """The value. Raises ValueError, in one line, for what is no UTF-8 or no JSON, for NaN and infinities, for an object
    with a name twice, and for nesting without end."""
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_no_number, object_pairs_hook=object_of_once)
    except UnicodeDecodeError as error:
        raise ValueError(f"expected JSON in UTF-8, got another byte at {error.start:,}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"expected JSON, got at character {error.pos:,}: {error.msg}") from error
    except RecursionError as error:
        raise ValueError("expected JSON, got lists or objects nested too deeply") from error


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"expected JSON, which has no {name}")
