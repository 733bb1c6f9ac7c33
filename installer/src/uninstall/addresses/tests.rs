use datastore::Datastore;
use libcalico::api::{ClusterInformation, ObjectKey};
use libcalico::dead_interface::DeadLink;
use libcalico::ipam::{AffinityOwner, BlockRequest, Reservations, Statement};
use libcalico::net::Cidr;
use libcalico::store::Write;
use serde_json::json;
use tokio::time::Instant;

use super::*;
use dataplane::host_network::testing::{FixedNetwork, interface};
use dataplane::host_network::{HostRoute, Interface, LinkChange, NetworkError, PodLink};

const RELEASE: Options = Options {
    yes: true,
    tear_down_pods: false,
    release_addresses: true,
    missing_as_removed: false,
};

/// A time at which an ADD counts as running.
const RECENTLY: &str = "2999-01-01 00:00:00 +0000 UTC";

/// The network of a node on which an ADD creates the interface of its pod at this time.
#[derive(Debug)]
struct RunningAdd(Instant);

impl HostNetwork for RunningAdd {
    fn interfaces(&self) -> Result<Vec<Interface>, NetworkError> {
        let of_pod = Interface {
            is_pod_interface: true,
            ..interface("cali1", 1500)
        };
        Ok(if Instant::now() < self.0 {
            Vec::new()
        } else {
            vec![of_pod]
        })
    }

    fn routes(&self) -> Result<Vec<HostRoute>, NetworkError> {
        Ok(Vec::new())
    }

    fn routes_of_all_tables(&self) -> Result<Vec<HostRoute>, NetworkError> {
        self.routes()
    }

    fn changes_of_pod_link(&self, _: &str, _: &[IpAddr]) -> Result<Vec<LinkChange>, NetworkError> {
        Ok(Vec::new())
    }

    fn remove_pod_interface(&self, _: &str) -> Result<bool, NetworkError> {
        Ok(false)
    }

    fn pod_links(&self) -> Result<Vec<PodLink>, NetworkError> {
        Ok(Vec::new())
    }

    fn inhabited_namespaces(&self) -> Result<Statement<BTreeSet<i32>>, NetworkError> {
        Ok(Statement::Known(BTreeSet::new()))
    }

    fn containers_of_calls(&self) -> Result<Statement<BTreeSet<String>>, NetworkError> {
        Ok(Statement::Known(BTreeSet::new()))
    }

    fn remove_dead_link(&self, _: &DeadLink) -> Result<bool, NetworkError> {
        Ok(false)
    }
}

/// Creates an embedded datastore in which a container has the address 10.65.0.0 since
/// `timestamp`.
async fn node_with_address(directory: &Path, timestamp: &str) -> (NetConf, Datastore) {
    let conf = json!({
        "name": "n", "datastore_type": "local", "datastore_path": directory.join("calico.db"),
        "nodename": "node1", "ipam_lock_file": directory.join("ipam.lock"),
    });
    let conf = NetConf::parse(conf.to_string().as_bytes()).unwrap();
    let (_, store) = node_conf::datastore(&conf, DEADLINE).unwrap();
    let (cidr, owner): (Cidr, _) = (
        "10.65.0.0/30".parse().unwrap(),
        AffinityOwner::Host("node1".into()),
    );
    let mut block = Block::new(cidr, &owner, OffsetDateTime::now_utc()).unwrap();
    let attributes = [("node", "node1"), ("timestamp", timestamp)];
    let attributes =
        BTreeMap::from(attributes.map(|(key, value)| (key.to_owned(), value.to_owned())));
    let handle = HandleId::new("n.abc");
    let request = BlockRequest {
        handle: Some(&handle),
        attributes: &attributes,
        requester: &owner,
        check_affinity: false,
    };
    block.assign(1, &request, &Reservations::default()).unwrap();
    store
        .write_one(Write::create::<Block>(&cidr, &block).unwrap())
        .await
        .unwrap();
    (conf, store)
}

/// Returns the number of addresses that are in use.
async fn used_addresses(store: &Datastore) -> usize {
    let blocks = store.list::<Block>(&None).await.unwrap();
    blocks
        .iter()
        .flat_map(|block| block.value.allocated())
        .filter(|held| !held.is_cooling())
        .count()
}

