# shellcheck shell=bash
# How the demos talk; sourced by their steps.

number=0
bold='' plain=''
[ ! -t 1 ] || bold=$'\e[1m' plain=$'\e[0m'
step() { printf '\n%s%2d. %s%s\n' "$bold" $((++number)) "$*" "$plain"; }
run() { echo "    \$ $*" && "$@" | sed 's/^/    /'; }
