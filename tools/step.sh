#!/bin/sh
# Runs one step of the set-up: its name and its time for whoever waits, and the rest in a log.
#
#   tools/step.sh NAME TEXT COMMAND [ARGUMENT]...
#
# The log is .output/NAME.log. Where the step fails, its last lines are shown. Beside other steps,
# as make runs them with -j, it says all at its end.
set -u
cd "$(dirname "$0")/.." || exit 1

log=.output/$1.log
text=$2
shift 2
mkdir -p .output
said="$text ... "
case ${MAKEFLAGS-} in
*-j*) ;;
*)
	printf '%s' "$said"
	said=
	;;
esac
start=$(date +%s)
"$@" >"$log" 2>&1
code=$?
if [ "$code" != 0 ]; then
	echo "${said}failed"
	{
		tail -n 20 "$log"
		echo "$text failed; all that was said is in $PWD/$log"
	} >&2
	exit "$code"
fi
echo "$said$(($(date +%s) - start)) s"
# What a reader should know although nothing failed.
sed -n 's/^note: //p' "$log" >&2
