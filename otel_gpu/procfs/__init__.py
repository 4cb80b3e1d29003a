"""What /proc says about processes: what they map, who they are, what they say of themselves."""
