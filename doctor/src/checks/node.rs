//! Checks of the node itself: its name, MTU, kernel settings and journal.

use crate::report::{Checked, fail, pass, warn};
use crate::snapshot::{
    Cluster, FORWARD, FORWARD_IPV6, NodeName, NodeSnapshot, REVERSE_PATH, Unobserved,
};
use dataplane::host_network::Interface;

/// Number of deferred DELs that are listed in full.
const MAX_LISTED_DELS: usize = 5;

const NO_CONFIGURATION: &str = "no configuration of Calico can be read";

pub(super) fn check_name(snapshot: &NodeSnapshot) -> Checked {
    let Some(NodeName {
        name,
        configured,
        path,
        written,
        optional,
    }) = &snapshot.node
    else {
        return Err(NO_CONFIGURATION.into());
    };
    let path = path.display();
    let name = match name {
        Ok(name) => name,
        Err(reason) => return fail(reason.clone(), format!("write the Node's name into {path}")),
    };
    match written.as_ref().map(|text| text.as_deref().map(str::trim)) {
        // The plugins take the name from the configuration, and only check that the file exists.
        Err(_) if !configured.is_empty() => pass(name),
        Err(reason) => warn(
            format!(
                "{path} cannot be read: {reason}; if the plugins cannot read the file either, they \
                 use {name}"
            ),
            "run `calico doctor` as root; if the file is damaged, remove it and run the installer \
             again or start calico-node",
        ),
        Ok(Some(written)) if !configured.is_empty() && written != configured => fail(
            format!("the configuration has the node name {configured}, but {path} has {written}"),
            "correct the name that is not the Node's: IPAM treats two names as two nodes",
        ),
        Ok(None) if !optional => fail(
            format!("{path} does not exist: every ADD fails, and each DEL is deferred"),
            format!(
                "start calico-node or run the installer, which write the file; or write it: printf \
                 %s {name} > {path}"
            ),
        ),
        _ => pass(name),
    }
}

/// Checks that packets of pods fit through every uplink.
pub(super) fn check_mtu(snapshot: &NodeSnapshot) -> Checked {
    let Some(configured) = snapshot.configured_mtu else {
        return Err(NO_CONFIGURATION.into());
    };
    if snapshot.mtu_file_required && snapshot.mtu_file == Ok(None) {
        let remedy = "run the installer again or start calico-node, which write the file";
        return fail(
            "/var/lib/calico/mtu does not exist and require_mtu_file is true: every ADD fails",
            remedy,
        );
    }
    // A configured MTU overrides the file.
    let written = match &snapshot.mtu_file {
        Err(reason) if configured == 0 => {
            let observation = format!(
                "/var/lib/calico/mtu cannot be read: {reason}; no pod starts if the plugins cannot \
                 read the file either"
            );
            let remedy = "run `calico doctor` as root; if the file is damaged, remove it and run \
                          the installer again or start calico-node";
            return warn(observation, remedy);
        }
        file => file.as_ref().ok().and_then(|text| text.as_deref()),
    };
    let written = match written.map(|text| text.trim().parse::<u32>()) {
        Some(Err(_)) if configured == 0 => {
            let remedy =
                "remove the file and run the installer again or start calico-node, which write it";
            return fail(
                "/var/lib/calico/mtu does not contain a number: no pod starts",
                remedy,
            );
        }
        Some(Ok(mtu)) => mtu,
        _ => 0,
    };
    let (pods, place) = match (configured, written) {
        (0, 0) => (1500, "the kernel's default"),
        (0, mtu) => (mtu, "/var/lib/calico/mtu"),
        (mtu, _) => (mtu, "the configuration"),
    };
    let uplinks = snapshot.uplinks.as_ref().map_err(|reason| {
        Unobserved::new(format!(
            "{pods} from {place}; the routes of the kernel cannot be read: {reason}"
        ))
    })?;
    let Interface { name, mtu, .. } =
        uplinks
            .iter()
            .min_by_key(|uplink| uplink.mtu)
            .ok_or_else(|| {
                Unobserved::new(format!(
                    "{pods} from {place}; no interface with a default route exists to compare with"
                ))
            })?;
    let pools = snapshot.cluster.as_ref().and_then(Cluster::pools);
    let overhead = pools
        .and_then(|pools| pools.iter().map(|pool| pool.overhead).max())
        .unwrap_or(0);
    if pods + overhead > *mtu {
        let room = mtu.saturating_sub(overhead);
        let observation = format!(
            "pods have MTU {pods} from {place}, {name} has {mtu}, of which encapsulation uses \
             {overhead}"
        );
        return warn(
            observation,
            format!("set veth_mtu (CNI_MTU) to {room} or less: larger packets are lost"),
        );
    }
    pass(format!(
        "pods have MTU {pods} from {place}, {name} has {mtu}"
    ))
}

/// Checks kernel settings that affect forwarding and source addresses of pods' packets.
pub(super) fn check_settings(snapshot: &NodeSnapshot) -> Checked {
    let value = |wanted: &str| {
        snapshot
            .settings
            .iter()
            .find(|(name, _)| *name == wanted)?
            .1
            .as_deref()
    };
    if value(FORWARD) == Some("0") {
        return fail(
            format!("{FORWARD} is 0: packets of pods are not forwarded"),
            format!("sysctl -w {FORWARD}=1"),
        );
    }
    let has_ipv6 = snapshot.cluster.as_ref().and_then(Cluster::pools);
    let has_ipv6 = has_ipv6.is_some_and(|pools| {
        pools
            .iter()
            .any(|pool| pool.is_of_node() && pool.cidr.contains(':'))
    });
    if has_ipv6 && value(FORWARD_IPV6) != Some("1") {
        let observation = format!(
            "{FORWARD_IPV6} is {}, but a pool has IPv6 addresses",
            value(FORWARD_IPV6).unwrap_or("absent")
        );
        return fail(observation, format!("sysctl -w {FORWARD_IPV6}=1"));
    }
    if value(REVERSE_PATH) == Some("2") {
        let observation =
            format!("{REVERSE_PATH} is 2: a pod can send packets with the address of another pod");
        return warn(
            observation,
            format!("sysctl -w {REVERSE_PATH}=1, which Felix requires as well"),
        );
    }
    let listed = snapshot
        .settings
        .iter()
        .filter_map(|(name, value)| Some(format!("{name}={}", value.as_ref()?)));
    pass(listed.collect::<Vec<_>>().join(" "))
}

pub(super) fn check_journal(snapshot: &NodeSnapshot) -> Checked {
    let deferred_dels = snapshot.journal.as_ref().map_err(Clone::clone)?;
    if deferred_dels.is_empty() {
        return pass("empty");
    }
    let listed = &deferred_dels[..deferred_dels.len().min(MAX_LISTED_DELS)];
    let more = deferred_dels.len() - listed.len();
    let more = if more == 0 {
        String::new()
    } else {
        format!("; and {more} more")
    };
    warn(
        format!(
            "{} deferred DELs have not released their addresses: {}{more}",
            deferred_dels.len(),
            listed.join("; ")
        ),
        "remove the cause that each entry names; a later ADD, DEL, STATUS or GC, or the agent, \
         then replays the DELs. For entries that remain, read /var/log/calico/cni/cni.log; \
         `calico-ipam journal` lists all, and `calico-ipam journal adopt` assigns them to another \
         datastore",
    )
}
