"""
Scenarios: a small training loop that one known cause makes slow, by a known time.

``otel-gpu demo`` runs them, and ``tests/scenarios`` compares explanations with the injected causes.
They need no GPU: ``cudart.c`` stands in for the CUDA runtime. The causes are real, and so are the
kernel's events.
"""
