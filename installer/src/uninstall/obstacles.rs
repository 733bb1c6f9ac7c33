//! What keeps a run from beginning. A node that is half taken back is worse than one that is not: nothing is changed then.

use std::path::Path;

use super::plan::{Found, FoundState};
use super::report::Report;
use super::{Options, addresses, files, interfaces};
use crate::host_network::HostNetwork;
use crate::layout::{Layout, Place};

/// Something in the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Obstacle {
    action: &'static str,
    target: String,
    reason: String,
}

impl Obstacle {
    /// Says so.
    pub(super) fn told(self, report: &mut Report) {
        report.refuse(self.action, self.target, self.reason);
    }
}

/// All of them.
pub(super) fn all(
    found: &[Found],
    layout: &Layout,
    net_dir: &str,
    options: Options,
    network: &dyn HostNetwork,
) -> Vec<Obstacle> {
    let mut obstacles = unreadable(found);
    if !options.forget_gone {
        obstacles.extend(elsewhere(found, layout, Path::new(net_dir)));
    }
    if options.release_addresses {
        obstacles.extend(in_use(options, network));
    }
    obstacles
}

/// Configurations of which nobody can tell whether they are ours, nor what they run.
fn unreadable(found: &[Found]) -> Vec<Obstacle> {
    let mut obstacles = Vec::new();
    for file in found.iter().filter(|file| file.is_configuration()) {
        if let FoundState::Unreadable(reason) = &file.state {
            let reason = format!("it cannot be looked at: {reason}");
            obstacles.push(Obstacle { action: "remove", target: file.path.display().to_string(), reason });
        }
    }
    obstacles
}

/// Places in which nothing is of what was installed there: as likely as not another directory is mounted there. The directory
/// of the state needs no proof, and none does after a run that saw them and was killed: it left a renamed configuration, or, as
/// programs go before that, notes of no program.
fn elsewhere(found: &[Found], layout: &Layout, net_dir: &Path) -> Vec<Obstacle> {
    let is_program = |file: &Found| matches!(file.place, Place::Bin | Place::SecondaryBin);
    if found.iter().any(|file| files::is_retired(&file.path)) || !found.iter().any(is_program) {
        return Vec::new();
    }
    let mut obstacles = Vec::new();
    for place in [Place::Bin, Place::SecondaryBin, Place::Net] {
        let files: Vec<&Found> = found.iter().filter(|file| file.place == place).collect();
        if files.is_empty() || files.iter().any(|file| file.state != FoundState::Gone) {
            continue;
        }
        let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
        let way = match (layout.is_container(), place) {
            (true, _) => "mount the node's directory there that they were installed into",
            (false, Place::Bin) => "--bin-dir says where else they are",
            (false, Place::SecondaryBin) => "--secondary-bin-dir says where they are",
            (false, _) => "look for them",
        };
        obstacles.push(Obstacle {
            action: "find",
            target: format!("{} in {}", names.join(", "), layout.dir(place, net_dir).display()),
            reason: format!("nothing of what was installed is there; {way}, or --forget-gone if somebody removed them"),
        });
    }
    obstacles
}

/// Pods that would go on with addresses that another pod gets.
fn in_use(options: Options, network: &dyn HostNetwork) -> Option<Obstacle> {
    let reason = match interfaces::in_use(network, options.tear_down_pods) {
        Ok(used) if used.is_empty() => return None,
        Ok(used) => format!(
            "pods are connected with theirs: {}; delete these pods first, or say --tear-down-pods",
            used.join(", ")
        ),
        Err(reason) => format!("who is connected with theirs is not known: {reason}"),
    };
    Some(Obstacle { action: "release", target: addresses::WHAT.to_owned(), reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(place: Place, path: &str, state: FoundState) -> Found {
        let name = path.rsplit('/').next().unwrap().to_owned();
        Found { place, name, path: path.into(), state, replaced: false }
    }

    fn targets(found: &[Found]) -> Vec<String> {
        let layout = Layout::container();
        elsewhere(found, &layout, Path::new("/etc/cni/net.d")).into_iter().map(|obstacle| obstacle.target).collect()
    }

    #[test]
    fn a_place_with_nothing_of_ours_is_not_the_one_that_was_installed_into() {
        use FoundState::{Gone, Same};
        let bin = |state| found(Place::Bin, "/host/opt/cni/bin/calico", state);
        let portmap = |state| found(Place::Bin, "/host/opt/cni/bin/portmap", state);
        let conf = |state| found(Place::Net, "/host/etc/cni/net.d/10-calico.conflist", state);
        let mtu = found(Place::State, "/var/lib/calico/mtu", Gone);
        let nothing: [String; 0] = [];
        assert_eq!(targets(&[bin(Same), portmap(Gone), conf(Same), mtu.clone()]), nothing);
        assert_eq!(targets(&[bin(Gone), portmap(Gone), conf(Same)]), ["calico, portmap in /host/opt/cni/bin"]);
        let changed = FoundState::Changed("by somebody".into());
        assert_eq!(targets(&[bin(Gone), portmap(changed), conf(Gone)]), ["10-calico.conflist in /host/etc/cni/net.d"]);
        let retired = found(Place::Net, "/host/etc/cni/net.d/10-calico.conflist.removed", Same);
        assert_eq!(targets(&[bin(Gone), retired]), nothing, "a run that was killed had seen it");
        assert_eq!(targets(&[conf(Gone)]), nothing, "so had one that was killed after the programs went");
        assert_eq!(targets(&[]), nothing);
    }

    #[test]
    fn a_configuration_that_cannot_be_read_is_in_the_way() {
        let unreadable = || FoundState::Unreadable("permission denied".into());
        let found = [
            found(Place::Net, "/x/10-calico.conflist", unreadable()),
            found(Place::Net, "/x/calico-kubeconfig", unreadable()),
        ];
        let [only] = super::unreadable(&found).try_into().unwrap();
        assert_eq!(only.target, "/x/10-calico.conflist");
        assert_eq!(only.reason, "it cannot be looked at: permission denied");
    }
}
