//! Finds the host ends of pods' interfaces and the namespaces of processes, and deletes an
//! interface that no container uses.

use std::collections::BTreeSet;
use std::path::Path;
use std::{fs, io};

use crate::host_network::PodLink;
use libcalico::dead_interface::{DeadLink, Peer};
use libcalico::ipam::Statement;

use super::netlink::{Link, NetlinkSocket, link};
use super::processes::{Examined, each_netns};
use super::{DataplaneError, plugin_calls};

/// The bit of CAP_SYS_PTRACE, with which a process sees the namespaces of processes of other users,
/// and environments.
const SYS_PTRACE: u32 = 19;

/// Returns the host ends of pods' interfaces.
pub(super) fn pod_links() -> Result<Vec<PodLink>, DataplaneError> {
    let links = link::list(&mut NetlinkSocket::open()?)?;
    let pod_link = |link: Link| PodLink {
        peer: peer(&link),
        name: link.name,
        index: link.index,
        alias: link.alias,
    };
    Ok(links
        .into_iter()
        .filter(Link::is_of_pod)
        .map(pod_link)
        .collect())
}

/// Returns the IDs of the network namespaces with a thread, or the reason why threads may be hidden
/// from this process.
pub(super) fn inhabited_namespaces() -> Result<Statement<BTreeSet<i32>>, DataplaneError> {
    of_all_processes(|proc| {
        let mut host = NetlinkSocket::open()?;
        let mut inhabited = BTreeSet::new();
        each_netns(proc, Examined::Threads, |_, netns| {
            inhabited.extend(link::netns_id_of(&mut host, netns)?);
            Ok(())
        })?;
        Ok(inhabited)
    })
}

/// Returns the containers for which a CNI plugin runs, or the reason why processes may be hidden
/// from this process.
pub(super) fn containers_of_calls() -> Result<Statement<BTreeSet<String>>, DataplaneError> {
    of_all_processes(plugin_calls::containers)
}

/// Returns the result of a look at all processes in `/proc`, or the reason why some may be hidden
/// from this process.
fn of_all_processes<T>(
    look: impl FnOnce(&Path) -> Result<T, DataplaneError>,
) -> Result<Statement<T>, DataplaneError> {
    let proc = Path::new("/proc");
    if let Some(reason) = hidden_processes(proc) {
        return Ok(Statement::Unknown(reason));
    }
    match look(proc) {
        Ok(found) => Ok(Statement::Known(found)),
        // The agent logs each reason once, so it names no process.
        Err(DataplaneError::HiddenProcess { source, .. }) => Ok(Statement::Unknown(format!(
            "cannot examine each process: {source}; this needs root, the capability SYS_PTRACE and \
             no AppArmor profile"
        ))),
        Err(error) => Err(error),
    }
}

/// Deletes an interface unless another one has its name or its index now. Needs no lock: the alias
/// shows that the ADD has completed the interface, and the kernel gives its index to no later one.
pub(super) fn remove(dead: &DeadLink) -> Result<bool, DataplaneError> {
    let mut socket = NetlinkSocket::open()?;
    let Some(found) = link::find_by_index(&mut socket, dead.index)? else {
        return Ok(false);
    };
    if !found.is_paired || found.name != dead.name || found.alias.as_ref() != Some(&dead.alias) {
        return Ok(false);
    }
    link::ignore_missing(socket.exchange_one(link::set_down(&found)).map(drop))?;
    link::delete(&mut socket, &found)?;
    Ok(true)
}

fn peer(link: &Link) -> Peer {
    match (link.peer_netns_id, link.peer_index) {
        (Some(id), _) if id >= 0 => Peer::Namespace(id),
        (None, Some(_)) => Peer::SameNamespace,
        // The kernel reports a negative ID for a namespace that is being deleted.
        _ => Peer::Unknown,
    }
}

/// Returns the reason why this process may not see all processes of its PID namespace in `proc`;
/// `None` if it sees them.
fn hidden_processes(proc: &Path) -> Option<String> {
    let (found, own) = (
        fs::read_link(proc.join("self")).unwrap_or_default(),
        std::process::id().to_string(),
    );
    if found.as_os_str() != own.as_str() {
        return Some(format!(
            "{} is of another PID namespace than this process",
            proc.display()
        ));
    }
    // Without the capability, the option `hidepid` of the file system hides processes of other
    // users.
    match has_capability(&proc.join("thread-self/status"), SYS_PTRACE) {
        Ok(true) => None,
        Ok(false) => Some(
            "this process lacks the capability SYS_PTRACE, which shows the processes of the node"
                .into(),
        ),
        Err(error) => Some(format!(
            "cannot read the capabilities of this process: {error}"
        )),
    }
}

fn has_capability(status: &Path, bit: u32) -> io::Result<bool> {
    let status = fs::read_to_string(status)?;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective
        .and_then(|text| u64::from_str_radix(text.trim(), 16).ok())
        .unwrap_or_default();
    Ok((effective >> bit) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(peer_netns_id: Option<i32>, peer_index: Option<u32>) -> Link {
        Link {
            peer_netns_id,
            peer_index,
            is_paired: true,
            ..Link::default()
        }
    }

    #[test]
    fn place_of_the_other_end_is_read_from_the_link() {
        assert_eq!(peer(&link(Some(0), Some(2))), Peer::Namespace(0));
        assert_eq!(peer(&link(None, Some(2))), Peer::SameNamespace);
        assert_eq!(peer(&link(Some(-1), Some(2))), Peer::Unknown);
        assert_eq!(peer(&link(None, None)), Peer::Unknown);
    }

    #[test]
    fn pods_links_of_the_test_host_are_readable() {
        assert!(pod_links().unwrap().iter().all(|link| link.name != "lo"));
    }

    #[test]
    fn capabilities_are_read_from_the_status() {
        let directory = tempfile::tempdir().unwrap();
        let status = directory.path().join("status");
        for (text, expected) in [
            (
                "CapPrm:\t0000000000080000\nCapEff:\t0000000000080000\n",
                true,
            ),
            (
                "CapPrm:\t0000000000080000\nCapEff:\t00000000a80425fb\n",
                false,
            ),
            ("Name:\tcalico\n", false),
        ] {
            fs::write(&status, text).unwrap();
            assert_eq!(
                has_capability(&status, SYS_PTRACE).unwrap(),
                expected,
                "{text}"
            );
        }
        assert!(has_capability(&directory.path().join("none"), SYS_PTRACE).is_err());
    }

    #[test]
    fn proc_of_another_pid_namespace_hides_processes() {
        let directory = tempfile::tempdir().unwrap();
        let reason = hidden_processes(directory.path()).unwrap();
        assert!(reason.contains("another PID namespace"), "{reason}");
    }
}
