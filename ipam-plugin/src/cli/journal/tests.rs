use clap::Parser;

use super::*;
use crate::cli::testing::Shell;
use dataplane::host_link::{HostLink, HostLinkError, HostLinks};

fn noted(shell: &Shell, container_id: &str, datastore: &str) -> String {
    let directory = shell.dir.path().join("journal");
    let pending_del = PendingDel {
        network: "net1".into(),
        container_id: container_id.into(),
        ifname: "eth0".into(),
        node: "node1".into(),
        datastore: datastore.into(),
        identity: "etcd 1".into(),
        endpoint: ("team".into(), "node1-k8s-web-eth0".into()),
        addresses: vec!["10.0.0.1".parse().unwrap()],
        noted: 1,
        reason: "it is away".into(),
        ..PendingDel::default()
    };
    Journal::new(&directory).record(&pending_del).unwrap();
    directory.display().to_string()
}

#[test]
fn journal_list_shows_each_deferred_del_and_unreadable_entries() {
    let shell = Shell::new();
    let nothing = shell.dir.path().join("none").display().to_string();
    assert_eq!(
        shell.ok(&["journal", "--directory", &nothing]),
        "This node has no deferred DEL\n"
    );
    let directory = noted(&shell, "c1", "etcd http://a:2379");
    std::fs::write(format!("{directory}/x.json"), "{").unwrap();
    let table = shell.ok(&["journal", "--directory", &directory]);
    for text in [
        "c1",
        "pod team/web",
        "etcd http://a:2379",
        "etcd 1",
        "it is away",
        "x.json cannot be read: ",
    ] {
        assert!(table.contains(text), "{text}: {table}");
    }
    let rows = shell.json(&["journal", "--directory", &directory]);
    let rows = rows.as_array().unwrap();
    let pending_del = rows.iter().find(|row| row["container"] == "c1").unwrap();
    assert!(pending_del["ageSeconds"].as_u64().unwrap() > 1_000_000);
    assert_eq!(pending_del["addresses"], serde_json::json!(["10.0.0.1"]));
    assert!(rows.iter().any(|row| row["problem"].is_string()));
}

#[test]
fn adopt_assigns_the_named_deferred_dels_to_the_reachable_datastore() {
    let shell = Shell::new();
    for id in ["c1", "c2", "d1"] {
        noted(&shell, id, "etcd http://a:2379");
    }
    let directory = shell.dir.path().join("journal").display().to_string();
    let owned = || {
        let rows = shell.json(&["journal", "--directory", &directory]);
        let own =
            |row: &&serde_json::Value| row["identity"].as_str().unwrap().starts_with("local ");
        let mut ids: Vec<String> = rows
            .as_array()
            .unwrap()
            .iter()
            .filter(own)
            .map(|row| row["container"].as_str().unwrap().into())
            .collect();
        ids.sort();
        ids
    };
    let ran = shell.run(&["journal", "adopt", "c", "x", "--directory", &directory]);
    assert_eq!(
        ran.outcome.unwrap_err(),
        "the journal has no deferred DEL of a container whose ID begins with x; `calico-ipam \
         journal` lists them"
    );
    assert!(owned().is_empty());
    let output = shell.ok(&["journal", "adopt", "c", "--directory", &directory]);
    assert!(
        output.contains(
            "the deferred DEL of pod team/web (container c1) now belongs to local /x.db (local "
        ),
        "{output}"
    );
    assert_eq!(owned(), ["c1", "c2"]);
    shell.ok(&["journal", "adopt", "--all", "--directory", &directory]);
    assert_eq!(owned(), ["c1", "c2", "d1"]);
}

/// A kernel that has the interface of one pod. The alias of the interface contains this text for
/// the container.
#[derive(Debug)]
struct OneLink(Option<String>);

impl HostLinks for OneLink {
    fn find(&self, name: &str) -> Result<Option<HostLink>, HostLinkError> {
        let link = HostLink {
            container_id: self.0.clone(),
            ..HostLink::default()
        };
        Ok((name == pod_interface("cali", "team", "web")).then_some(link))
    }
}

