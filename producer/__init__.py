"""Writes the ledger's records to Kafka."""
