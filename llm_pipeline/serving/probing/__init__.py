"""Probes of a staged server: each asks one question and answers it with facts (`Evidence`)."""
