"""The demo model's tokenizer: byte-level BPE of 512 tokens; its template puts the begin token before every text."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from llm_pipeline.demo.tasks import TRAINING_WEIGHTS, stream

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

VOCABULARY = 512
BOS, EOS, PAD = 0, 1, 2
_SPECIAL = ("<s>", "</s>", "<pad>")
_TRAINING_TEXTS = 8000


def train_tokenizer() -> PreTrainedTokenizerFast:
    """Learn the merges from training texts; the same every time."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (item.text for item in islice(stream(1, held_out=False, weights=TRAINING_WEIGHTS), _TRAINING_TEXTS))
    tokenizer.train_from_iterator(texts, trainer)
    begin = _SPECIAL[BOS]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", pair=f"{begin} $A $B", special_tokens=[(begin, BOS)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=begin,
        eos_token=_SPECIAL[EOS],
        pad_token=_SPECIAL[PAD],
        model_max_length=128,
        clean_up_tokenization_spaces=False,
    )
