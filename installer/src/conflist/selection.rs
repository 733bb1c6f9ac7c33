//! [`Selection`]: the configuration that container runtimes use, for the agent. The file that sorts first is the one
//! (INST-160).

use std::path::Path;

use super::{candidates, has_calico};
use crate::plugin_chain::read_chain;
use crate::template::{kind, plugins};
use os::atomic_file::regular_file;

/// Prefix of plugin types that delegate to other networks.
pub(crate) const DELEGATING: &str = "multus";

/// The choice of container runtimes among the configurations of the directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Selection {
    /// The choice is unknown: the directory has no configuration or is unreadable, or the installed files are those of
    /// another environment.
    #[default]
    Unknown,
    /// Runtimes use Calico's plugin, by our file or by a file that contains the plugin or delegates to other networks.
    Calico,
    /// Runtimes use another network, for this reason.
    Other(String),
}

impl Selection {
    /// Finds the configuration that runtimes choose. `name` is our file, and `on_node` the path of `directory` on the
    /// node. An unreadable file counts as another network's: containerd loads no other file while that one exists.
    pub fn find(directory: &Path, on_node: &str, name: &str) -> Selection {
        let names = candidates(directory).unwrap_or_default();
        let Some(first) = names.first() else { return Selection::Unknown };
        let leads_to_calico = |text: Vec<u8>| has_calico(&text) || delegates(&text);
        if first == name || regular_file::contents(&directory.join(first)).is_ok_and(leads_to_calico) {
            return Selection::Calico;
        }
        let file = Path::new(on_node).join(first);
        Selection::Other(format!(
            "container runtimes use {}, not {name}: the first name wins; remove that file and the program that writes \
             it, or choose a CNI_CONF_NAME that sorts before it",
            file.display()
        ))
    }

    /// Returns whether runtimes use Calico's plugin; `None` if the choice is unknown.
    pub fn is_calico(&self) -> Option<bool> {
        match self {
            Selection::Unknown => None,
            Selection::Calico => Some(true),
            Selection::Other(_) => Some(false),
        }
    }

    /// Returns the reason for which Calico's plugin is not used.
    pub fn problem(&self) -> Option<&String> {
        match self {
            Selection::Other(reason) => Some(reason),
            Selection::Unknown | Selection::Calico => None,
        }
    }
}

/// Returns true if a plugin of the configuration delegates to other networks.
fn delegates(text: &[u8]) -> bool {
    let Some(chain) = read_chain(text) else { return false };
    plugins(&chain.to_list()).into_iter().any(|plugin| kind(plugin).starts_with(DELEGATING))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "10-calico.conflist";
    const CALICO: &str = r#"{"name":"n","plugins":[{"type":"calico"}]}"#;

    /// Returns the choice in a directory with these files.
    fn find(files: &[(&str, &str)]) -> Selection {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        Selection::find(directory.path(), "/etc/cni/net.d", OURS)
    }

    #[test]
    fn configuration_of_another_network_that_sorts_first_is_reported() {
        for text in [r#"{"name":"aws-cni","plugins":[{"type":"aws-cni"}]}"#, "{"] {
            let Selection::Other(reason) = find(&[("10-aws.conflist", text), (OURS, CALICO)]) else { panic!("{text}") };
            assert!(reason.contains("use /etc/cni/net.d/10-aws.conflist, not 10-calico.conflist"), "{reason}");
        }
        assert_eq!(find(&[("20-other.conflist", "{"), (OURS, CALICO)]), Selection::Calico);
    }

    #[test]
    fn configuration_that_leads_to_calico_is_accepted() {
        let multus = r#"{"name":"m","type":"multus-shim","clusterNetwork":"/host/etc/cni/net.d/10-calico.conflist"}"#;
        for (name, text) in [("00-multus.conf", multus), ("05-calico.conflist", CALICO)] {
            assert_eq!(find(&[(name, text), (OURS, CALICO)]), Selection::Calico, "{name}");
        }
    }

    #[test]
    fn choice_is_unknown_without_a_configuration() {
        assert_eq!(find(&[]), Selection::Unknown);
        assert_eq!(find(&[("calico-kubeconfig", ""), ("05-other.conflist.cilium_bak", "{")]), Selection::Unknown);
        assert_eq!(Selection::find(Path::new("/no/such/directory"), "/etc/cni/net.d", OURS).is_calico(), None);
    }
}
