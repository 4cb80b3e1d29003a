#!/bin/sh
# Starts otel-gpu with the capabilities of the container.
#
# The kernel does not execute a file with capabilities that the container lacks. Then the interpreter
# without capabilities runs: replay, explain and report need none, and doctor lists the missing ones. Root
# has the container's capabilities with either interpreter. Variables of Python (ignored by -E) are for
# the command that otel-gpu runs.
set -u
bin=/opt/otel-gpu/bin
if "$bin/python3-capture" -E -c '' 2>/dev/null; then
	exec "$bin/python3-capture" -E -P -m otel_gpu "$@"
fi
exec "$bin/otel-gpu" "$@"
