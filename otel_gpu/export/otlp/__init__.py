"""OTLP: encoders, queues, senders, exporters."""
