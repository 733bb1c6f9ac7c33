//! Interfaces of pods that are still there. Their routes go with them.

use std::fs;

use libcalico::names::interface_prefix;

use super::report::Report;
use super::{Options, RemoveInterface};

/// Deletes those that are Calico's, or says that it would. Without `--tear-down-pods` they are named: their pods stay
/// connected, but nothing tears them down any more.
pub(super) fn tear_down(options: Options, remove: RemoveInterface<'_>, report: &mut Report) {
    let prefixes = std::env::var("FELIX_INTERFACEPREFIX").ok();
    let names = with_prefix(interface_prefix(prefixes.as_deref()));
    for name in names {
        let what = format!("interface {name}");
        if !options.tear_down_pods {
            report.leave(what, "its pod is still connected; --tear-down-pods deletes it");
        } else if !options.yes {
            report.done("remove", what);
        } else {
            match remove(&name) {
                Ok(true) => report.done("remove", what),
                Ok(false) => report.leave(what, "it is no interface of a pod of Calico's"),
                Err(reason) => report.fail(what, reason),
            }
        }
    }
}

/// The interfaces of this node whose name begins so, in order.
fn with_prefix(prefix: &str) -> Vec<String> {
    let entries = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| name.starts_with(prefix)).collect();
    names.sort();
    names
}
