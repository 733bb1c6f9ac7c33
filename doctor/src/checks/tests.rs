mod cluster;
mod configuration;
mod connections;
mod credentials;
mod leftovers;
mod node;
mod programs;
mod proxies;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use super::*;
use crate::report::Severity;
use crate::role::Permission;
use crate::snapshot::*;
use dataplane::host_network::Interface;
use installation::template;
use installation::token::Claims;
use libcalico::net::IpVersion;
use netconf::conf::DatastoreType;

const NOW: i64 = 1_700_000_000;

impl Default for NodeSnapshot {
    fn default() -> Self {
        NodeSnapshot {
            now: 0,
            net_dir: PathBuf::new(),
            unwritable: Vec::new(),
            candidates: Ok(Vec::new()),
            selected: None,
            delegate: None,
            programs: Vec::new(),
            version: String::new(),
            records: Ok(()),
            former: Vec::new(),
            token: None,
            node: None,
            cluster: None,
            configured_mtu: None,
            mtu_file: Ok(None),
            mtu_file_required: false,
            uplinks: Ok(Vec::new()),
            default_routes: Ok(DefaultRoutes::default()),
            managers: Vec::new(),
            settings: Vec::new(),
            journal: Ok(Vec::new()),
            locks: Vec::new(),
            cache: Ok(None),
            recent_busy: BusyAddresses::new(),
            proxies: Vec::new(),
        }
    }
}

fn good() -> NodeSnapshot {
    let speaks = |name: &str| RequiredProgram {
        name: name.into(),
        cni_version: "1.0.0".into(),
        state: ProgramState::Supports(
            PathBuf::from("/opt/cni/bin").join(name),
            vec!["0.3.1".into(), "1.0.0".into()],
        ),
        origin: ProgramOrigin::Installed,
        version: name.starts_with("calico").then(|| "v1".into()),
    };
    let content = Content {
        network: "k8s-pod-network".into(),
        plugins: vec!["calico".into(), "portmap".into()],
        cni_version: "1.0.0".into(),
        ..Content::default()
    };
    let claims = Claims {
        exp: NOW + 80_000,
        iat: NOW - 6_400,
        sub: "system:serviceaccount:a:b".into(),
        ..Claims::default()
    };
    let both = BTreeSet::from([IpVersion::V4, IpVersion::V6]);
    let permission = |group: &str, resource: &str| PermissionCheck {
        permission: Permission {
            group: group.into(),
            resource: resource.into(),
            verb: "get".into(),
        },
        is_allowed: Ok(true),
    };
    NodeSnapshot {
        now: NOW,
        net_dir: "/etc/cni/net.d".into(),
        unwritable: Vec::new(),
        candidates: Ok(vec!["10-calico.conflist".into()]),
        selected: Some(SelectedConfig {
            name: "10-calico.conflist".into(),
            content: Ok(content),
        }),
        delegate: None,
        version: "v1".into(),
        records: Ok(()),
        former: Vec::new(),
        programs: ["calico", "portmap", "calico-ipam", "loopback"]
            .map(speaks)
            .into(),
        token: Some(TokenFile {
            path: "/etc/cni/net.d/calico-kubeconfig".into(),
            file: Ok(KubeconfigFile {
                mode: 0o600,
                accepts_any_certificate: false,
                claims: Some(claims),
            }),
        }),
        node: Some(NodeName {
            name: Ok("node1".into()),
            configured: "node1".into(),
            path: "/var/lib/calico/nodename".into(),
            written: Ok(Some("node1".into())),
            optional: false,
        }),
        cluster: Some(Cluster {
            kind: DatastoreType::Kubernetes,
            address: "https://10.96.0.1:443".into(),
            tls: Vec::new(),
            api: Some(ApiServer {
                address: "https://10.96.0.1:443".into(),
                reached: Ok(()),
                rejection: None,
                permissions: vec![
                    permission("", "pods"),
                    permission("kubevirt.io", "virtualmachines"),
                ],
            }),
            reached: Ok(DatastoreAnswers {
                latency: Duration::from_millis(7),
                silent_members: Vec::new(),
                etcd_permissions: Vec::new(),
                interfaces: Ok(vec![pod_interface(
                    "cali1",
                    &["10.65.0.1"],
                    Some(&["10.65.0.1", "fd65::1"]),
                )]),
                ready: Ok(Readiness::Ready),
                pools: Ok(vec![pool("default", "10.65.0.0/16", true)]),
                blocks: Ok(BlockCount {
                    confirmed: 2,
                    pending: 0,
                }),
                busy: Ok(BusyAddresses::new()),
                node_exists: Some(Ok(true)),
            }),
        }),
        configured_mtu: Some(1450),
        mtu_file: Ok(None),
        mtu_file_required: false,
        uplinks: Ok(vec![Interface {
            name: "eth0".into(),
            mtu: 1500,
            is_pod_interface: false,
        }]),
        default_routes: Ok(DefaultRoutes {
            main: both.clone(),
            any: both,
        }),
        managers: Vec::new(),
        settings: vec![
            setting(FORWARD, "1"),
            setting(FORWARD_IPV6, "0"),
            setting(REVERSE_PATH, "1"),
        ],
        journal: Ok(Vec::new()),
        locks: vec![Lock {
            name: "IPAM lock",
            path: "/var/run/calico/ipam.lock".into(),
            holder: Ok(None),
        }],
        cache: Ok(Some(Cache {
            directory: "/var/lib/cni/results".into(),
            results: 1,
            stale: Vec::new(),
        })),
        recent_busy: BusyAddresses::new(),
        proxies: Vec::new(),
    }
}

