#!/bin/sh
# The command otel-gpu: starts its Python without the variables that configure Python.
#
# PYTHONHOME, PYTHONPATH, PYTHONINSPECT and the others are for the command that otel-gpu runs, which
# gets them unchanged. The usual script of an installer starts Python, which reads them at once.
program=$0
if [ -L "$program" ]; then
	program=$(readlink -f "$program")
fi
folder=${program%/*}
python=$folder/python3
if [ -x "$python" ] && [ -e "$folder/../pyvenv.cfg" ]; then
	exec "$python" -E -P -m otel_gpu "$@"
fi
# Outside of a virtual environment, the Python beside this file can be another one.
for python in "$python" python3; do
	if "$python" -E -P -c 'import otel_gpu' 2>/dev/null; then
		exec "$python" -E -P -m otel_gpu "$@"
	fi
done
# If only PYTHONPATH leads to the package, the variables are for otel-gpu as well.
exec python3 -m otel_gpu "$@"
