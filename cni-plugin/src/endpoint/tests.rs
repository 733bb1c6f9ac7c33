use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use allocation::release::AddressToRelease;
use datastore::Local;
use datastore::config::LocalConfig;
use libcalico::api::IpNat;
use libcalico::conversion::{ProfileReach, default_profile};
use libcalico::ipam::{AffinityOwner, Block, BlockRequest, Handle, HandleId};
use libcalico::store::{
    Answers, EndpointForm, ProfileOrigin, ReadBatch, Revision, Sharing, WriteModel,
};
use libcalico::workload::{ContainerIdentity, Orchestrator, PodIdentity, WorkloadIdentity};
use os::clock::SystemClock;
use time::OffsetDateTime;

use super::*;

/// A datastore whose first write fails with an unknown outcome.
struct Breaking {
    inner: Local,
    breaks: AtomicBool,
    /// True if that write takes effect nevertheless.
    applies: bool,
    /// True if reads fail after that write.
    fails_reads: bool,
}

impl Breaking {
    fn new(directory: &tempfile::TempDir, applies: bool, fails_reads: bool) -> Self {
        let config = LocalConfig {
            path: directory.path().join("db"),
            deadline: std::time::Duration::from_secs(10),
        };
        Breaking {
            inner: Local::new(&config),
            breaks: AtomicBool::new(true),
            applies,
            fails_reads,
        }
    }

    fn unavailable(outcome_unknown: bool) -> StoreError {
        StoreError::Unavailable {
            datastore: "d".into(),
            reason: "r".into(),
            outcome_unknown,
        }
    }
}

impl Store for Breaking {
    async fn read(&self, batch: &ReadBatch) -> Result<Answers, StoreError> {
        if self.fails_reads && !self.breaks.load(Ordering::Relaxed) {
            return Err(Breaking::unavailable(false));
        }
        self.inner.read(batch).await
    }

    fn write_model(&self) -> WriteModel {
        WriteModel::Transactional
    }

    fn endpoint_form(&self) -> EndpointForm {
        self.inner.endpoint_form()
    }

    fn profile_origin(&self) -> ProfileOrigin {
        self.inner.profile_origin()
    }

    fn sharing(&self) -> Sharing {
        self.inner.sharing()
    }

    async fn write(&self, writes: &[Write]) -> Result<Vec<Revision>, WriteError> {
        if !self.breaks.swap(false, Ordering::Relaxed) {
            return self.inner.write(writes).await;
        }
        if self.applies {
            self.inner.write(writes).await?;
        }
        Err(WriteError {
            index: 0,
            applied: 0,
            cause: Breaking::unavailable(true),
        })
    }
}

fn workload(container_id: &str) -> WorkloadIdentity {
    WorkloadIdentity {
        node: "node1".into(),
        container_id: container_id.into(),
        endpoint: "eth0".into(),
        orchestrator: Orchestrator::Cni(ContainerIdentity::new("net1")),
    }
}

fn endpoint(container_id: &str, address: &str) -> WorkloadEndpoint {
    let mut endpoint = workload(container_id)
        .create(&[address.parse().unwrap()])
        .unwrap();
    endpoint.spec.interface_name = "calic1".into();
    endpoint
}

fn write(address: &str) -> EndpointWrite {
    let profile = default_profile("net1", ProfileReach::SameNetwork);
    EndpointWrite {
        endpoint: endpoint("c1", address),
        existing: None,
        profile: Some(profile),
    }
}

#[tokio::test]
async fn endpoint_write_with_a_lost_response_is_applied_once() {
    for applies in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let store = Breaking::new(&directory, applies, false);
        let written = write("10.0.0.1")
            .apply(&store, &SystemClock::start())
            .await
            .unwrap();
        let stored = store
            .get::<WorkloadEndpoint>(&written.key())
            .await
            .unwrap()
            .value;
        assert_eq!(
            (stored.metadata.uid, stored.spec),
            (written.metadata.uid, written.spec),
            "applied: {applies}"
        );
    }
}

#[tokio::test]
async fn unverifiable_endpoint_write_is_reported_as_perhaps_written() {
    let directory = tempfile::tempdir().unwrap();
    let failure = write("10.0.0.1")
        .apply(
            &Breaking::new(&directory, true, true),
            &SystemClock::start(),
        )
        .await
        .unwrap_err();
    assert!(failure.may_be_written, "{failure:?}");
    assert_eq!(failure.error.code, Code::TRY_AGAIN);
}