fn pod_interface(name: &str, addresses: &[&str], endpoint: Option<&[&str]>) -> PodInterface {
    let parsed = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    PodInterface {
        name: name.into(),
        addresses: parsed(addresses),
        endpoint: endpoint.map(parsed),
        ..PodInterface::default()
    }
}

/// Moves the node's data to etcd, beside the API server.
fn on_etcd(snapshot: &mut NodeSnapshot) -> &mut Cluster {
    let file = |setting, path: &str| TlsFile {
        setting,
        path: path.into(),
        mode: Ok(0o600),
    };
    let permission_check = |resource: &str| PermissionCheck {
        permission: Permission {
            group: String::new(),
            resource: resource.into(),
            verb: "write".into(),
        },
        is_allowed: Ok(true),
    };
    let cluster = cluster(snapshot);
    cluster.kind = DatastoreType::Etcdv3;
    cluster.tls = vec![
        file("etcd_ca_cert_file", "/x/etcd-ca"),
        file("etcd_key_file", "/x/etcd-key"),
    ];
    answers(cluster).etcd_permissions = vec![
        permission_check("IPAMBlock"),
        permission_check("IPAMHandle"),
    ];
    cluster
}

fn pool(name: &str, cidr: &str, serves_pods: bool) -> Pool {
    Pool {
        name: name.into(),
        cidr: cidr.into(),
        serves_pods,
        selects_node: Ok(true),
        overhead: 0,
    }
}

fn setting(name: &'static str, value: &str) -> (&'static str, Option<String>) {
    (name, Some(value.into()))
}

/// Changes a good snapshot, and returns the findings that are not OK, as `state name: observation`.
fn wrong(change: impl FnOnce(&mut NodeSnapshot)) -> Vec<String> {
    let mut snapshot = good();
    change(&mut snapshot);
    let findings = run_all(&snapshot)
        .into_iter()
        .filter(|finding| finding.state != Severity::Ok);
    let problems = findings.inspect(|finding| {
        assert_eq!(
            finding.remedy.is_empty(),
            finding.state == Severity::Skipped,
            "{finding:?}"
        );
    });
    problems
        .map(|finding| {
            format!(
                "{} {}: {}",
                finding.state, finding.name, finding.observation
            )
        })
        .collect()
}

/// Asserts that a good snapshot has exactly one finding that is not OK after `change`, which begins
/// with `begins`.
#[track_caller]
fn only(begins: &str, change: impl FnOnce(&mut NodeSnapshot)) {
    let found = wrong(change);
    assert!(
        found.len() == 1 && found[0].starts_with(begins),
        "{begins}\n{found:#?}"
    );
}

fn content(snapshot: &mut NodeSnapshot) -> &mut Content {
    snapshot
        .selected
        .as_mut()
        .unwrap()
        .content
        .as_mut()
        .unwrap()
}

fn cluster(snapshot: &mut NodeSnapshot) -> &mut Cluster {
    snapshot.cluster.as_mut().unwrap()
}

fn api(cluster: &mut Cluster) -> &mut ApiServer {
    cluster.api.as_mut().unwrap()
}

fn answers(cluster: &mut Cluster) -> &mut DatastoreAnswers {
    cluster.reached.as_mut().unwrap()
}

fn node(snapshot: &mut NodeSnapshot) -> &mut NodeName {
    snapshot.node.as_mut().unwrap()
}

#[test]
fn empty_node_has_a_failure_and_skipped_checks() {
    let states: Vec<Severity> = run_all(&NodeSnapshot::default())
        .iter()
        .map(|finding| finding.state)
        .collect();
    let skipped = [Severity::Skipped; 3];
    assert_eq!(
        states,
        [
            &[Severity::Fail][..],
            &skipped,
            &[Severity::Ok, Severity::Ok]
        ]
        .concat()
    );
}

#[test]
fn healthy_node_has_no_findings_in_any_check() {
    assert_eq!(wrong(|_| {}), Vec::<String>::new());
    let names: Vec<String> = run_all(&good())
        .into_iter()
        .map(|finding| finding.name)
        .collect();
    assert_eq!(
        names,
        [
            "configuration",
            "program calico",
            "program portmap",
            "program calico-ipam",
            "program loopback",
            "nodename",
            "kubeconfig",
            "token",
            "datastore",
            "permissions",
            "node object",
            "cluster information",
            "pools",
            "blocks",
            "MTU",
            "kernel settings",
            "default route",
            "journal",
            "IPAM lock",
            "libcni cache",
            "interfaces of pods",
            "busy addresses",
        ]
    );
    let mut snapshot = good();
    on_etcd(&mut snapshot);
    let names: Vec<String> = run_all(&snapshot)
        .into_iter()
        .map(|finding| finding.name)
        .collect();
    assert_eq!(
        names[8..13],
        [
            "TLS files",
            "datastore",
            "etcd permissions",
            "API server",
            "permissions"
        ]
    );
    let nothing = wrong(|snapshot| {
        on_etcd(snapshot);
    });
    assert_eq!(nothing, Vec::<String>::new());
}
