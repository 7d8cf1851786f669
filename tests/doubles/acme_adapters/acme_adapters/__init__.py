"""Another company's adapters, one of each group. Nothing of ours knows this package."""
