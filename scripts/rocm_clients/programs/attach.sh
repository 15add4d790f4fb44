#!/bin/bash
# Attaches a debugger to a program that uses the GPU, detaches it, and lets the program continue.
#   attach.sh PROGRAM [ARGUMENTS]
"$@" >/dev/null &
program=$!
# The ledger has a line as soon as the program has used the GPU.
until [ -s "$ROCR_STANDIN_LEDGER" ] || ! kill -0 "$program" 2>/dev/null; do sleep 0.01; done
gdb -batch -nx -ex "set print thread-events off" -p "$program" -ex "print (int)getpid() == $program" -ex detach 2>&1 | grep '^\$1'
wait "$program"
echo "the program continued and exited with status $?"
