//! The duration of an ADD's requests to the API server alone, sent by the plugin's own client.

use std::time::{Duration, Instant};

use anyhow::Result;
use datastore::{Datastore, DatastoreConfig};
use integration_tests::namespaces::Host;
use libcalico::api::{WorkloadEndpoint, WorkloadEndpointSpec};
use libcalico::ipam::{AffinityOwner, Block, BlockRequest, Handle, HandleId, Reservations};
use libcalico::net::Cidr;
use libcalico::store::Store;
use time::OffsetDateTime;
use tokio::runtime::Runtime;

use crate::backend::{Backend, NAMESPACE, NODE};
use crate::sample::Sample;

/// A block outside any pool, so that no ADD allocates from it.
const BLOCK: &str = "10.99.0.0/26";
/// Number of allocated addresses in the block: the average over the ADDs that fill a block.
const TAKEN: usize = 32;
const POD: &str = "probe";
/// Number of first turns that are not measured: they fill the server's caches and the connection's
/// buffers.
const WARM_UP: usize = 5;

/// Durations of each request of [`Probe::turn`], by turn.
#[derive(Default)]
pub(crate) struct Requests {
    /// GET of a block by a new client: kubeconfig, connection, TLS and request.
    pub(crate) first_get: Sample,
    /// GET of the block on the connection of `first_get`.
    pub(crate) get: Sample,
    pub(crate) post: Sample,
    pub(crate) put: Sample,
    pub(crate) patch: Sample,
    /// `first_get`, `post`, `put` and `patch` of one turn, in sequence.
    pub(crate) all: Sample,
}

/// A client that sends the requests of an ADD, one by one.
pub(crate) struct Probe {
    runtime: Runtime,
    datastore: DatastoreConfig,
    block: Cidr,
    turns: Vec<Turn>,
}

/// Durations in the order of [`Requests`].
type Turn = [Duration; 5];

impl Probe {
    /// Creates the block and the pod of the requests, and sends the turns that are not measured.
    pub(crate) fn new(host: &Host, backend: &Backend) -> Result<Self> {
        backend.add_pod(host, POD)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let block = half_full(BLOCK.parse()?)?;
        let mut probe = Probe {
            runtime,
            datastore: backend.datastore.clone(),
            block: block.cidr,
            turns: Vec::new(),
        };
        let store = Datastore::open(&probe.datastore)?;
        probe
            .runtime
            .block_on(store.create::<Block>(&block.cidr, &block))?;
        (0..WARM_UP).try_for_each(|_| probe.turn())?;
        probe.turns.clear();
        Ok(probe)
    }

    pub(crate) fn turn(&mut self) -> Result<()> {
        let number = self.turns.len();
        let turn = self
            .runtime
            .block_on(turn(&self.datastore, self.block, number))?;
        self.turns.push(turn);
        Ok(())
    }

    pub(crate) fn requests(&self) -> Requests {
        let sample = |index: usize| self.turns.iter().map(|turn| turn[index]).collect();
        let all = self
            .turns
            .iter()
            .map(|[first_get, _, writes @ ..]| *first_get + writes.iter().sum::<Duration>())
            .collect();
        Requests {
            first_get: sample(0),
            get: sample(1),
            post: sample(2),
            put: sample(3),
            patch: sample(4),
            all,
        }
    }
}

/// Sends the requests of one turn. Every update changes the object: the server stores no unchanged
/// one.
async fn turn(config: &DatastoreConfig, block: Cidr, number: usize) -> Result<Turn> {
    let (first_get, store) = clocked(async {
        let store = Datastore::open(config)?;
        store.get::<Block>(&block).await?;
        anyhow::Ok(store)
    })
    .await?;
    let (get, mut found) = clocked(store.get::<Block>(&block)).await?;

    let id = HandleId::for_container("bench", POD);
    let mut handle = Handle::default();
    handle.increment(block, 1);
    let (post, created) = clocked(store.create::<Handle>(&id, &handle)).await?;
    found.value.count_write();
    let (put, _) = clocked(store.update::<Block>(&block, &found.value, &found.revision)).await?;
    let endpoint = endpoint(number);
    let (patch, _) = clocked(store.create::<WorkloadEndpoint>(&endpoint.key(), &endpoint)).await?;
    store.delete::<Handle>(&id, Some(&created)).await?;
    Ok([first_get, get, post, put, patch])
}

async fn clocked<T, E>(request: impl Future<Output = Result<T, E>>) -> Result<(Duration, T), E> {
    let begin = Instant::now();
    let answer = request.await?;
    Ok((begin.elapsed(), answer))
}

/// Returns a block of a node that runs [`TAKEN`] pods.
fn half_full(cidr: Cidr) -> Result<Block> {
    let node = AffinityOwner::Host(NODE.to_owned());
    let mut block = Block::new(cidr, &node, OffsetDateTime::now_utc())?;
    for number in 0..TAKEN {
        let handle = HandleId::for_container("bench", &format!("{number:064}"));
        let attributes = [("node", NODE), ("namespace", NAMESPACE), ("pod", POD)];
        let attributes = attributes
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        let request = BlockRequest {
            handle: Some(&handle),
            attributes: &attributes,
            requester: &node,
            check_affinity: true,
        };
        block.assign(1, &request, &Reservations::none())?;
    }
    Ok(block)
}

fn endpoint(number: usize) -> WorkloadEndpoint {
    let spec = WorkloadEndpointSpec {
        container_id: POD.to_owned(),
        ip_networks: vec![format!("10.99.0.{}/32", number % 64)],
        ..WorkloadEndpointSpec::default()
    };
    let mut endpoint = WorkloadEndpoint::new(format!("{NODE}-k8s-{POD}-eth0"), spec);
    endpoint.metadata.namespace = NAMESPACE.to_owned();
    endpoint
}
