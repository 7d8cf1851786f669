"""The smallest tokenizer.json that loaders read: two words, and `</s>` as token 2."""

from __future__ import annotations

import json

_END = {
    "id": 2, "content": "</s>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
    "special": True,
}  # fmt: skip
TOKENIZER = json.dumps(
    {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [_END], "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "</s>": 2}, "unk_token": "</s>"},
    }
).encode()  # fmt: skip
