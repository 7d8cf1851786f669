"""A second opinion: another load generator sends the same traffic, and its figures stand beside ours."""
