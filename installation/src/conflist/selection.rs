//! [`Selection`]: the configuration that container runtimes use, which is the one whose file name
//! sorts first (INST-160).

use std::path::{Path, PathBuf};

use super::files::{CILIUM_BACKUP, Target};
use super::included::{CILIUM_REMEDY, runs_calico, selected};
use super::{candidates, is_read_by_runtimes};

/// The choice of container runtimes among the configurations of the directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Selection {
    /// The choice is unknown, or nothing was examined.
    #[default]
    Unknown,
    /// Runtimes use our file.
    Ours,
    /// Runtimes use this other file, whose configuration runs Calico's plugin as well.
    Including(PathBuf),
    /// Runtimes use a configuration that does not run Calico's plugin. The text names that file,
    /// the cause and the remedy.
    Other(String),
}

impl Selection {
    /// Finds the configuration that runtimes choose. `network` is the name of our network, and
    /// `on_node` the path of the target's directory on the node. An unreadable file counts as
    /// another network's: containerd loads no other file while it exists.
    pub fn find(target: &Target, on_node: &str, network: &str) -> Selection {
        let Some((winner, text)) = selected(&target.directory) else {
            return Selection::Unknown;
        };
        let name = &target.name;
        if winner == *name {
            return Selection::Ours;
        }
        let path = Path::new(on_node).join(winner);
        if runs_calico(&text, name, network) {
            return Selection::Including(path);
        }
        let winner = path.display();
        Selection::Other(match target.renamed_by_cilium() {
            Some(_) => format!(
                "Cilium renamed {name} to {name}.{CILIUM_BACKUP}, and pods get the network of \
                 {winner}; {CILIUM_REMEDY}"
            ),
            None => format!(
                "container runtimes use {winner}, not {name}: the first name wins; remove that \
                 file and the program that writes it, or choose a CNI_CONF_NAME that sorts before \
                 it"
            ),
        })
    }

    /// Returns true if runtimes use Calico's plugin, and false if they do not; `None` if the choice
    /// is unknown.
    pub fn is_calico(&self) -> Option<bool> {
        match self {
            Selection::Unknown => None,
            Selection::Ours | Selection::Including(_) => Some(true),
            Selection::Other(_) => Some(false),
        }
    }

    /// Returns the reason why runtimes do not use Calico's plugin; `None` if they use it, or if the
    /// choice is unknown.
    pub fn problem(&self) -> Option<&String> {
        match self {
            Selection::Other(reason) => Some(reason),
            Selection::Unknown | Selection::Ours | Selection::Including(_) => None,
        }
    }
}

/// Logs a warning if runtimes do not read or choose the target, or may append plugins to it.
/// Upstream does not check this (INST-32). The parameters are those of [`Selection::find`].
pub fn warn_if_not_selected(target: &Target, on_node: &str, network: &str) {
    let name = &target.name;
    if is_read_by_runtimes(name) {
        match Selection::find(target, on_node, network) {
            Selection::Unknown | Selection::Ours => {}
            Selection::Including(path) => {
                tracing::info!(
                    "container runtimes use {}, which runs Calico's plugin",
                    path.display()
                );
            }
            Selection::Other(reason) => tracing::warn!("{reason}"),
        }
    } else {
        tracing::warn!(
            hint = "use a name that ends in .conf, .conflist or .json",
            "container runtimes do not read {name}"
        );
    }
    let added = target.directory.join(network);
    let adds = |names: Vec<String>| names.iter().any(|name| name.ends_with(".conf"));
    if !network.is_empty() && candidates(&added).is_ok_and(adds) {
        tracing::warn!(
            "container runtimes may add the plugins in {}/*.conf to {name}",
            added.display()
        );
    }
}

#[cfg(test)]
mod tests {
    use libcalico::variables::Variables;

    use super::*;
    use crate::settings::Settings;
    use crate::state::State;

    const OURS: &str = "10-calico.conflist";
    const CALICO: &str = r#"{"name":"n","plugins":[{"type":"calico"}]}"#;

    fn find_in(directory: &Path) -> Selection {
        let settings = Settings::from_environment(Variables::NONE, "n").unwrap();
        Selection::find(
            &Target::new(directory, &settings, &State::default()),
            "/etc/cni/net.d",
            "n",
        )
    }

    /// Returns the choice in a directory with these files.
    fn find(files: &[(&str, &str)]) -> Selection {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        find_in(directory.path())
    }

    #[test]
    fn configuration_of_another_network_that_sorts_first_is_reported() {
        for text in [r#"{"name":"aws-cni","plugins":[{"type":"aws-cni"}]}"#, "{"] {
            let Selection::Other(reason) = find(&[("10-aws.conflist", text), (OURS, CALICO)])
            else {
                panic!("{text}")
            };
            assert!(
                reason.contains("use /etc/cni/net.d/10-aws.conflist, not 10-calico.conflist"),
                "{reason}"
            );
        }
        assert_eq!(
            find(&[("20-other.conflist", "{"), (OURS, CALICO)]),
            Selection::Ours
        );
    }

    #[test]
    fn configuration_that_leads_to_calico_is_accepted() {
        let multus = r#"{"name":"m","type":"multus-shim","clusterNetwork":"/host/etc/cni/net.d/10-calico.conflist"}"#;
        for (name, text) in [("00-multus.conf", multus), ("05-calico.conflist", CALICO)] {
            let selection = find(&[(name, text), (OURS, CALICO)]);
            assert_eq!(
                selection,
                Selection::Including(Path::new("/etc/cni/net.d").join(name))
            );
            assert_eq!(
                (selection.is_calico(), selection.problem()),
                (Some(true), None)
            );
        }
    }

    #[test]
    fn choice_is_unknown_without_a_configuration() {
        assert_eq!(find(&[]), Selection::Unknown);
        assert_eq!(
            find(&[
                ("calico-kubeconfig", ""),
                ("05-other.conflist.cilium_bak", "{")
            ]),
            Selection::Unknown
        );
        assert_eq!(find_in(Path::new("/no/such/directory")).is_calico(), None);
    }
}
