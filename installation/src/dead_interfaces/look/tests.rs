//! Looks at a node with a scripted kernel, and repairs with a paused clock.

use std::sync::Mutex;

use libcalico::dead_interface::UseEvidence;

use super::*;
use crate::dead_interfaces::{RepairOutcome, repair_once};
use dataplane::host_network::{HostRoute, Interface, LinkChange, PodLink};

/// A kernel whose namespace 1 contains a process.
#[derive(Debug, Default)]
struct Kernel {
    links: Vec<PodLink>,
    /// The reason why processes may be hidden.
    hidden: Option<String>,
    /// The containers for which a CNI plugin runs.
    calls: BTreeSet<String>,
    removed: Mutex<Vec<String>>,
}

impl Kernel {
    fn with(links: &[(&str, Option<&str>, Peer)]) -> Kernel {
        let link = |&(name, container, peer): &(&str, Option<&str>, Peer)| PodLink {
            name: name.to_owned(),
            index: 7,
            alias: container.map(InterfaceAlias::for_container),
            peer,
        };
        Kernel {
            links: links.iter().map(link).collect(),
            ..Kernel::default()
        }
    }
}

impl HostNetwork for Kernel {
    fn interfaces(&self) -> Result<Vec<Interface>, NetworkError> {
        Ok(Vec::new())
    }

    fn routes(&self) -> Result<Vec<HostRoute>, NetworkError> {
        let interfaces = self.links.iter().map(|link| link.name.clone()).collect();
        Ok(vec![HostRoute {
            destination: "10.65.0.7/32".parse().unwrap(),
            interfaces,
        }])
    }

    fn routes_of_all_tables(&self) -> Result<Vec<HostRoute>, NetworkError> {
        self.routes()
    }

    fn changes_of_pod_link(&self, _: &str, _: &[IpAddr]) -> Result<Vec<LinkChange>, NetworkError> {
        Ok(Vec::new())
    }

    fn remove_pod_interface(&self, _: &str) -> Result<bool, NetworkError> {
        Err(NetworkError(
            "dead interfaces are removed by their index".into(),
        ))
    }

    fn pod_links(&self) -> Result<Vec<PodLink>, NetworkError> {
        Ok(self.links.clone())
    }

    fn inhabited_namespaces(&self) -> Result<Statement<BTreeSet<i32>>, NetworkError> {
        Ok(match &self.hidden {
            Some(reason) => Statement::Unknown(reason.clone()),
            None => Statement::Known(BTreeSet::from([1])),
        })
    }

    fn containers_of_calls(&self) -> Result<Statement<BTreeSet<String>>, NetworkError> {
        Ok(Statement::Known(self.calls.clone()))
    }

    fn remove_dead_link(&self, link: &DeadLink) -> Result<bool, NetworkError> {
        self.removed.lock().unwrap().push(link.name.clone());
        Ok(true)
    }
}

fn no_conf() -> Statement<NetConf> {
    Statement::Unknown("no configuration".into())
}

fn sources<'a>(network: &'a Kernel, conf: &'a Statement<NetConf>) -> Sources<'a> {
    Sources {
        network,
        conf,
        runtime_socket: Some(Path::new("/nowhere/cri.sock")),
    }
}

/// Returns the interfaces with their verdicts.
async fn verdicts(network: &Kernel) -> Vec<(String, LinkVerdict)> {
    let conf = no_conf();
    let found = sources(network, &conf).look().await.unwrap();
    found
        .into_iter()
        .map(|found| (found.link.name, found.verdict))
        .collect()
}

#[tokio::test]
async fn interfaces_with_a_process_need_no_further_source() {
    let network = Kernel::with(&[
        ("cali1", Some("c1"), Peer::Namespace(1)),
        ("cali2", Some("c2"), Peer::SameNamespace),
    ]);
    let expected =
        ["cali1", "cali2"].map(|name| (name.to_owned(), LinkVerdict::InUse(UseEvidence::Process)));
    assert_eq!(verdicts(&network).await, expected);
}

#[tokio::test]
async fn interfaces_without_an_alias_or_our_prefix_are_not_assessed() {
    let network = Kernel::with(&[
        ("cali1", None, Peer::Namespace(2)),
        ("veth1", Some("c1"), Peer::Namespace(2)),
    ]);
    assert_eq!(verdicts(&network).await, Vec::new());
}

/// The ADD of a pod may wait for its policy longer than the time between two looks.
/// Shows SEC-33 and SEC-43.
#[tokio::test]
async fn interface_whose_add_is_running_is_in_use_before_the_runtime_lists_its_sandbox() {
    let links = [
        ("cali1", Some("c1"), Peer::Namespace(2)),
        ("cali2", Some("c2"), Peer::Namespace(3)),
    ];
    let network = Kernel {
        calls: BTreeSet::from(["c1".to_owned()]),
        ..Kernel::with(&links)
    };
    let found = verdicts(&network).await;
    assert_eq!(
        found[0],
        ("cali1".to_owned(), LinkVerdict::InUse(UseEvidence::Call))
    );
    assert!(matches!(&found[1].1, LinkVerdict::Unknown(_)), "{found:?}");
}

