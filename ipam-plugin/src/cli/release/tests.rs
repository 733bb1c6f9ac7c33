mod blocks;
mod reports;

use libcalico::api::{ClusterInformationSpec, ObjectKey};
use libcalico::ipam::report::{ReportedCluster, ReportedProblems, build, intersect};
use libcalico::ipam::{Handle, HandleId, Lookup};
use libcalico::kubernetes::Pod;
use node_process::process::block_on;
use serde_json::json;
use time::{Duration, OffsetDateTime};

use super::plan::steps_for_addresses;
use super::step::{ReleaseStep, StepVerdict};
use crate::cli::cluster_read::ClusterRead;
use crate::cli::services_api::ServicesApi;
use crate::cli::testing::Shell;

/// Writes a report of the present inconsistencies and returns its path.
fn report(shell: &Shell) -> String {
    report_to(shell, "report.json")
}

fn read(shell: &Shell) -> ClusterRead {
    block_on(ClusterRead::read(&shell.store, &ServicesApi::NotConfigured)).unwrap()
}

/// Returns the problems in a report of the cluster.
fn problems(cluster: &ClusterRead) -> ReportedProblems {
    let findings = cluster.audit(Duration::ZERO);
    let information = ClusterInformationSpec::default();
    let reported = ReportedCluster {
        version: VERSION,
        information: &information,
        revision: "1",
    };
    intersect([&cluster.with_inventory(Duration::ZERO, |inventory| {
        build(&reported, inventory, &findings)
    })])
}

const VERSION: &str = "v3.33.0";

fn is_held(shell: &Shell, address: &str) -> bool {
    shell.json(&["show", "--ip", address])["state"] == "inUse"
}

fn handle(shell: &Shell, id: &str) -> Option<Handle> {
    shell.stored::<Handle>(&HandleId::new(id))
}

#[test]
fn release_of_a_leaked_address_deletes_its_handle() {
    let shell = Shell::with_pool();
    let (leaked, kept) = (shell.allocate("a"), shell.allocate("b"));
    let output = shell.ok(&["release", &leaked]);
    assert!(
        output.starts_with(&format!("{leaked}: released: handle a, node node1, ")),
        "{output}"
    );
    assert!(!is_held(&shell, &leaked) && is_held(&shell, &kept));
    assert_eq!(
        (handle(&shell, "a"), handle(&shell, "b").is_some()),
        (None, true)
    );
    assert_eq!(
        shell.ok(&["release", &leaked]),
        format!("{leaked}: left alone: it is not in use\n")
    );
    assert_eq!(
        shell.ok(&["release", "10.9.9.9"]),
        "10.9.9.9: left alone: it is not in use\n"
    );
}

#[test]
fn release_of_an_address_in_use_requires_force() {
    let shell = Shell::with_pool();
    let used = shell.allocate("a");
    shell.endpoint("web", &used);
    let young = shell.allocate_at("b", OffsetDateTime::now_utc());
    for (address, reason) in [
        (&used, "endpoint default/web on node node1 has it"),
        (&young, "it was allocated moments ago"),
    ] {
        let output = shell.wrong(&["release", address]);
        assert!(
            output.contains(reason) && output.contains("--force"),
            "{output}"
        );
        assert!(is_held(&shell, address));
        shell.ok(&["release", address, "--force"]);
        assert!(!is_held(&shell, address));
    }
}

/// On Kubernetes, annotations do not free an address that the pod still reports, or has yet to
/// report.
#[test]
fn release_of_an_address_that_its_pod_may_have_is_rejected() {
    let shell = Shell::with_pool();
    let address = shell.allocate("web");
    let pod = |status: serde_json::Value| -> Pod {
        let metadata = json!({
            "name": "web", "namespace": "default", "deletionTimestamp": "2026-11-21T21:00:00Z",
            "annotations": {"cni.projectcalico.org/podIP": "", "cni.projectcalico.org/podIPs": ""},
        });
        serde_json::from_value(
            json!({"metadata": metadata, "spec": {"nodeName": "node1"}, "status": status}),
        )
        .unwrap()
    };
    let status =
        |phase: &str, ip: &str| pod(json!({"phase": phase, "podIP": ip, "podIPs": [{"ip": ip}]}));
    let mut cluster = read(&shell);
    for (pod, refusal) in [
        (
            Lookup::Present(status("Running", &address)),
            Some("its pod has the address"),
        ),
        (
            Lookup::Present(pod(json!({"phase": "Pending"}))),
            Some("its pod has reported no address yet"),
        ),
        (Lookup::Unknown, Some("its owner cannot be looked up")),
        (Lookup::Present(status("Running", "10.9.9.9")), None),
        (Lookup::Present(status("Succeeded", &address)), None),
    ] {
        cluster.pods = [(ObjectKey::namespaced("default", "web"), pod)].into();
        let steps = steps_for_addresses(&[address.parse().unwrap()], &cluster, false);
        match (&steps[..], refusal) {
            (
                [
                    ReleaseStep {
                        verdict: StepVerdict::Refuse(why),
                        ..
                    },
                ],
                Some(refusal),
            ) => {
                assert!(why.starts_with(refusal), "{why}")
            }
            (
                [
                    ReleaseStep {
                        verdict: StepVerdict::Do(_),
                        ..
                    },
                ],
                None,
            ) => {}
            _ => panic!("{refusal:?}: {steps:?}"),
        }
    }
}

