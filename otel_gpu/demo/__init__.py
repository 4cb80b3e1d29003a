"""
Labelled scenarios: a small training loop that one named cause makes slow, by a known time.

``otel-gpu demo`` shows them, and ``tests/scenarios`` holds what is explained against what
was done. They need no GPU: ``cudart.c`` stands in for the CUDA runtime. What makes a
scenario slow is real, and so is what the kernel sees of it.
"""
