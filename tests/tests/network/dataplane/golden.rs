//! The kernel state of the recordings, reproduced by the dataplane alone.

use std::path::{Path, PathBuf};

use dataplane::{EndpointPlan, HostLinkProof, Teardown, TeardownTarget};
use integration_tests::golden::compare::differences;
use integration_tests::golden::marks::{Bindings, Places};
use integration_tests::golden::recording::{self, Before, Step};
use integration_tests::kernel;
use integration_tests::namespaces::{Host, NETNS_DIR, isolated};

use super::{plan, set_up};

/// Returns the plan of a recorded ADD, or `None` if the step is not a successful ADD of `calico`
/// with addresses.
fn recorded_plan(step: &Step) -> Option<EndpointPlan> {
    let interfaces = step.stdout["interfaces"].as_array()?;
    let addresses = step.stdout["ips"]
        .as_array()?
        .iter()
        .map(|ip| ip["address"].as_str());
    let hosts: Vec<&str> = addresses
        .map(|cidr| cidr?.split('/').next())
        .collect::<Option<_>>()?;
    let number = |key: &str| step.stdin[key].as_u64().and_then(|n| u32::try_from(n).ok());
    (step.exit == 0 && step.prog == "calico" && step.env["CNI_COMMAND"] == "ADD").then(|| {
        EndpointPlan {
            container_ifname: step.env["CNI_IFNAME"].clone(),
            mtu: number("mtu").unwrap_or(0),
            num_queues: number("num_queues").unwrap_or(1),
            allow_ip_forwarding: step.stdin["container_settings"]["allow_ip_forwarding"] == true,
            ..plan(interfaces[0]["name"].as_str().unwrap_or_default(), &hosts)
        }
    })
}

fn pod_name(step: &Step) -> Option<String> {
    let name = Path::new(step.env.get("CNI_NETNS")?)
        .strip_prefix(NETNS_DIR)
        .ok()?;
    Some(name.to_str()?.to_owned())
}

fn carry_out(host: &Host, step: &Step) {
    if let Some(Before::DeleteNetns(name)) = &step.before {
        host.delete_pod(name).unwrap();
    }
    if let Some(pod) = pod_name(step).filter(|_| step.env["CNI_COMMAND"] == "ADD") {
        // The recorder created the network namespace of each ADD, whether or not the ADD succeeded.
        host.ensure_pod(&pod).unwrap();
    }
    if let Some(plan) = recorded_plan(step) {
        set_up(host, &pod_name(step).unwrap(), &plan).unwrap();
    } else if step.prog == "calico" && step.env["CNI_COMMAND"] == "DEL" {
        let target = TeardownTarget {
            netns: Some(PathBuf::from(&step.env["CNI_NETNS"])),
            container_ifname: step.env["CNI_IFNAME"].clone(),
            host_ifname: format!("cali{}", &step.env["CNI_CONTAINERID"][..11]),
            container_id: None,
            proof: HostLinkProof::Name,
        };
        Teardown::start(target).unwrap().finish().unwrap();
    }
}

fn replay(name: &str) {
    isolated(|host| {
        let recording = recording::read("etcd", name).unwrap();
        let mut bindings = Bindings::new(Places::default());
        let mut compared = 0;
        for (index, step) in recording.steps.iter().enumerate() {
            carry_out(host, step);
            let ours = [
                ("host", kernel::host().unwrap()),
                ("pods", kernel::pods(host).unwrap()),
            ];
            for ((side, ours), recorded) in ours.iter().zip([&step.after.host, &step.after.pods]) {
                let found = differences(recorded, ours, &format!("/after/{side}"), &mut bindings);
                assert_eq!(found, [], "{name}, step {index}");
                compared += usize::from(recorded.to_string().contains("cali"));
            }
        }
        assert!(compared > 0, "{name} never had an endpoint");
    });
}

#[test]
fn args_ip() {
    replay("args-ip");
}

#[test]
fn borrow() {
    replay("borrow");
}

#[test]
fn container_settings() {
    replay("container-settings");
}

#[test]
fn dual_stack() {
    replay("dual-stack");
}

#[test]
fn host_local() {
    replay("host-local");
}

#[test]
fn mtu_queues() {
    replay("mtu-queues");
}

#[test]
fn netns_gone() {
    replay("netns-gone");
}

#[test]
fn plain_profile() {
    replay("plain-profile");
}

#[test]
fn v4_add_del() {
    replay("v4-add-del");
}

#[test]
fn v4_two_pods() {
    replay("v4-two-pods");
}

#[test]
fn v6_only() {
    replay("v6-only");
}