#[tokio::test]
async fn foreign_endpoint_is_not_mistaken_for_the_own_write() {
    let directory = tempfile::tempdir().unwrap();
    let store = Breaking::new(&directory, false, false);
    let other = endpoint("c1", "10.0.0.2");
    store.inner.create(&other.key(), &other).await.unwrap();
    let failure = write("10.0.0.1")
        .apply(&store, &SystemClock::start())
        .await
        .unwrap_err();
    assert!(!failure.may_be_written, "{failure:?}");
    assert!(failure.error.msg.contains("already exists"), "{failure:?}");
}

#[test]
fn unchanged_endpoint_is_rewritten_only_on_a_detached_pod() {
    let value = endpoint("c1", "10.0.0.1");
    let detached = r#"4711@u{"metadata":{"annotations":{"cni.projectcalico.org/podIP":"","cni.projectcalico.org/podIPs":""}}}"#;
    for (revision, writes) in [("4711", 0), ("4711@u", 0), (detached, 1)] {
        let existing = ExistingEndpoint {
            key: value.key(),
            value: value.clone(),
            revision: Revision(revision.into()),
        };
        let write = EndpointWrite {
            endpoint: value.clone(),
            existing: Some(existing),
            profile: None,
        };
        assert_eq!(write.writes().unwrap().len(), writes, "{revision}");
    }
}

/// Stores an endpoint, replaces it with one that has another address and belongs to `container_id`,
/// and returns the first one.
async fn written_twice(store: &Local, container_id: &str) -> ExistingEndpoint {
    let first = endpoint("c1", "10.0.0.1");
    let revision = store.create(&first.key(), &first).await.unwrap();
    let stale = ExistingEndpoint {
        key: first.key(),
        revision,
        value: first,
    };
    let mut second = endpoint("c1", "10.0.0.2");
    second.spec.container_id = container_id.into();
    store
        .update(&second.key(), &second, &stale.revision)
        .await
        .unwrap();
    stale
}

#[tokio::test]
async fn endpoint_rewritten_meanwhile_is_deleted_unless_owned_by_another_container() {
    for (owner, remaining) in [("c1", 0), ("c2", 1)] {
        let directory = tempfile::tempdir().unwrap();
        let store = Breaking::new(&directory, false, false).inner;
        let stale = written_twice(&store, owner).await;
        let delete_own = async || {
            let listings = Some(vec![stale.clone().into()]);
            ContainerEndpoints::new(&store, workload("c1"))
                .with_listings(listings)
                .delete_own()
                .await
                .unwrap();
        };
        delete_own().await;
        let list = store
            .list::<WorkloadEndpoint>(&Default::default())
            .await
            .unwrap();
        assert_eq!(list.len(), remaining, "held by {owner}");
        delete_own().await;
    }
}

