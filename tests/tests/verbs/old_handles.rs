//! Handles of Calico before v3, `<namespace>.<pod>` or a container ID. The creator of a container
//! chooses these names, so such a handle may be equal to another owner's.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use integration_tests::accounts::Accounts;
use integration_tests::cluster::{Cluster, handle, on};
use integration_tests::content::{Content, NETWORK, container_id};
use integration_tests::journal::journal_entries;
use serde_json::{Value, json};

const HANDLES: &str = "/calico/ipam/v2/handle/";
const BLOCK: &str = "/calico/ipam/v2/assignment/ipv4/block/";

/// A container whose old handle is equal to another owner's handle.
struct Namesake {
    container_id: String,
    args: String,
}

impl Namesake {
    fn pod(number: usize, namespace: &str, name: &str) -> Namesake {
        let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name}");
        Namesake {
            container_id: container_id(90 + number),
            args,
        }
    }

    fn container(id: &str) -> Namesake {
        Namesake {
            container_id: id.into(),
            args: String::new(),
        }
    }

    /// Runs DEL for the container, whose sandbox no longer exists.
    fn delete(&self, cluster: &Cluster<'_>, conf: &Value) {
        let call = cluster
            .plugins
            .verb("calico", "DEL", &self.container_id, Path::new(""), conf);
        call.env("CNI_ARGS", &self.args).run().success();
    }
}

fn conf(cluster: &Cluster<'_>) -> Value {
    cluster.conf("node1", json!({ "cniVersion": "1.1.0" }))
}

/// Allocates an IPv4 address to the handle `holder`, with these attributes.
fn held_by(cluster: &Cluster<'_>, number: usize, holder: &str, attributes: &Value) {
    let pod = cluster.pod(number);
    cluster.add(&pod, &conf(cluster));
    let (from, content) = (handle(&pod), cluster.store.dump().unwrap());
    for (key, mut block) in content
        .iter()
        .filter(|(key, _)| key.starts_with(BLOCK))
        .map(|(k, v)| (k, v.clone()))
    {
        let attribute = block["attributes"]
            .as_array_mut()
            .unwrap()
            .iter_mut()
            .find(|a| a["handle_id"] == from.as_str());
        *attribute.unwrap() = match attributes {
            Value::Null => json!({ "handle_id": holder }),
            _ => json!({ "handle_id": holder, "secondary": attributes }),
        };
        cluster.store.put(key, &block).unwrap();
    }
    cluster
        .store
        .put(
            &format!("{HANDLES}{holder}"),
            &content[&format!("{HANDLES}{from}")],
        )
        .unwrap();
    cluster.store.delete(&format!("{HANDLES}{from}")).unwrap();
}

/// Returns the addresses in blocks and the counts of handles.
fn addresses(cluster: &Cluster<'_>) -> (BTreeMap<IpAddr, String>, BTreeMap<(String, String), u64>) {
    let Accounts { held, counted, .. } = cluster.accounts();
    (held, counted)
}

/// Creates addresses of other owners, and returns containers whose old handles are equal to the
/// owners' handles.
fn others(cluster: &Cluster<'_>) -> Vec<Namesake> {
    cluster.load(&Content::dual_stack());
    let machine = json!({
        "node": "node1", "namespace": "prod", "pod": "virt-launcher-db-x", "vmi-name": "db",
    });
    let plain = cluster.pod(1);
    cluster.add(&plain, &conf(cluster));
    let mut namesakes = vec![Namesake::pod(1, NETWORK, &plain.container_id)];
    for (number, holder, attributes) in [
        (
            2,
            "vxlan-tunnel-addr-ip-10-0-0-1.ec2.internal",
            json!({ "node": "node1", "type": "vxlanTunnelAddress" }),
        ),
        (
            3,
            "lb-shop.checkout",
            json!({ "service": "checkout", "namespace": "shop", "type": "loadbalancer" }),
        ),
        (4, &format!("{NETWORK}.vmi.prod.db"), machine),
        // A VMI that does not run: its address names no pod.
        (5, &format!("{NETWORK}.vmi.prod.stopped"), Value::Null),
        (
            6,
            "lb-CcByVDWerSL9WUOKfbkyPBft2m9Xxf822Zvhn2YSpts",
            json!({ "service": "checkout", "namespace": "shop" }),
        ),
    ] {
        held_by(cluster, number, holder, &attributes);
        namesakes.extend(
            holder
                .split_once('.')
                .map(|(namespace, pod)| Namesake::pod(number, namespace, pod)),
        );
        namesakes.push(Namesake::container(holder));
    }
    namesakes
}

/// Shows SEC-2.
#[on(etcd)]
fn del_keeps_an_address_whose_foreign_handle_has_the_same_name(cluster: &Cluster<'_>) {
    let namesakes = others(cluster);
    let before = addresses(cluster);
    for namesake in namesakes {
        namesake.delete(cluster, &conf(cluster));
        assert_eq!(
            addresses(cluster),
            before,
            "{} {}",
            namesake.container_id,
            namesake.args
        );
    }
}

/// Shows SEC-2.
#[on(etcd)]
fn replay_keeps_an_address_whose_foreign_handle_has_the_same_name(cluster: &mut Cluster<'_>) {
    let namesakes = others(cluster);
    let (before, conf) = (addresses(cluster), conf(cluster));
    cluster.etcd().stop();
    namesakes
        .iter()
        .for_each(|namesake| namesake.delete(cluster, &conf));
    assert_eq!(journal_entries().len(), namesakes.len());
    cluster.etcd().restart().unwrap();
    let mut gc = conf;
    let kept: Vec<Value> = [container_id(1)]
        .iter()
        .map(|id| json!({ "containerID": id, "ifname": "eth0" }))
        .collect();
    gc["cni.dev/valid-attachments"] = json!(kept);
    cluster
        .plugins
        .call("calico")
        .env("CNI_COMMAND", "GC")
        .stdin(gc.to_string())
        .run()
        .success();
    assert_eq!((journal_entries().len(), addresses(cluster)), (0, before));
}

/// Calico before v3 left addresses without attributes.
#[on(etcd)]
fn del_releases_the_addresses_of_the_pods_old_handle(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let own = json!({ "node": "node1", "namespace": "default", "pod": "web" });
    held_by(cluster, 1, "default.web", &Value::Null);
    Namesake::pod(1, "default", "web").delete(cluster, &conf(cluster));
    held_by(cluster, 2, "default.web", &own);
    Namesake::pod(1, "default", "web").delete(cluster, &conf(cluster));
    held_by(cluster, 3, &container_id(7), &Value::Null);
    Namesake::container(&container_id(7)).delete(cluster, &conf(cluster));
    assert_eq!(addresses(cluster), Default::default());
}
