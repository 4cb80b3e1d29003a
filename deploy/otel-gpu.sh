#!/bin/sh
# The command otel-gpu: starts its Python without the variables that configure Python.
#
# PYTHONHOME, PYTHONPATH, PYTHONINSPECT and the others are for the command that otel-gpu runs, which
# gets them as they are. A script that an installer makes for Python begins with Python, and is over
# before it can ignore them.
program=$0
if [ -L "$program" ]; then
	program=$(readlink -f "$program")
fi
folder=${program%/*}
python=$folder/python3
if [ -x "$python" ] && [ -e "$folder/../pyvenv.cfg" ]; then
	exec "$python" -E -P -m otel_gpu "$@"
fi
# Outside of a virtual environment it can be another Python that is there.
for python in "$python" python3; do
	if "$python" -E -P -c 'import otel_gpu' 2>/dev/null; then
		exec "$python" -E -P -m otel_gpu "$@"
	fi
done
# Where PYTHONPATH alone leads to it, the variables are for otel-gpu as well.
exec python3 -m otel_gpu "$@"
