use std::fs::File;
use std::path::PathBuf;

use allocation::journal::DatastoreIdentity;
use tempfile::TempDir;

use super::*;
use crate::uninstall::plan::FoundFile;
use installation::found::FoundState;

const GROUP: &str = "api-group.json";

struct Node {
    _root: TempDir,
    layout: Layout,
}

impl Node {
    fn new() -> Node {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::below(root.path());
        let node = Node {
            _root: root,
            layout,
        };
        fs::create_dir_all(node.journal()).unwrap();
        fs::write(node.group(), "{}").unwrap();
        node
    }

    fn journal(&self) -> PathBuf {
        self.layout.journal_dir()
    }

    fn group(&self) -> PathBuf {
        self.layout.state_dir().join(GROUP)
    }

    /// Calls `remove` for programs with these verdicts, of which those in `recorded` still
    /// exist.
    fn remove(
        &self,
        verdicts: &[(DirectoryRole, Verdict)],
        recorded: &[DirectoryRole],
        acts: bool,
    ) -> String {
        let task = |(place, verdict): &(DirectoryRole, Verdict)| RemovalTask {
            file: FoundFile {
                place: *place,
                name: "calico".into(),
                path: "/x/calico".into(),
                state: FoundState::Same,
                replaced: false,
            },
            verdict: verdict.clone(),
        };
        let tasks: Vec<RemovalTask> = verdicts.iter().map(task).collect();
        let mut state = State::default();
        recorded
            .iter()
            .for_each(|place| state.record(*place, "calico", None, false));
        let mut report = UninstallReport {
            acted: acts,
            ..UninstallReport::default()
        };
        remove(&tasks, &state, &self.layout, acts, &mut report);
        report.to_string()
    }

    fn removed(&self) -> String {
        self.remove(&[(DirectoryRole::Bin, Verdict::Remove)], &[], true)
    }
}

#[test]
fn plugin_state_is_removed_with_the_program_and_a_dry_run_only_reports() {
    let node = Node::new();
    let output = node.remove(
        &[(DirectoryRole::Bin, Verdict::Remove)],
        &[DirectoryRole::Bin],
        false,
    );
    assert!(
        output.contains(&format!("would remove {}\n", node.journal().display())),
        "{output}"
    );
    assert!(node.group().exists() && fs::read_dir(node.journal()).unwrap().next().is_none());
    let output = node.removed();
    assert!(
        output.contains(&format!("removed {}\n", node.journal().display())),
        "{output}"
    );
    assert!(!node.group().exists() && !node.journal().exists());
}

#[test]
fn plugin_state_stays_if_a_program_stays_or_fails_to_be_removed() {
    use DirectoryRole::{Bin, Net, SecondaryBin};
    let leave = || Verdict::Keep("changed".into());
    for (verdicts, recorded) in [
        (vec![(Bin, Verdict::Remove)], vec![Bin]),
        (vec![(Bin, leave())], vec![Bin]),
        (
            vec![(Bin, Verdict::Remove), (SecondaryBin, leave())],
            vec![SecondaryBin],
        ),
        (
            vec![(Bin, Verdict::Remove), (SecondaryBin, Verdict::Remove)],
            vec![SecondaryBin],
        ),
        (vec![(Bin, Verdict::Missing)], vec![]),
        (vec![(Net, Verdict::Remove)], vec![]),
    ] {
        let node = Node::new();
        assert_eq!(node.remove(&verdicts, &recorded, true), "", "{verdicts:?}");
        assert!(
            node.group().exists() && node.journal().exists(),
            "{verdicts:?}"
        );
    }
    let node = Node::new();
    node.remove(
        &[(Bin, Verdict::Remove), (SecondaryBin, Verdict::Missing)],
        &[],
        true,
    );
    assert!(!node.group().exists() && !node.journal().exists());
}

#[test]
fn locked_journal_is_not_removed() {
    let node = Node::new();
    let lock = File::create(node.layout.journal_lock()).unwrap();
    lock.lock().unwrap();
    let output = node.removed();
    assert!(
        output.contains("cni-journal: another process holds the journal's lock"),
        "{output}"
    );
    assert!(node.layout.journal_lock().exists());
    // A closed file may stay locked: a process that another test starts may have the file open.
    lock.unlock().unwrap();
    node.removed();
    assert!(!node.journal().exists());
}

