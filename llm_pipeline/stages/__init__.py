"""The stages of a release: one module each, request in, result out."""
