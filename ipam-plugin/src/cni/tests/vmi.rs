use std::collections::BTreeMap;

use libcalico::api::{IpamConfiguration, IpamConfigurationSpec, ObjectKey};
use libcalico::ipam::{Attribute, Handle, HandleId};
use libcalico::kubernetes::{Pod, VirtualMachine, VirtualMachineInstance, VmiPod};
use libcalico::store::{Kind, StoreError, Write, WriteOp};
use netconf::{CniError, CniResult};
use serde_json::{Value, json};

use crate::cni::testing;
use crate::cni::{self, IpamRequest};
use allocation::alloc::inputs::AllocationInputs;
use allocation::alloc::request::Namespace;
use allocation::error::VmiError;
use allocation::release::ReleaseInputs;
use allocation::testing::{Cluster, Fault, MemoryStore, assert_consistent};
use allocation::vmi::detect;

const HANDLE: &str = "net.vmi.ns.vm1";

fn cluster() -> Cluster {
    let cluster = Cluster::on(MemoryStore::sequential());
    cluster.pool("pool4", "10.65.0.0/16", 26);
    cluster.pool("pool6", "fd00:65::/64", 122);
    machine(&cluster, false);
    instance(&cluster, "i-1", true, false);
    cluster
}

fn since(going: bool) -> Value {
    if going {
        json!("2026-08-22T06:33:20Z")
    } else {
        Value::Null
    }
}

fn machine(cluster: &Cluster, going: bool) {
    let machine =
        json!({ "metadata": { "name": "vm1", "uid": "m-1", "deletionTimestamp": since(going) } });
    let machine: VirtualMachine = serde_json::from_value(machine).unwrap();
    cluster
        .store
        .put(&ObjectKey::namespaced("ns", "vm1"), &machine);
}

fn instance(cluster: &Cluster, uid: &str, owned: bool, going: bool) {
    let owner = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "vm1", "uid": "m-1",
    });
    let owners = if owned { json!([owner]) } else { json!([]) };
    let metadata = json!({
        "name": "vm1", "uid": uid, "ownerReferences": owners, "deletionTimestamp": since(going),
    });
    let instance: VirtualMachineInstance =
        serde_json::from_value(json!({ "metadata": metadata })).unwrap();
    cluster
        .store
        .put(&ObjectKey::namespaced("ns", "vm1"), &instance);
}

/// Creates a pod of the instance; with a job, the target of a migration.
fn pod(suffix: &str, uid: &str, job: Option<&str>) -> Pod {
    let labels = job.map_or(
        json!({}),
        |job| json!({ "kubevirt.io/migrationJobUID": job }),
    );
    let owner = json!({ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "name": "vm1",
                        "uid": uid, "controller": true });
    let metadata = json!({ "name": format!("virt-launcher-vm1-{suffix}"), "namespace": "ns",
            "labels": labels,
                           "ownerReferences": [owner] });
    serde_json::from_value(json!({ "metadata": metadata })).unwrap()
}

fn persistence(cluster: &Cluster, word: &str) {
    let spec = IpamConfigurationSpec {
        kube_virt_vm_address_persistence: Some(word.into()),
        ..IpamConfigurationSpec::default()
    };
    cluster.store.put(
        &ObjectKey::global("default"),
        &IpamConfiguration::new("default", spec),
    );
}

fn call_of(pod: &Pod, vmi: Option<VmiPod>) -> IpamRequest {
    let (namespace, name) = (pod.metadata.namespace.clone(), pod.metadata.name.clone());
    IpamRequest {
        pod: Some(cni::Pod {
            namespace: Namespace {
                name: namespace,
                ..Namespace::default()
            },
            name: name.clone(),
        }),
        vmi,
        assign_ipv6: true,
        ..testing::call(&format!("c-{name}"))
    }
}

async fn add(cluster: &Cluster, pod: &Pod) -> Result<CniResult, CniError> {
    let detected = detect(Some(&cluster.store), &cluster.store, Some(pod))
        .await
        .unwrap()
        .unwrap();
    let vmi = detected.for_add()?;
    let call = call_of(pod, vmi);
    let inputs = AllocationInputs::read(&cluster.store, &call.inputs_query())
        .await
        .unwrap();
    Ok(
        cni::add(&cluster.store, &cluster.clock, &call, inputs, None)
            .await?
            .result,
    )
}

