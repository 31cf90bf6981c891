"""Foreign logs as takes: telemetry into the journal, source labels into `truth.jsonl` only."""
