//! Interfaces of pods that are still there. Their routes go with them.

use libcalico::names::interface_prefix;

use super::Options;
use super::report::Report;
use crate::host_network::HostNetwork;

/// Deletes those that are Calico's, or says that it would. Without `--tear-down-pods` they are named: their pods stay
/// connected, but nothing tears them down any more.
pub(super) fn tear_down(options: Options, network: &dyn HostNetwork, report: &mut Report) {
    let prefixes = std::env::var("FELIX_INTERFACEPREFIX").ok();
    let prefix = interface_prefix(prefixes.as_deref());
    let interfaces = match network.interfaces() {
        Ok(interfaces) => interfaces,
        Err(reason) => return report.fail("remove", "the interfaces of pods", reason),
    };
    let mut names: Vec<String> = interfaces.into_iter().map(|interface| interface.name).collect();
    names.retain(|name| name.starts_with(prefix));
    names.sort();
    for name in names {
        let what = format!("interface {name}");
        if !options.tear_down_pods {
            report.leave(what, "its pod is still connected; --tear-down-pods deletes it");
        } else if !options.yes {
            report.done("remove", what);
        } else {
            match network.remove_pod_interface(&name) {
                Ok(true) => report.done("remove", what),
                Ok(false) => report.leave(what, "it is no interface of a pod of Calico's"),
                Err(reason) => report.fail("remove", what, reason),
            }
        }
    }
}