async fn del(cluster: &Cluster, pod: &Pod) {
    let detected = detect(Some(&cluster.store), &cluster.store, Some(pod))
        .await
        .unwrap()
        .unwrap();
    let call = call_of(pod, detected.for_del());
    let inputs = ReleaseInputs::read(&cluster.store, &call.handles())
        .await
        .unwrap();
    cni::del(&cluster.store, &cluster.clock, &call, inputs)
        .await
        .unwrap();
    assert_consistent(&cluster.store.pairs(), true);
}

fn addresses(result: &CniResult) -> Vec<String> {
    result.ips.iter().map(|ip| ip.address.to_string()).collect()
}

/// Returns the active and the alternate owner of the VMI's addresses, as the last parts of the
/// pods' names.
fn owners(cluster: &Cluster) -> [String; 2] {
    let blocks = cluster.store.pairs().list::<libcalico::ipam::Block>(&None);
    let mut noted: Vec<[String; 2]> = Vec::new();
    for attribute in blocks
        .iter()
        .flat_map(|(_, block)| block.allocated())
        .filter_map(|held| held.attribute)
    {
        let pod = |owner: &BTreeMap<String, String>| {
            owner
                .get("pod")
                .map(|name| name.rsplit('-').next().unwrap_or_default().to_owned())
                .unwrap_or_default()
        };
        let Attribute {
            active_owner,
            alternate_owner,
            ..
        } = attribute;
        noted.push([pod(active_owner), pod(alternate_owner)]);
    }
    noted.dedup();
    assert!(noted.len() <= 1, "{noted:?}");
    noted.pop().unwrap_or_default()
}

fn active_owner(cluster: &Cluster) -> BTreeMap<String, String> {
    let blocks = cluster.store.pairs().list::<libcalico::ipam::Block>(&None);
    blocks[0]
        .1
        .allocated()
        .next()
        .unwrap()
        .attribute
        .unwrap()
        .active_owner
        .clone()
}

#[tokio::test]
async fn new_launcher_pod_takes_over_the_addresses_of_its_predecessor() {
    let cluster = cluster();
    let first = add(&cluster, &pod("a", "i-1", None)).await.unwrap();
    assert_eq!((first.ips.len(), first.routes.len()), (2, 2));
    assert_eq!(owners(&cluster), ["a", ""]);
    assert_eq!(active_owner(&cluster)["vm-uid"], "m-1");
    let kept: Vec<String> = first
        .ips
        .iter()
        .map(|ip| ip.address.addr().to_string())
        .collect();

    del(&cluster, &pod("a", "i-1", None)).await;
    assert_eq!(owners(&cluster), ["", ""]);
    // Another instance of the same VM gets all existing addresses.
    instance(&cluster, "i-2", true, false);
    let second = add(&cluster, &pod("b", "i-2", None)).await.unwrap();
    assert_eq!(
        addresses(&second),
        [format!("{}/32", kept[0]), format!("{}/128", kept[1])]
    );
    assert_eq!(
        (
            second.routes.len(),
            active_owner(&cluster)["vmi-uid"].as_str()
        ),
        (2, "i-2")
    );
    assert_eq!(owners(&cluster), ["b", ""]);
    del(&cluster, &pod("a", "i-1", None)).await;
    assert_eq!(owners(&cluster), ["b", ""]);
    assert_consistent(&cluster.store.pairs(), true);
}

/// An earlier, interrupted ADD leaves such a handle.
#[tokio::test]
async fn existing_empty_vmi_handle_is_not_recreated() {
    let cluster = cluster();
    cluster
        .store
        .put(&HandleId::new(HANDLE), &Handle::default());
    cluster.store.before_each(|_, writes, _| {
        let makes =
            |write: &Write| write.kind == Handle::KIND && matches!(write.op, WriteOp::Create(_));
        assert!(!writes.into_iter().flatten().any(makes), "it was read");
        Fault::None
    });
    assert_eq!(
        add(&cluster, &pod("a", "i-1", None))
            .await
            .unwrap()
            .ips
            .len(),
        2
    );
    assert_consistent(&cluster.store.pairs(), true);
}