#[tokio::test]
async fn endpoint_of_another_container_loses_only_the_released_addresses() {
    let directory = tempfile::tempdir().unwrap();
    let store = Breaking::new(&directory, false, false).inner;
    let names = PodIdentity {
        namespace: "ns".into(),
        name: "web".into(),
        ..PodIdentity::default()
    };
    let pod = |container_id: &str| WorkloadIdentity {
        orchestrator: Orchestrator::Kubernetes(names.clone()),
        ..workload(container_id)
    };
    let addresses = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
    let mut endpoint = pod("c2").create(&addresses).unwrap();
    let nat = |internal: &str| IpNat {
        internal_ip: internal.into(),
        external_ip: "192.0.2.1".into(),
        ..IpNat::default()
    };
    endpoint.spec.ip_nats = vec![nat("10.0.0.1"), nat("10.0.0.2")];
    store.create(&endpoint.key(), &endpoint).await.unwrap();
    let listed = async || {
        let found = store
            .get::<WorkloadEndpoint>(&endpoint.key())
            .await
            .ok()?
            .value;
        Some((
            found.spec.ip_networks.join(","),
            found.spec.ip_nats.len(),
            found.spec.container_id,
        ))
    };
    let pod_of = || Some(("ns".to_owned(), "web".to_owned()));
    let leaving = |ip: &str| {
        [AddressToRelease {
            ip: ip.parse().unwrap(),
            pod: pod_of(),
            handle: None,
            block: None,
        }]
    };

    // The pod in the allocation selects the endpoint, whatever the workload of the call is.
    for of_call in [pod("c1"), workload("c1")] {
        ContainerEndpoints::new(&store, of_call)
            .delete_own()
            .await
            .unwrap()
            .unlist(&leaving("10.0.0.9"))
            .await
            .unwrap();
        assert_eq!(listed().await.unwrap().0, "10.0.0.1/32,10.0.0.2/32");
    }
    ContainerEndpoints::new(&store, workload("c1"))
        .delete_own()
        .await
        .unwrap()
        .unlist(&leaving("10.0.0.1"))
        .await
        .unwrap();
    assert_eq!(listed().await, Some(("10.0.0.2/32".into(), 1, "c2".into())));

    let listed_before = store
        .list::<WorkloadEndpoint>(&Default::default())
        .await
        .unwrap();
    let endpoints = ContainerEndpoints::new(&store, pod("c1"))
        .with_listings(Some(listed_before.into_iter().map(Listing::from).collect()));
    let found = store
        .get::<WorkloadEndpoint>(&endpoint.key())
        .await
        .unwrap();
    store
        .update(&found.key, &found.value, &found.revision)
        .await
        .unwrap();
    let others = endpoints.delete_own().await.unwrap();
    others.unlist(&leaving("10.0.0.2")).await.unwrap();
    assert_eq!(listed().await, Some((String::new(), 0, "c2".into())));

    ContainerEndpoints::new(&store, pod("c2"))
        .delete_own()
        .await
        .unwrap();
    assert_eq!(listed().await, None);
}

/// The next sandbox of the pod took the address over after a late DEL or GC had read the blocks.
#[tokio::test]
async fn address_moved_to_the_next_sandbox_is_not_removed_from_its_endpoint() {
    let directory = tempfile::tempdir().unwrap();
    let store = Breaking::new(&directory, false, false).inner;
    let (cidr, ip) = ("10.0.0.0/26".parse().unwrap(), "10.0.0.1".parse().unwrap());
    let owner = AffinityOwner::Host("node1".into());
    let mut block = Block::new(cidr, &owner, OffsetDateTime::now_utc()).unwrap();
    let next = HandleId::new("net.c2");
    let request = BlockRequest {
        handle: Some(&next),
        attributes: &BTreeMap::new(),
        requester: &owner,
        check_affinity: true,
    };
    block.assign_address(ip, &request).unwrap();
    store.create(&cidr, &block).await.unwrap();
    let mut handle = Handle::default();
    handle.increment(cidr, 1);
    store.create(&next, &handle).await.unwrap();
    let names = PodIdentity {
        namespace: "ns".into(),
        name: "web".into(),
        ..PodIdentity::default()
    };
    let pod = |container_id: &str| WorkloadIdentity {
        orchestrator: Orchestrator::Kubernetes(names.clone()),
        ..workload(container_id)
    };
    let endpoint = pod("c2").create(&[ip]).unwrap();
    store.create(&endpoint.key(), &endpoint).await.unwrap();
    let listed = async || {
        store
            .get::<WorkloadEndpoint>(&endpoint.key())
            .await
            .unwrap()
            .value
            .spec
            .ip_networks
            .len()
    };
    // The block contains the address under handle `net.c2`. Only a release by that handle removes
    // the address from the endpoint.
    for (handle, block, remaining) in [
        ("net.c1", Some(cidr), 1),
        ("net.c1", None, 1),
        ("net.c2", Some(cidr), 0),
        ("net.c2", None, 0),
    ] {
        let leaving = AddressToRelease {
            ip,
            pod: Some(("ns".into(), "web".into())),
            handle: Some(HandleId::new(handle)),
            block,
        };
        ContainerEndpoints::new(&store, pod("c1"))
            .delete_own()
            .await
            .unwrap()
            .unlist(&[leaving])
            .await
            .unwrap();
        assert_eq!(listed().await, remaining, "{handle} {block:?}");
        let found = store
            .get::<WorkloadEndpoint>(&endpoint.key())
            .await
            .unwrap();
        store
            .update(&found.key, &endpoint, &found.revision)
            .await
            .unwrap();
    }
}