#[test]
fn release_of_a_tunnel_address_is_rejected() {
    let shell = Shell::with_pool();
    let address = shell.allocate_tunnel("ipip-tunnel-addr-node1");
    let output = shell.wrong(&["release", &address]);
    assert!(output.contains("kept for a tunnel"), "{output}");
    assert!(is_held(&shell, &address));
}

#[test]
fn release_dry_run_changes_no_data() {
    let shell = Shell::with_pool();
    let leaked = shell.allocate("a");
    let before = shell.ok(&["export"]);
    let output = shell.ok(&["release", "--dry-run", &leaked]);
    assert!(
        output.starts_with(&format!("{leaked}: would be: released, handle a")),
        "{output}"
    );
    shell.ok(&["release", "--dry-run", "--from-report", &report(&shell)]);
    assert_eq!(shell.ok(&["export"]), before);
}

fn report_to(shell: &Shell, name: &str) -> String {
    let file = shell.dir.path().join(name);
    let file = file.to_str().unwrap().to_owned();
    shell.wrong(&[
        "check",
        "--settle",
        "0",
        "--report",
        &file,
        "--report-version",
        VERSION,
    ]);
    file
}

/// `read` has all objects, so its verdict is the right one.
#[test]
fn read_for_one_address_has_its_block_and_endpoints_alone_and_leads_to_the_same_step() {
    let shell = Shell::with_pool();
    let container = "c".repeat(64);
    let cases = [
        ("leaked", shell.allocate("leaked")),
        ("used by its pod", shell.allocate("web")),
        ("used by another pod", shell.allocate("a")),
        (
            "allocated moments ago",
            shell.allocate_at("b", OffsetDateTime::now_utc()),
        ),
        (
            "of a tunnel",
            shell.allocate_tunnel("vxlan-tunnel-addr-node1"),
        ),
        (
            "of the second interface of a container",
            shell.allocate(&format!("net2.{container}")),
        ),
        ("free", "10.0.0.200".to_owned()),
        ("in no pool", "192.0.2.1".to_owned()),
    ];
    shell.endpoint("web", &cases[1].1);
    shell.endpoint("other", &cases[2].1);
    // The addresses of these pods are in other blocks.
    let others: Vec<String> = (0..20)
        .map(|n| shell.allocate(&format!("net.{n}")))
        .collect();
    others
        .iter()
        .enumerate()
        .for_each(|(n, address)| shell.endpoint(&format!("pod-{n}"), address));
    let first = shell.allocate(&format!("net1.{container}"));
    shell.put(
        "/calico/resources/v3/projectcalico.org/workloadendpoints/default/node1-k8s-two-eth0",
        &json!({
            "metadata": {"name": "node1-k8s-two-eth0", "namespace": "default"},
            "spec": {
                "node": "node1", "pod": "two", "containerID": container,
                "ipNetworks": [format!("{first}/32")],
            },
        })
        .to_string(),
    );
    for (case, address) in &cases {
        let addresses = [address.parse().unwrap()];
        let of_one = block_on(ClusterRead::read_for(
            &shell.store,
            &ServicesApi::NotConfigured,
            &addresses,
        ))
        .unwrap();
        let steps = |cluster: &ClusterRead| steps_for_addresses(&addresses, cluster, false);
        assert_eq!(steps(&of_one), steps(&read(&shell)), "{case}");
        assert!(
            of_one.handles.is_empty() && of_one.endpoints.len() <= 1,
            "{case}: {:?}",
            of_one.endpoints
        );
        // The container of the second interface has another address, whose block counts too.
        let blocks = if case.starts_with("of the second") {
            2
        } else {
            1
        };
        assert!(
            of_one.blocks.len() <= blocks,
            "{case}: {}",
            of_one.blocks.len()
        );
    }
    assert!(read(&shell).blocks.len() > 3);
}