#[tokio::test]
async fn live_migration_moves_the_addresses_to_the_target_pod() {
    let cluster = cluster();
    let (source, target) = (pod("a", "i-1", None), pod("b", "i-1", Some("job")));
    let too_early = add(&cluster, &target).await.unwrap_err();
    assert_eq!(
        too_early.msg,
        format!("migration target pod but no IP allocated to VM handle {HANDLE}")
    );
    let held = add(&cluster, &source).await.unwrap();
    let moved = add(&cluster, &target).await.unwrap();
    let bare = |result: &CniResult| {
        result
            .ips
            .iter()
            .map(|ip| ip.address.addr())
            .collect::<Vec<_>>()
    };
    assert_eq!((bare(&moved), moved.routes.len()), (bare(&held), 0));
    assert_eq!(owners(&cluster), ["a", "b"]);
    for _ in 0..2 {
        del(&cluster, &source).await;
        assert_eq!(owners(&cluster), ["", "b"]);
    }
    del(&cluster, &target).await;
    assert_eq!(owners(&cluster), ["", ""]);
    assert!(cluster.handle(HANDLE).is_some());
}

#[tokio::test]
async fn last_owner_of_a_deleted_vm_releases_the_addresses() {
    for source_first in [true, false] {
        let cluster = cluster();
        let mut pods = [pod("a", "i-1", None), pod("b", "i-1", Some("job"))];
        for pod in &pods {
            add(&cluster, pod).await.unwrap();
        }
        // Without the deletion of the VM, it would run again and keep its addresses.
        instance(&cluster, "i-1", true, true);
        machine(&cluster, true);
        if !source_first {
            pods.reverse();
        }
        del(&cluster, &pods[0]).await;
        assert!(cluster.handle(HANDLE).is_some());
        del(&cluster, &pods[1]).await;
        assert_eq!(cluster.handle(HANDLE), None);
        del(&cluster, &pods[1]).await;
    }
}

#[tokio::test]
async fn vmi_without_a_vm_retains_its_addresses_until_deleted() {
    let cluster = cluster();
    instance(&cluster, "i-1", false, false);
    add(&cluster, &pod("a", "i-1", None)).await.unwrap();
    assert_eq!(active_owner(&cluster).get("vm-uid"), None);
    del(&cluster, &pod("a", "i-1", None)).await;
    assert!(cluster.handle(HANDLE).is_some());
    add(&cluster, &pod("b", "i-1", None)).await.unwrap();
    instance(&cluster, "i-1", false, true);
    del(&cluster, &pod("b", "i-1", None)).await;
    assert_eq!(cluster.handle(HANDLE), None);
}

#[tokio::test]
async fn missing_vmi_fails_add_and_not_del() {
    let cluster = cluster();
    add(&cluster, &pod("a", "i-1", None)).await.unwrap();
    instance(&cluster, "i-2", true, false);
    let error = add(&cluster, &pod("b", "i-1", None)).await.unwrap_err();
    assert!(
        error
            .msg
            .starts_with("failed to get VMI info: VirtualMachineInstance ns/vm1 with uid i-1"),
        "{error}"
    );
    cluster
        .store
        .edit(|pairs| pairs.remove("/kubernetes/virtualmachineinstances/ns/vm1"));
    let error = add(&cluster, &pod("b", "i-2", None)).await.unwrap_err();
    assert!(error.msg.contains("failed to get VMI info"), "{error}");
    del(&cluster, &pod("a", "i-1", None)).await;
    assert_eq!(owners(&cluster), ["", ""]);
    assert!(cluster.handle(HANDLE).is_some());

    instance(&cluster, "i-3", true, false);
    add(&cluster, &pod("c", "i-3", None)).await.unwrap();
    for kind in ["virtualmachineinstances", "virtualmachines"] {
        cluster
            .store
            .edit(|pairs| pairs.remove(&format!("/kubernetes/{kind}/ns/vm1")));
    }
    del(&cluster, &pod("c", "i-3", None)).await;
    assert_eq!(cluster.handle(HANDLE), None);
    instance(&cluster, "i-4", true, false);
    let error = add(&cluster, &pod("d", "i-4", None)).await.unwrap_err();
    assert_eq!(
        error.msg,
        "failed to get VMI info: VirtualMachine ns/vm1 does not exist"
    );
}

