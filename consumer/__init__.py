"""Projects the ledger's records from Kafka into Redis."""
