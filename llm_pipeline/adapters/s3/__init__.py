"""A store in S3, or in what speaks its API."""
