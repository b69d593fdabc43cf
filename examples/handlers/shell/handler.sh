#!/bin/sh
# A command that runs once per attempt. program: [sh, handler.sh]
total=$(sed -n 's/.*"total": *\(-\{0,1\}[0-9]\{1,18\}\)\([^0-9.eE].*\)\{0,1\}$/\1/p') # the shell counts no further
if [ -z "$total" ]; then
    echo "no total in $LAZARET_ID" >&2
    exit 65 # dead letter, INVALID_SCHEMA
elif [ "$total" -lt 0 ]; then
    echo "a negative total" >&2
    exit 65
elif [ "$total" -eq 0 ]; then
    echo "not priced yet, attempt $LAZARET_ATTEMPT" >&2
    exit 75 # retry
fi
