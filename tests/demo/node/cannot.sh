# shellcheck shell=bash
# Features that this machine does not allow, detected before they are needed: the demo skips each such part with its
# reason and runs the others. The steps of the demo source this file after setting $work.

skipped=()
# skip PART REASON: reports a skipped part, and again at the end
skip() {
    skipped+=("$1: $2")
    echo "    SKIPPED on this machine: $2"
}

# Prints the reason why no kubelet can run here, or nothing.
node_refusal() {
    local cgroups=/sys/fs/cgroup program
    [ ! -d $cgroups/pids ] || cgroups=$cgroups/pids
    for program in kubelet containerd containerd-shim-runc-v2 ctr runc; do
        type $program >/dev/null 2>&1 || { echo "there is no $program"; return; }
    done
    world_refusal >$work/refused
    [ ! -s $work/refused ] || { cat $work/refused; return; }
    [ -z "$(containers)" ] || { echo "another containerd has pods on this machine"; return; }
    # shellcheck disable=SC2015 # either of them
    mkdir $cgroups/demo-node 2>$work/refusal && rmdir $cgroups/demo-node || echo "a kubelet makes cgroups: $(<$work/refusal)"
}

# Prints the reason why a node cannot have its own /etc and namespaces here (node_world), or nothing.
world_refusal() {
    local probe=$work/probe
    mkdir -p $probe/{upper,work,etc}
    mount -t overlay overlay -o lowerdir=/etc,upperdir=$probe/upper,workdir=$probe/work $probe/etc 2>$work/refusal ||
        { echo "a node has files of its own over /etc: $(tail -1 $work/refusal)"; return; }
    umount $probe/etc
    { ip netns add probe && ip netns exec probe true && ip netns delete probe; } 2>$work/refusal ||
        echo "pods have network namespaces: $(tail -1 $work/refusal)"
}

# table_refusal TABLE: prints the reason why iptables cannot use this table here, or nothing
table_refusal() {
    iptables -w -t "$1" -S >/dev/null 2>$work/refusal || echo "it needs iptables' table $1: $(tail -1 $work/refusal)"
}

# Prints the skipped parts at the end of a run.
say_what_was_skipped() {
    [ ${#skipped[@]} -gt 0 ] || return 0
    printf '\nnot shown on this machine:\n'
    printf '    %s\n' "${skipped[@]}"
    [ "${CI:-}" != true ] || { echo "skipped steps are failures in CI" >&2; return 1; }
}
