# shellcheck shell=bash
# How the demos talk and wait; sourced by their steps, after $work is set.

number=0
bold='' plain=''
[ ! -t 1 ] || bold=$'\e[1m' plain=$'\e[0m'
step() { printf '\n%s%2d. %s%s\n' "$bold" $((++number)) "$*" "$plain"; }
# A thing that must not be so. (`!` alone never ends a script.)
not() { ! "$@"; }
run() { echo "    \$ $*" && "$@" | sed 's/^/    /'; }

# wait_for SECONDS COMMAND...: until the command succeeds; says how long it took
wait_for() {
    local left=$(($1 * 20)) begun=${EPOCHREALTIME/./}
    shift
    until "$@"; do
        [ $((left -= 1)) -gt 0 ] || { echo "    waited in vain for: $*; see the logs in $work" >&2; return 1; }
        sleep 0.05
    done
    waited=$(((${EPOCHREALTIME/./} - begun) / 100000))
    waited=$((waited / 10)).$((waited % 10))
}
