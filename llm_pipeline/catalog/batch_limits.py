"""How large a calibration batch may be: the quantize stage keeps to it, planning predicts by it. Without torch."""

SHARE_USED = 0.7
"""Of the memory that the weights leave free: the allocator's fragments and the tools' own buffers take some."""

LARGEST_BATCH_TOKENS = 32_768
"""Tokens a forward pass. An H200 is as fast at a quarter of it: more gain nothing."""
