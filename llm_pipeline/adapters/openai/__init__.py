"""A server with OpenAI's API that somebody else runs: it is waited for and checked."""