#[tokio::test]
async fn with_persistence_disabled_a_vmi_pod_gets_container_handles() {
    let cluster = cluster();
    persistence(&cluster, "Disabled");
    let source = pod("a", "i-1", None);
    add(&cluster, &source).await.unwrap();
    assert_eq!(
        (
            cluster.handle(HANDLE),
            cluster.handle("net.c-virt-launcher-vm1-a").is_some()
        ),
        (None, true)
    );
    let error = add(&cluster, &pod("b", "i-1", Some("job")))
        .await
        .unwrap_err();
    assert_eq!(
        error.msg,
        "live migration target pod is not allowed when KubeVirtVMAddressPersistence is disabled"
    );
    del(&cluster, &source).await;
    assert_eq!(cluster.handle("net.c-virt-launcher-vm1-a"), None);
    persistence(&cluster, "Enabled");
    add(&cluster, &source).await.unwrap();
    assert!(cluster.handle(HANDLE).is_some());
}

/// No handle of a release before v3 is read (IPAM-55).
#[tokio::test]
async fn del_of_a_vmi_pod_reads_only_the_vmi_handle_and_its_block() {
    let cluster = cluster();
    let source = pod("a", "i-1", None);
    add(&cluster, &source).await.unwrap();
    let vmi = detect(Some(&cluster.store), &cluster.store, Some(&source))
        .await
        .unwrap()
        .unwrap()
        .for_del();
    let call = call_of(&source, vmi);
    let inputs = ReleaseInputs::read(&cluster.store, &call.handles_to_read(&cluster.store))
        .await
        .unwrap();
    cluster.store.take_counts();
    cni::del(&cluster.store, &cluster.clock, &call, inputs)
        .await
        .unwrap();
    assert_eq!(cluster.store.take_counts().0, 2);
}

#[tokio::test]
async fn pods_without_a_vmi_cost_no_requests() {
    let cluster = cluster();
    cluster.store.take_counts();
    let mut ordinary = pod("a", "i-1", None);
    ordinary.metadata.name = "web".into();
    assert_eq!(
        detect(Some(&cluster.store), &cluster.store, Some(&ordinary)).await,
        Ok(None)
    );
    let mut orphan = pod("a", "i-1", None);
    orphan.metadata.unknown.clear();
    assert_eq!(
        detect(Some(&cluster.store), &cluster.store, Some(&orphan)).await,
        Ok(None)
    );
    assert_eq!(cluster.store.take_counts(), (0, 0));
}

#[tokio::test]
async fn vmi_add_retries_lost_races_and_reports_an_outage() {
    let cluster = cluster();
    let source = pod("a", "i-1", None);
    add(&cluster, &source).await.unwrap();
    let mut races = 3;
    cluster.store.before_each(move |_, writes, pairs| {
        let block = writes
            .into_iter()
            .flatten()
            .find(|write| write.kind == "IPAMBlock");
        if let Some(block) = block.filter(|_| races > 0) {
            races -= 1;
            pairs.touch(&block.path);
        }
        Fault::None
    });
    add(&cluster, &pod("b", "i-1", Some("job"))).await.unwrap();
    cluster.store.end_faults();
    assert_eq!(owners(&cluster), ["a", "b"]);

    cluster.store.before_each(|_, _, _| Fault::Refused);
    let error = detect(Some(&cluster.store), &cluster.store, Some(&source))
        .await
        .unwrap_err();
    assert!(matches!(&error, StoreError::Unavailable { .. }), "{error}");
    assert!(VmiError::from(error).is_postponable());
}

#[tokio::test]
async fn concurrent_adds_of_a_vmi_share_an_address_per_family() {
    let cluster = cluster();
    let source = pod("a", "i-1", None);
    let vmi = detect(Some(&cluster.store), &cluster.store, Some(&source))
        .await
        .unwrap()
        .unwrap()
        .for_add()
        .unwrap();
    let call = call_of(&source, vmi);
    assert_eq!(call.handle(), HandleId::new(HANDLE));
    let request = call.assign_request(time::OffsetDateTime::UNIX_EPOCH);
    let first = add(&cluster, &source).await.unwrap();
    // The second process found no address of the VMI before the first wrote.
    let assigned = cluster.assign(&request).await.unwrap();
    let (again, before): (Vec<_>, Vec<_>) = (
        assigned.addresses.iter().map(|a| a.ip).collect(),
        first.ips.iter().map(|ip| ip.address.addr()).collect(),
    );
    assert_eq!(again, before);
    assert_consistent(&cluster.store.pairs(), true);
}