#[test]
fn recorded_datastore_identities_are_removed_with_the_journal() {
    let node = Node::new();
    let journal = Journal::new(node.layout.journal_dir());
    let datastore = DatastoreIdentity {
        name: "etcd a".into(),
        identity: "etcd 1".into(),
    };
    journal
        .try_lock()
        .unwrap()
        .unwrap()
        .record_identity(&datastore)
        .unwrap();
    let output = node.removed();
    assert!(!node.journal().exists(), "{output}");
}

#[test]
fn journal_with_deferred_dels_or_foreign_files_is_not_removed() {
    for (name, reason) in [
        ("a.json", "1 deferred DELs have not released"),
        ("theirs", "it contains other files"),
    ] {
        let node = Node::new();
        fs::write(node.journal().join(name), "{}").unwrap();
        let output = node.removed();
        assert!(output.contains(reason), "{output}");
        assert!(node.journal().join(name).exists());
    }
    let node = Node::new();
    fs::remove_dir(node.journal()).unwrap();
    fs::write(node.journal(), "").unwrap();
    let output = node.removed();
    assert!(
        output.contains("cannot open lock file") && !output.contains("FAILED"),
        "{output}"
    );
}

#[test]
fn journal_of_a_datastore_file_is_reported_without_kube_controllers() {
    for (datastore, is_collected) in [
        ("local /var/lib/calico/calico.db", false),
        ("etcd http://a:1", true),
    ] {
        let node = Node::new();
        let (network, container_id, ifname) = ("net".into(), "c".into(), "eth0".into());
        let pending_del = PendingDel {
            network,
            container_id,
            ifname,
            datastore: datastore.into(),
            ..PendingDel::default()
        };
        Journal::new(node.journal()).record(&pending_del).unwrap();
        let output = node.removed();
        assert!(
            output.contains("1 deferred DELs have not released their addresses: "),
            "{output}"
        );
        assert_eq!(
            output.contains("kube-controllers"),
            is_collected,
            "{output}"
        );
    }
}

#[test]
fn reported_files_are_not_reported_again_as_unowned() {
    let root = tempfile::tempdir().unwrap();
    let layout = Layout::below(root.path());
    let run = layout.run_dir();
    fs::create_dir_all(layout.state_dir()).unwrap();
    fs::create_dir_all(&run).unwrap();
    for name in [
        "calico.db",
        "calico.db-wal",
        "mtu",
        "nodename",
        "theirs",
        state::NAME,
    ] {
        fs::write(layout.state_dir().join(name), "").unwrap();
    }
    fs::write(run.join("ipam.lock"), "").unwrap();
    let mut report = UninstallReport::default();
    report.add_success("remove", layout.state_dir().join("mtu").display());
    report_unowned(&layout, false, &mut report);
    let name_of = |target: &str| target.rsplit('/').next().unwrap().to_owned();
    let left: Vec<_> = report
        .remaining
        .iter()
        .map(|left| (name_of(&left.target), left.reason.as_str()))
        .collect();
    let database = "it is the datastore of this node: pools, addresses, endpoints";
    let expected = [
        ("calico.db", database),
        ("calico.db-wal", database),
        (
            "nodename",
            "calico-node uses it, too; IPAM would treat another name as another node",
        ),
        ("theirs", "the installer did not write it"),
        (
            "ipam.lock",
            "plugins and calico-node share it; a reboot removes it",
        ),
    ];
    assert_eq!(
        left,
        expected.map(|(name, reason)| (name.to_owned(), reason))
    );
    fs::write(run.join("10-calico.conflist.unreadable"), "").unwrap();
    fs::write(
        run.join("10-calico.conflist.cilium_bak"),
        r#"{"type": "calico"}"#,
    )
    .unwrap();
    fs::write(
        run.join("10-flannel.conflist.cilium_bak"),
        r#"{"type": "flannel"}"#,
    )
    .unwrap();
    report_backups(&run, &mut report);
    let targets: Vec<&str> = report
        .remaining
        .iter()
        .map(|remaining| remaining.target.as_str())
        .collect();
    let ends = [
        "10-calico.conflist.cilium_bak",
        "10-calico.conflist.unreadable",
    ];
    assert!(
        targets[targets.len() - 2..]
            .iter()
            .zip(ends)
            .all(|(target, end)| target.ends_with(end)),
        "{targets:?}"
    );
    report_unowned(&layout, true, &mut report);
    assert!(report.mentions(&layout.state_dir().join(state::NAME).display().to_string()));
}
