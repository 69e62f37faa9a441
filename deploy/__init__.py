"""Starts the services that a ledger on Kafka and Redis needs."""
