//! Configurations of other programs that run Calico's plugin as well: that of Multus calls our
//! configuration, and those of istio-cni and Cilium are copies of it with a further plugin.

use std::path::Path;

use os::atomic_file::{Replacement, regular_file};
use serde_json::{Map, Value};

use super::{candidates, has_calico};
use crate::plugin_chain::read_chain;
use crate::template::{kind, plugins};

/// Prefix of the types of Multus' plugins, and part of the path of the directory that OpenShift
/// reserves for the networks that Multus calls.
pub const MULTUS: &str = "multus";

/// The type of the plugin that each configuration of Cilium's contains.
pub const CILIUM: &str = "cilium-cni";

/// The types of plugins that their programs add to a copy of another program's configuration.
pub const COPYING: [&str; 2] = [CILIUM, "istio-cni"];

/// Returns the name and the text of the configuration that runtimes use. The text of an unreadable
/// file is empty.
pub(super) fn selected(directory: &Path) -> Option<(String, Vec<u8>)> {
    let name = candidates(directory).ok()?.into_iter().next()?;
    let text = regular_file::contents(&directory.join(&name)).unwrap_or_default();
    Some((name, text))
}

/// Returns true if a configuration contains Calico's plugin, or is one of Multus' that calls our
/// configuration. `name` is the file name of ours, and `network` its network.
pub(super) fn runs_calico(text: &[u8], name: &str, network: &str) -> bool {
    let conf = read_chain(text)
        .map(|chain| chain.to_list())
        .unwrap_or_default();
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    let mut called = plugins(&conf).into_iter().flat_map(delegate_names);
    has_calico(text) || called.any(|called| [name, stem, network].contains(&called.as_str()))
}

/// Returns the names of the networks or files that Multus delegates to.
pub fn delegate_names(plugin: &Map<String, Value>) -> Vec<String> {
    let text = |conf: &Map<String, Value>, key: &str| {
        conf.get(key).and_then(Value::as_str).map(str::to_owned)
    };
    let delegates = plugin
        .get("delegates")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let inside = delegates
        .filter_map(Value::as_object)
        .filter_map(|delegate| text(delegate, "name"));
    let called = text(plugin, "clusterNetwork").unwrap_or_default();
    let called = called.rsplit('/').next().unwrap_or_default().to_owned();
    std::iter::once(called)
        .chain(inside)
        .filter(|name| !name.is_empty())
        .collect()
}

/// The remedy for a configuration that Cilium renamed.
pub const CILIUM_REMEDY: &str = "chain Cilium to Calico (cni.chainingMode), or remove Cilium";

/// Returns true if `text` is a configuration with a plugin for whose type `is_wanted` returns true.
pub(super) fn has_plugin(text: &[u8], is_wanted: impl Fn(&str) -> bool) -> bool {
    let conf = read_chain(text)
        .map(|chain| chain.to_list())
        .unwrap_or_default();
    plugins(&conf)
        .into_iter()
        .any(|plugin| is_wanted(kind(plugin)))
}

/// Returns the way to replace our file in `directory`, whose path on the node is `net_dir`: a
/// rename if Multus seems to be in use, and else an exchange. Multus' daemon may watch the file as
/// its `readinessindicatorfile`; it takes an exchange for a removal, deletes its own configuration
/// and ends.
pub(super) fn replacement(directory: &Path, net_dir: &str) -> Replacement {
    let contents = |name: String| regular_file::contents(&directory.join(name)).unwrap_or_default();
    let is_multus = |name| has_plugin(&contents(name), |kind| kind.starts_with(MULTUS));
    let is_watched = net_dir.contains(MULTUS)
        || candidates(directory)
            .unwrap_or_default()
            .into_iter()
            .any(is_multus);
    if is_watched {
        Replacement::Rename
    } else {
        Replacement::Exchange
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn configurations_that_copy_or_call_ours_run_calico() {
        for (text, expected) in [
            (
                r#"{"name": "k8s-pod-network", "plugins": [{"type": "calico"}, {"type": "istio-cni"}]}"#,
                true,
            ),
            (
                r#"{"type": "multus-shim", "clusterNetwork": "/host/etc/cni/net.d/10-calico.conflist"}"#,
                true,
            ),
            (
                r#"{"type": "multus", "clusterNetwork": "k8s-pod-network"}"#,
                true,
            ),
            (
                r#"{"plugins": [{"type": "multus", "delegates": [{"name": "k8s-pod-network"}]}]}"#,
                true,
            ),
            (r#"{"type": "multus", "clusterNetwork": "other"}"#, false),
            (r#"{"plugins": [{"type": "cilium-cni"}]}"#, false),
            ("{", false),
        ] {
            assert_eq!(
                runs_calico(text.as_bytes(), "10-calico.conflist", "k8s-pod-network"),
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn file_beside_multus_is_replaced_by_a_rename() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("00-multus.conf");
        let found = |net_dir: &str| replacement(dir.path(), net_dir);
        assert_eq!(found("/etc/cni/net.d"), Replacement::Exchange);
        fs::write(&file, r#"{"type": "multus-shim"}"#).unwrap();
        assert_eq!(found("/etc/cni/net.d"), Replacement::Rename);
        fs::rename(&file, dir.path().join("00-multus.conf.old")).unwrap();
        assert_eq!(found("/etc/cni/net.d"), Replacement::Exchange);
        assert_eq!(found("/var/run/multus/cni/net.d"), Replacement::Rename);
    }
}
