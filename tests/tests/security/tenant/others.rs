//! The objects of the other owners.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use integration_tests::content::NETWORK;
use integration_tests::node::Sandbox;
use libcalico::ipam::{AffinityOwner, Block, BlockRequest, Handle, HandleId};
use libcalico::net::IpVersion;
use libcalico::store::Store;
use serde_json::{Value, json};

use super::shared_nodes::{NODES, SharedNodes};

/// An owner of addresses.
#[derive(Debug, Clone, Default)]
pub(crate) struct Victim {
    /// Namespace and name; empty if the owner has none.
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) container_id: String,
    pub(crate) uid: String,
    pub(crate) netns: String,
    pub(crate) handle: String,
    pub(crate) addresses: Vec<IpAddr>,
}

/// Files that no program in this test may change, at paths that occur in the tenant's texts.
pub(crate) const VICTIM_FILES: [&str; 3] = [
    "/run/victim",
    "/var/lib/victim.json",
    "/etc/cni/net.d/10-victim.conflist",
];

impl SharedNodes<'_> {
    pub(crate) fn create_others(&mut self) -> Result<()> {
        for (node, namespace, name) in [
            (0, "prod", "db-1"),
            (1, "prod", "db-2"),
            (0, "team-a", "p723961"),
        ] {
            let uid = self.create_pod(node, namespace, name, &json!({}))?;
            self.add_other(node, Some((namespace, name)), uid)?;
        }
        match &self.client {
            Some(_) => self.create_machine()?,
            None => self.add_other(0, None, String::new())?,
        }
        for (node, name) in NODES.iter().enumerate() {
            let tunnel = json!({ "node": name, "type": "vxlanTunnelAddress" });
            self.allocate(node, &format!("vxlan-tunnel-addr-{name}"), &tunnel)?;
        }
        let service = json!({ "service": "checkout", "namespace": "shop", "type": "loadBalancer" });
        self.allocate(0, "lb-shop.checkout", &service)?;
        self.defer_del(0)?;
        for node in &self.nodes {
            node.on(|_| {
                for file in VICTIM_FILES {
                    std::fs::create_dir_all(Path::new(file).parent().context("a directory")?)?;
                    std::fs::write(file, "{}")?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Creates a pod and its namespace. Returns the pod's UID, or an empty string without
    /// Kubernetes.
    pub(crate) fn create_pod(
        &self,
        node: usize,
        namespace: &str,
        name: &str,
        metadata: &Value,
    ) -> Result<String> {
        let Some(client) = &self.client else {
            return Ok(String::new());
        };
        self.make_namespace(namespace)?;
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
            "spec": { "nodeName": NODES[node], "containers": [{ "name": "c", "image": "none" }] },
        });
        pod["metadata"]["name"] = json!(name);
        let made = client
            .create(&format!("/api/v1/namespaces/{namespace}/pods"), &pod)?
            .checked()?;
        Ok(made["metadata"]["uid"]
            .as_str()
            .unwrap_or_default()
            .to_owned())
    }

    /// Creates a namespace and its account. Does nothing without Kubernetes.
    pub(crate) fn make_namespace(&self, name: &str) -> Result<()> {
        let Some(client) = &self.client else {
            return Ok(());
        };
        let namespace =
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        let made = client.create("/api/v1/namespaces", &namespace)?;
        ensure!(
            matches!(made.code, 201 | 409),
            "no namespace {name}: {}",
            made.reason()
        );
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "default" },
        });
        let made = client.create(
            &format!("/api/v1/namespaces/{name}/serviceaccounts"),
            &account,
        )?;
        ensure!(
            matches!(made.code, 201 | 409),
            "no account in {name}: {}",
            made.reason()
        );
        Ok(())
    }

    fn add_other(&mut self, node: usize, pod: Option<(&str, &str)>, uid: String) -> Result<()> {
        let sandbox = self.sandbox(node, pod)?;
        let outcome = self.nodes[node].run(&self.nodes[node].verb("ADD", &sandbox))?;
        ensure!(outcome.exit == Some(0), "ADD of {sandbox:?}: {outcome:?}");
        let addresses = addresses(&outcome.answer());
        self.report(&sandbox, &addresses)?;
        let (namespace, name) = sandbox.pod.clone().unwrap_or_default();
        self.victims.push(Victim {
            namespace,
            name,
            uid,
            handle: format!("{NETWORK}.{}", sandbox.container_id),
            container_id: sandbox.container_id,
            netns: sandbox.netns,
            addresses,
        });
        Ok(())
    }

    /// Writes the pod's status as the kubelet does after the ADD.
    pub(crate) fn report(&self, sandbox: &Sandbox, addresses: &[IpAddr]) -> Result<()> {
        let (Some(client), Some((namespace, name))) = (&self.client, &sandbox.pod) else {
            return Ok(());
        };
        let ips: Vec<Value> = addresses.iter().map(|ip| json!({ "ip": ip })).collect();
        let status =
            json!({ "status": { "phase": "Running", "podIP": addresses.first(), "podIPs": ips } });
        // A rejection is ignored, because the pod may be deleted.
        client.patch(
            &format!("/api/v1/namespaces/{namespace}/pods/{name}/status"),
            &status,
        )?;
        Ok(())
    }

    fn create_machine(&mut self) -> Result<()> {
        let client = self.client.clone().context("objects")?;
        let make = |kind: &str, owners: Value| -> Result<String> {
            let metadata = json!({ "name": "db", "ownerReferences": owners });
            let object =
                json!({ "apiVersion": "kubevirt.io/v1", "kind": kind, "metadata": metadata });
            let path = format!(
                "/apis/kubevirt.io/v1/namespaces/prod/{}s",
                kind.to_lowercase()
            );
            let made = client.create(&path, &object)?.checked()?;
            Ok(made["metadata"]["uid"]
                .as_str()
                .unwrap_or_default()
                .to_owned())
        };
        let machine = make("VirtualMachine", json!([]))?;
        let of_machine = json!([{
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "db", "uid": machine,
        }]);
        let instance = make("VirtualMachineInstance", of_machine)?;
        let owner = json!({ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
                "name": "db",
            "uid": instance, "controller": true });
        self.create_pod(
            0,
            "prod",
            "virt-launcher-db-x",
            &json!({ "ownerReferences": [owner] }),
        )?;
        self.add_other(0, Some(("prod", "virt-launcher-db-x")), instance)?;
        let machine = self.victims.last_mut().context("the machine")?;
        machine.handle = format!("{NETWORK}.vmi.prod.db");
        Ok(())
    }

    /// Allocates an address in a block of the node to an owner that is not a pod.
    fn allocate(&mut self, node: usize, handle: &str, attributes: &Value) -> Result<()> {
        let owner = AffinityOwner::Host(NODES[node].into());
        let blocks = self
            .runtime
            .block_on(self.datastore.list::<Block>(&Some(IpVersion::V4)))?;
        let of_node = |block: &Block| block.owner().as_ref() == Some(&owner);
        let mut block = blocks
            .into_iter()
            .find(|block| of_node(&block.value))
            .context("a block of the node")?;
        let attributes: BTreeMap<String, String> = serde_json::from_value(attributes.clone())?;
        let id = HandleId::new(handle);
        let request = BlockRequest {
            handle: Some(&id),
            attributes: &attributes,
            requester: &owner,
            check_affinity: false,
        };
        let mut candidates = (0..).map_while(|n| block.key.nth(n));
        let address =
            candidates.find(|address| block.value.assign_address(*address, &request).is_ok());
        block.value.count_write();
        let mut counted = Handle::default();
        counted.increment(block.key, 1);
        self.runtime.block_on(async {
            self.datastore.create::<Handle>(&id, &counted).await?;
            self.datastore
                .update::<Block>(&block.key, &block.value, &block.revision)
                .await
        })?;
        self.victims.push(Victim {
            handle: handle.to_owned(),
            addresses: vec![address.context("room in the block")?],
            ..Victim::default()
        });
        Ok(())
    }

    /// Creates a deferred DEL for a datastore that no call here can reach.
    fn defer_del(&mut self, node: usize) -> Result<()> {
        let sandbox = self.sandbox(node, Some(("prod", "owing")))?;
        let elsewhere = json!({
            "datastore_type": "etcdv3", "etcd_endpoints": "http://127.0.0.1:1", "policy": {},
        });
        let outcome =
            self.nodes[node].run(&self.nodes[node].verb_with("DEL", &sandbox, &elsewhere))?;
        ensure!(
            outcome.exit == Some(0),
            "DEL without a datastore: {outcome:?}"
        );
        self.nodes[node].on(|host| host.delete_pod(&sandbox.netns))?;
        let handle = format!("{NETWORK}.{}", sandbox.container_id);
        self.victims.push(Victim {
            namespace: "prod".into(),
            name: "owing".into(),
            container_id: sandbox.container_id,
            handle,
            ..Victim::default()
        });
        Ok(())
    }
}

pub(crate) fn addresses(result: &Value) -> Vec<IpAddr> {
    let address = |ip: &Value| ip["address"].as_str()?.split('/').next()?.parse().ok();
    result["ips"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(address)
        .collect()
}
