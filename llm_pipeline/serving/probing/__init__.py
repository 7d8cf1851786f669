"""What is asked of a staged server before it is believed: one module a question, a fact (`Evidence`) an answer."""
