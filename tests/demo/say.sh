# shellcheck shell=bash
# Output and waiting of the demos. Their steps source this file after setting $work.

number=0
bold='' plain=''
[ ! -t 1 ] || bold=$'\e[1m' plain=$'\e[0m'
step() { printf '\n%s%2d. %s%s\n' "$bold" $((++number)) "$*" "$plain"; }
# Asserts that a command fails. (`!` alone never ends a script.)
not() { ! "$@"; }
run() { echo "    \$ $*" && "$@" | sed 's/^/    /'; }

# wait_for SECONDS COMMAND...: waits until the command succeeds, and sets $waited to the duration
wait_for() {
    local left=$(($1 * 20)) begun=${EPOCHREALTIME/./}
    shift
    until "$@"; do
        [ $((left -= 1)) -gt 0 ] || { echo "    timed out waiting for: $*; see the logs in $work" >&2; return 1; }
        sleep 0.05
    done
    waited=$(((${EPOCHREALTIME/./} - begun) / 100000))
    waited=$((waited / 10)).$((waited % 10))
}
