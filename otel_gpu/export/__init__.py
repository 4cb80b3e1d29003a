"""Activities become OTLP: spans, histograms, links."""