#[tokio::test]
async fn missing_runtime_or_hidden_processes_leave_the_use_unknown() {
    let mut network = Kernel::with(&[("cali1", Some("c1"), Peer::Namespace(2))]);
    let found = verdicts(&network).await;
    let [(_, LinkVerdict::Unknown(reason))] = &found[..] else {
        panic!("{found:?}")
    };
    assert!(
        reason.starts_with("container runtime /nowhere/cri.sock: "),
        "{reason}"
    );
    network.hidden = Some("no right".into());
    assert_eq!(
        verdicts(&network).await,
        [("cali1".to_owned(), LinkVerdict::Unknown("no right".into()))]
    );
}

#[tokio::test(start_paused = true)]
async fn repair_without_the_runtime_removes_no_interface() {
    let network = Kernel::with(&[
        ("cali1", Some("c1"), Peer::Namespace(1)),
        ("cali2", Some("c2"), Peer::Namespace(2)),
        ("cali3", Some("c3"), Peer::Unknown),
    ]);
    let conf = no_conf();
    let repaired = repair_once(sources(&network, &conf), |count| {
        panic!("{count} dead interfaces")
    })
    .await;
    let repairs = repaired.unwrap();
    let names: Vec<&str> = repairs
        .iter()
        .map(|repair| repair.interface.as_str())
        .collect();
    assert_eq!(names, ["cali2", "cali3"]);
    assert!(
        repairs
            .iter()
            .all(|repair| matches!(repair.outcome, RepairOutcome::Kept(_))),
        "{repairs:?}"
    );
    assert_eq!(
        repairs[0].addresses,
        ["10.65.0.7".parse::<IpAddr>().unwrap()]
    );
    assert_eq!(*network.removed.lock().unwrap(), Vec::<String>::new());
}

#[test]
fn own_process_is_visible_and_a_process_of_another_namespace_is_not() {
    assert!(is_visible(i32::try_from(std::process::id()).unwrap()));
    assert!(!is_visible(0) && !is_visible(-1) && !is_visible(i32::MAX));
}

fn conf(datastore: &str, has_no_ipam: bool) -> NetConf {
    let text = format!(
        r#"{{"name":"n","type":"calico","datastore_type":"{datastore}","etcd_endpoints":"http://127.0.0.1:2379",
        "feature_control":{{"ip_addrs_no_ipam":{has_no_ipam}}}}}"#
    );
    NetConf::parse(text.as_bytes()).unwrap()
}

/// The allocation of a migration's target has the handle of the virtual machine, and no host route
/// leads to the target. Shows SEC-43.
#[test]
fn interface_without_a_named_pod_has_to_be_dead_for_ten_minutes() {
    let with_named_pod = BTreeSet::from(["cali1".to_owned()]);
    let (named, unnamed) = (
        FoundEndpoints {
            with_named_pod,
            ..FoundEndpoints::default()
        },
        FoundEndpoints::default(),
    );
    let minutes =
        |datastore, found| confirmation(&conf(datastore, false), found, "cali1").as_secs() / 60;
    assert_eq!(
        [
            minutes("kubernetes", &unnamed),
            minutes("kubernetes", &named),
            minutes("etcdv3", &unnamed)
        ],
        [10, 1, 1]
    );
}

/// A pod may exist although no allocation names it.
#[test]
fn missing_endpoint_is_evidence_only_if_ipam_would_name_the_pod() {
    let long_id = "1".repeat(65);
    let interfaces = || BTreeSet::from(["cali1".to_owned()]);
    let (named, unnamed) = (
        FoundEndpoints {
            with_named_pod: interfaces(),
            ..FoundEndpoints::default()
        },
        FoundEndpoints::default(),
    );
    for (datastore, has_no_ipam, found, container, is_evidence) in [
        ("kubernetes", false, &unnamed, "c1", true),
        ("kubernetes", false, &unnamed, long_id.as_str(), false),
        ("kubernetes", true, &unnamed, "c1", false),
        ("kubernetes", true, &named, long_id.as_str(), true),
        ("etcdv3", true, &unnamed, long_id.as_str(), true),
    ] {
        let alias = InterfaceAlias::for_container(container);
        let link = DeadLink {
            name: "cali1".to_owned(),
            index: 7,
            alias,
        };
        let evidence = endpoint_evidence(&conf(datastore, has_no_ipam), found, &link);
        let context =
            format!("{datastore}, ip_addrs_no_ipam: {has_no_ipam}, {container}: {evidence:?}");
        assert_eq!(
            evidence == Statement::Known(false),
            is_evidence,
            "{context}"
        );
        assert_eq!(
            matches!(evidence, Statement::Unknown(_)),
            !is_evidence,
            "{context}"
        );
        let by_interface = interfaces()
            .into_iter()
            .map(|name| (name, Vec::new()))
            .collect();
        let existing = FoundEndpoints {
            by_interface,
            ..FoundEndpoints::default()
        };
        assert_eq!(
            endpoint_evidence(&conf(datastore, has_no_ipam), &existing, &link),
            Statement::Known(true)
        );
    }
}