#[tokio::test(start_paused = true)]
async fn release_waits_for_a_running_add_and_is_refused_when_its_interface_appears() {
    let directory = tempfile::tempdir().unwrap();
    let (conf, store) = node_with_address(directory.path(), RECENTLY).await;
    let network = RunningAdd(Instant::now() + LONGEST_ADD / 2);
    let mut report = UninstallReport {
        acted: true,
        ..UninstallReport::default()
    };
    assert!(
        !release(Ok(conf), RELEASE, &BTreeSet::new(), &network, &mut report).await,
        "{report}"
    );
    let text = report.to_string();
    assert!(
        text.contains("pods are still connected with these addresses: cali1"),
        "{text}"
    );
    assert_eq!(used_addresses(&store).await, 1);
}

#[tokio::test(start_paused = true)]
async fn release_of_old_or_torn_down_addresses_does_not_wait() {
    let address: IpAddr = "10.65.0.0".parse().unwrap();
    for (timestamp, torn_down) in [
        ("2025-08-22 01:01:59 +0000 UTC", BTreeSet::new()),
        (RECENTLY, BTreeSet::from([address])),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let (conf, store) = node_with_address(directory.path(), timestamp).await;
        let (network, started) = (FixedNetwork::default(), Instant::now());
        let mut report = UninstallReport {
            acted: true,
            ..UninstallReport::default()
        };
        assert!(
            release(Ok(conf), RELEASE, &torn_down, &network, &mut report).await,
            "{report}"
        );
        assert!(started.elapsed() < LONGEST_ADD / 2, "{timestamp}");
        assert_eq!(used_addresses(&store).await, 0, "{report}");
    }
}

/// Shows SEC-68.
#[tokio::test]
async fn release_in_a_locked_datastore_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (conf, store) = node_with_address(directory.path(), "2025-08-22 01:01:59 +0000 UTC").await;
    let key = ObjectKey::global("default");
    let mut cluster = store.get::<ClusterInformation>(&key).await.unwrap();
    cluster.value.spec.datastore_ready = Some(false);
    store
        .update(&key, &cluster.value, &cluster.revision)
        .await
        .unwrap();
    let mut report = UninstallReport {
        acted: true,
        ..UninstallReport::default()
    };
    assert!(
        !release(
            Ok(conf),
            RELEASE,
            &BTreeSet::new(),
            &FixedNetwork::default(),
            &mut report
        )
        .await,
        "{report}"
    );
    let text = report.to_string();
    assert!(
        text.contains("Calico is currently not ready to process requests"),
        "{text}"
    );
    assert_eq!(used_addresses(&store).await, 1);
}

#[tokio::test]
async fn report_names_kube_controllers_only_for_a_datastore_that_they_reach() {
    for (datastore, is_collected) in [
        (
            r#""datastore_type":"local","datastore_path":"/x/db""#,
            false,
        ),
        (r#""datastore_type":"kubernetes""#, true),
        (r#""etcd_endpoints":"http://127.0.0.1:2379""#, true),
    ] {
        let conf = NetConf::parse(format!(r#"{{"name":"n",{datastore}}}"#).as_bytes()).unwrap();
        let mut report = UninstallReport::default();
        let (network, options) = (FixedNetwork::default(), Options::default());
        assert!(release(Ok(conf), options, &BTreeSet::new(), &network, &mut report).await);
        let text = report.to_string();
        assert!(text.contains("--release-addresses releases them"), "{text}");
        assert_eq!(text.contains("kube-controllers"), is_collected, "{text}");
    }
}

/// A running ADD could assign an address after the blocks are read, and the address would stay
/// allocated.
#[tokio::test]
async fn release_without_the_ipam_lock_is_refused_before_any_request() {
    let lock = tempfile::tempdir().unwrap();
    let (path, network) = (lock.path().display(), FixedNetwork::default());
    let conf = format!(
        r#"{{"name":"n","datastore_type":"kubernetes","kubernetes":{{"k8s_api_root":"http://127.0.0.1:1"}},
                "nodename":"node1","ipam_lock_file":"{path}"}}"#
    );
    let conf = NetConf::parse(conf.as_bytes()).unwrap();
    let options = Options {
        yes: true,
        release_addresses: true,
        ..Options::default()
    };
    let mut report = UninstallReport {
        acted: true,
        ..UninstallReport::default()
    };
    assert!(!release(Ok(conf), options, &BTreeSet::new(), &network, &mut report).await);
    let text = report.to_string();
    assert!(
        text.contains(&format!("cannot open lock file {path}: ")),
        "{text}"
    );
    assert!(text.contains("run the command again"), "{text}");
}
