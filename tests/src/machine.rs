//! The state of the machine that a test run could change.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::command::{ip_json, run};

/// Directories with state of the plugins, of CNI and of container runtimes.
const DIRECTORIES: [&str; 10] = [
    "/etc/cni",
    "/etc/calico",
    "/opt/cni",
    "/run/lab",
    "/run/netns",
    "/var/run/calico",
    "/var/lib/calico",
    "/var/lib/cni",
    "/var/lib/containers",
    "/var/log/calico",
];

/// The machine's state, as lines of text grouped by topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine(BTreeMap<String, Vec<String>>);

impl Machine {
    /// Reads the state.
    pub fn read() -> Result<Machine> {
        let mut state = BTreeMap::new();
        state.insert("links".to_owned(), links()?);
        for table in [
            "-4 route show table all",
            "-6 route show table all",
            "rule show",
            "netns list",
        ] {
            let words: Vec<_> = table.split_whitespace().collect();
            state.insert(format!("ip {table}"), lines(&run("ip", &words)?));
        }
        state.insert("mounts".to_owned(), mounts()?);
        state.insert(
            "forwarding".to_owned(),
            vec![
                crate::kernel::sysctl("ipv4/ip_forward")?,
                crate::kernel::sysctl("ipv6/conf/all/forwarding")?,
            ],
        );
        state.insert(
            "files".to_owned(),
            DIRECTORIES
                .iter()
                .flat_map(|dir| files(Path::new(dir)))
                .collect(),
        );
        Ok(Machine(state))
    }

    /// Returns every line, with its topic.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.0
            .iter()
            .flat_map(|(what, lines)| lines.iter().map(move |line| format!("{what}: {line}")))
    }

    /// Returns the lines that only `after` has (`+`) and those that only `self` has (`-`).
    pub fn changes(&self, after: &Machine) -> Vec<String> {
        let none = Vec::new();
        let mut changes = Vec::new();
        for what in self
            .0
            .keys()
            .chain(after.0.keys().filter(|what| !self.0.contains_key(*what)))
        {
            let (was, is) = (
                self.0.get(what).unwrap_or(&none),
                after.0.get(what).unwrap_or(&none),
            );
            changes.extend(
                was.iter()
                    .filter(|line| !is.contains(line))
                    .map(|line| format!("- {what}: {line}")),
            );
            changes.extend(
                is.iter()
                    .filter(|line| !was.contains(line))
                    .map(|line| format!("+ {what}: {line}")),
            );
        }
        changes
    }
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(|line| line.trim().to_owned()).collect()
}

fn links() -> Result<Vec<String>> {
    let links = ip_json("address show")?;
    let describe = |link: &serde_json::Value| {
        let addresses: Vec<_> = link["addr_info"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|a| &a["local"])
            .collect();
        format!(
            "{} {} mtu {} {:?}",
            link["ifname"], link["address"], link["mtu"], addresses
        )
    };
    Ok(links
        .as_array()
        .into_iter()
        .flatten()
        .map(describe)
        .collect())
}

/// Lists mount points with their file systems, without IDs and counters.
fn mounts() -> Result<Vec<String>> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let describe = |line: &str| {
        let point = line.split(' ').nth(4).unwrap_or_default().to_owned();
        let kind = line.split(" - ").nth(1).unwrap_or_default().to_owned();
        format!("{point} {kind}")
    };
    Ok(table.lines().map(describe).collect())
}

/// Lists a directory, if it exists, and everything below it, with lengths.
fn files(directory: &Path) -> Vec<String> {
    let mut found: Vec<_> = directory
        .is_dir()
        .then(|| format!("{} 0", directory.display()))
        .into_iter()
        .collect();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(data) = entry.metadata() else { continue };
        if data.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(format!("{} {}", path.display(), data.len()));
        }
    }
    found.sort();
    found
}

/// Programs that tests start, as the kernel names them.
const PROGRAMS: [&str; 10] = [
    "etcd",
    "kube-apiserver",
    "calico",
    "calico-ipam",
    "conmon",
    "runc",
    "podman",
    "tinyproxy",
    "microsocks",
    "stunnel4",
];

/// Lists running processes with certain names of servers, plugins and container runtimes: all, or
/// the children of `started_by`.
pub fn servers(started_by: Option<u32>) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        // `<id> (<name>) <state> <parent> …`
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let Some((head, tail)) = stat.rsplit_once(") ") else {
            continue;
        };
        let name = head.split_once('(').map_or("", |(_, name)| name);
        let parent = tail
            .split(' ')
            .nth(1)
            .and_then(|parent| parent.parse().ok());
        let is_ours = started_by.is_none() || parent == started_by;
        if is_ours && PROGRAMS.contains(&name) {
            found.push(format!("process {head})"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::ip;
    use crate::namespaces::isolated;

    #[test]
    fn leftovers_on_the_machine_are_named() {
        isolated(|host| {
            let before = Machine::read().unwrap();
            assert_eq!(
                before.changes(&Machine::read().unwrap()),
                Vec::<String>::new()
            );
            host.add_pod("forgotten").unwrap();
            ip("link add cali1 type veth peer name cali2").unwrap();
            fs::create_dir_all("/var/lib/calico").unwrap();
            fs::write("/var/lib/calico/nodename", "node1").unwrap();
            let changes = before.changes(&Machine::read().unwrap()).join("\n");
            let named = [
                "+ ip netns list: forgotten",
                "\"cali1\"",
                "/run/netns/forgotten",
                "/var/lib/calico/nodename 5",
            ];
            for left in named {
                assert!(changes.contains(left), "{left} is not in:\n{changes}");
            }
        });
    }
}
