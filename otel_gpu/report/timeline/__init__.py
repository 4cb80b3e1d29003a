"""What happened when: timelines, and windows in detail."""
