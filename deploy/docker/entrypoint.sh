#!/bin/sh
# Starts otel-gpu with the capabilities that the container was given.
#
# The kernel does not execute a file that has capabilities which the container may not have. Then
# the interpreter without any does: replay, explain and report need none, and doctor says which
# are missing. Root has what the container has, whichever interpreter it is. Variables of Python
# (-E) are for the command that otel-gpu runs.
set -u
bin=/opt/otel-gpu/bin
if "$bin/python3-capture" -E -c '' 2>/dev/null; then
	exec "$bin/python3-capture" -E -P -m otel_gpu "$@"
fi
exec "$bin/otel-gpu" "$@"
