"""The check of a checkpoint that somebody else quantized against the model that it was made of.

Answers are compared item by item, so both have to read and to be asked the same text. Layers and sizes are held against
one another by their facts, in `plan` and when the checkpoint was fetched.
"""

from __future__ import annotations

from pathlib import Path

from llm_pipeline.artifacts.checkpoint_loading import load_tokenizer
from llm_pipeline.base.errors import IntegrityError


def require_same_text(model: Path, checkpoint: Path) -> None:
    """Require the same vocabulary and the same chat template.

    Raises:
        IntegrityError: They are not; or one of them has no tokenizer that can be read.
    """
    ours, theirs = load_tokenizer(model), load_tokenizer(checkpoint)
    known, found = ours.get_vocab(), theirs.get_vocab()
    if known != found:
        differing = sorted(token for token in known.keys() | found.keys() if known.get(token) != found.get(token))
        raise _of_another_text(
            checkpoint, f"its vocabulary differs in {len(differing)} of {len(known)} tokens: {differing[:4]}"
        )
    if _stripped(ours.chat_template) != _stripped(theirs.chat_template):
        raise _of_another_text(checkpoint, "its chat template is another one")


def _stripped(template: object) -> object:
    """A template, or several by name, without the white space at their ends, which files add and lose."""
    if isinstance(template, dict):
        return {name: _stripped(one) for name, one in template.items()}
    return template.strip() if isinstance(template, str) else template


def _of_another_text(checkpoint: Path, what: str) -> IntegrityError:
    return IntegrityError(
        f"the recipe's checkpoint is not asked as the model is: {what}",
        where=str(checkpoint),
        hint="name a checkpoint with the tokenizer and the chat template of the release's model and revision",
    )
