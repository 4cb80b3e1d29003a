"""Device time: what devices did, from traces of profilers."""