#[test]
fn adopt_is_rejected_while_the_container_has_an_interface() {
    let shell = Shell::new();
    let directory = noted(&shell, "c1", "etcd http://a:2379");
    let of_container = PendingDel {
        container_id: "c2".into(),
        identity: "etcd 1".into(),
        ..PendingDel::default()
    };
    Journal::new(&directory).record(&of_container).unwrap();
    let run = |containers: &[&str]| {
        let line = [
            &["journal", "adopt"],
            containers,
            &["--directory", &directory],
        ]
        .concat();
        shell.run_with(&line, |app| app.links = &OneLink(None))
    };
    let refused = run(&["c2", "c1"]).outcome.unwrap_err();
    assert!(
        refused.starts_with("container c1 has its interface "),
        "{refused}"
    );
    let listed = shell.ok(&["journal", "--directory", &directory]);
    assert!(!listed.contains("local "), "{listed}");
    let all = run(&["--all"]);
    assert!(
        all.notices.contains("entry unchanged: container c1"),
        "{}",
        all.notices
    );
    assert!(
        all.out
            .contains("(container c2) now belongs to local /x.db"),
        "{}",
        all.out
    );
    assert!(
        all.out.contains("; before:  (etcd 1)") && !all.out.contains("container c1"),
        "{}",
        all.out
    );
}

#[test]
fn adopt_recognizes_the_interface_of_a_container_with_a_long_id() {
    let shell = Shell::new();
    let (own, other) = ("c".repeat(65), "d".repeat(65));
    let directory = noted(&shell, &own, "etcd http://a:2379");
    for (id, is_refused) in [(&own, true), (&other, false)] {
        let alias = InterfaceAlias::for_container(id);
        let links: &OneLink = Box::leak(Box::new(OneLink(Some(alias.container().to_owned()))));
        let line = ["journal", "adopt", "c", "--directory", &directory];
        let outcome = shell.run_with(&line, |app| app.links = links).outcome;
        assert_eq!(outcome.is_err(), is_refused, "{outcome:?}");
    }
}

#[test]
fn adopt_into_a_missing_local_datastore_is_rejected() {
    let shell = Shell::new();
    let directory = noted(&shell, "c1", "etcd http://a:2379");
    let line = ["journal", "adopt", "--all", "--directory", &directory];
    let ran = shell.run_with(&line, |app| app.is_new = true);
    assert!(
        ran.outcome
            .unwrap_err()
            .starts_with("the test's does not exist")
    );
    assert!(
        !shell
            .ok(&["journal", "--directory", &directory])
            .contains("local ")
    );
}

#[test]
fn adopt_into_a_missing_local_datastore_creates_no_file() {
    let shell = Shell::new();
    let directory = noted(&shell, "c1", "etcd http://a:2379");
    let away = tempfile::tempdir().unwrap();
    let path = away.path().join("calico.db").display().to_string();
    let line = [
        "calico-ipam",
        "journal",
        "adopt",
        "c1",
        "--directory",
        &directory,
        "--datastore-path",
        &path,
    ];
    let arguments = crate::cli::Arguments::try_parse_from(line).unwrap();
    let error = crate::cli::run(arguments, &OneLink(None), &mut Vec::new())
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        format!(
            "{path} does not exist, so no deferred DEL can belong to it; name the datastore of the \
             deferred DELs"
        )
    );
    assert_eq!(std::fs::read_dir(away.path()).unwrap().count(), 0);
}

#[test]
fn adopt_of_an_empty_container_id_is_rejected_with_a_hint() {
    let words = ["calico-ipam", "journal", "adopt", ""];
    let error = crate::cli::Arguments::try_parse_from(words)
        .unwrap_err()
        .to_string();
    for text in [
        "'[CONTAINER]...'",
        "an empty ID matches every container",
        "calico-ipam journal",
        "--all",
    ] {
        assert!(error.contains(text), "{text}: {error}");
    }
}

#[test]
fn unreadable_journal_directory_fails_list_and_adopt() {
    let shell = Shell::new();
    let directory = shell.file("journal", "");
    let error = shell.error(&["journal", "--directory", &directory]);
    assert!(
        error.starts_with(&format!("cannot read {directory}: ")),
        "{error}"
    );
    let refused = shell.error(&["journal", "adopt", "--all", "--directory", &directory]);
    assert!(refused.contains(&directory), "{refused}");
}
