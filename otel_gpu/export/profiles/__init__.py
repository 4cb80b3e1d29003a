"""CPU samples as OTLP profiles."""
