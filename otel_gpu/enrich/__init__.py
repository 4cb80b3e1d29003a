"""From events to activities: Unix time and names."""
