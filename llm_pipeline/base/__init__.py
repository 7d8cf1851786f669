"""What every room stands on: records, errors, verdicts, digests, documents, processes, locks and logs."""
