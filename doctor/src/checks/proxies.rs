//! Check of proxies. Go programs, and so upstream's plugins, follow the variables of the runtime;
//! ours do not.

use crate::report::{Checked, pass, warn};
use crate::snapshot::{Cluster, NodeSnapshot, ProxySettings, Unobserved};

/// The remedy if a server does not respond. The proxy may be unrelated to that: the other findings
/// name the error.
const REMEDY: &str = "let this node reach the server without a proxy, for example by a route or a \
                      firewall rule; only `calico-ipam` on a workstation, and kube-controllers \
                      outside of their cluster, follow proxies";

/// Checks that the plugins reach their servers without the proxies of this node. Returns `None`
/// without a proxy.
pub(super) fn check(snapshot: &NodeSnapshot) -> Option<Checked> {
    if snapshot.proxies.is_empty() {
        return None;
    }
    let proxies: Vec<String> = snapshot.proxies.iter().map(describe).collect();
    let observation = format!(
        "plugins and agent connect directly, and ignore {}",
        proxies.join("; ")
    );
    let Some(cluster) = &snapshot.cluster else {
        return Some(Err(Unobserved::new(format!(
            "{observation}; no readable configuration names a server"
        ))));
    };
    Some(match silent_server(cluster) {
        None => pass(observation),
        Some(server) => warn(format!("{observation}; {server} does not answer"), REMEDY),
    })
}

/// Returns the address of a server that does not respond.
fn silent_server(cluster: &Cluster) -> Option<&str> {
    if cluster.reached.is_err() {
        return Some(cluster.address.as_str());
    }
    let api = cluster.api.as_ref()?;
    api.reached.is_err().then_some(api.address.as_str())
}

/// Describes the settings, such as `HTTPS_PROXY of containerd (NO_PROXY: .svc)`.
fn describe(proxies: &ProxySettings) -> String {
    let ProxySettings {
        process,
        variables,
        excluded,
    } = proxies;
    let excluded = if excluded.is_empty() {
        "without NO_PROXY".to_owned()
    } else {
        format!("NO_PROXY: {excluded}")
    };
    format!("{} of {process} ({excluded})", variables.join(", "))
}
