//! [`Target`]: the objects that an API server has before an import.

use std::collections::{BTreeMap, BTreeSet};

use datastore::Kubernetes;
use libcalico::ipam::{AffinitySelect, Block, BlockAffinity, Handle, IpamConfig};
use libcalico::kubernetes::Namespace;
use libcalico::migration::calicoctl_file::KINDS;
use libcalico::store::{Kind, RawEntry, ReadBatch, Store, StoreError};

/// The beginning of the paths of affinities of owners that are no nodes.
const VIRTUAL_AFFINITIES: &str = "/calico/ipam/v2/virtual/";

/// The state of an API server.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Target {
    /// By path, the objects of the kinds in the file, and all objects of address management.
    pub(super) entries: BTreeMap<String, RawEntry>,
    pub(super) namespaces: BTreeSet<String>,
    /// The kinds of the file that the API server does not serve.
    pub(super) unserved: Vec<&'static str>,
}

impl Target {
    /// Reads the objects of `kinds`.
    pub(super) async fn read(store: &Kubernetes, kinds: &BTreeSet<&'static str>) -> Result<Target, StoreError> {
        let listed: Vec<&'static str> = kinds.iter().copied().collect();
        let unserved = store.unserved_kinds(&listed).await?;
        let mut batch = ReadBatch::new();
        let namespaces = batch.list_keys::<Namespace>(&());
        let mut tickets = vec![
            batch.list_pairs(Block::KIND, Block::prefix(&None)),
            batch.list_pairs(BlockAffinity::KIND, BlockAffinity::prefix(&AffinitySelect::default())),
            batch.list_pairs(BlockAffinity::KIND, VIRTUAL_AFFINITIES),
            batch.list_pairs(Handle::KIND, Handle::prefix(&())),
            batch.list_pairs(IpamConfig::KIND, IpamConfig::prefix(&())),
        ];
        for kind in KINDS.iter().filter(|kind| kinds.contains(kind.kind) && !unserved.contains(&kind.kind)) {
            tickets.push(batch.list_pairs(kind.kind, kind.prefix()));
        }
        let answers = store.read(&batch).await?;
        let entries = tickets.iter().flat_map(|ticket| answers.pairs(ticket));
        Ok(Target {
            entries: entries.map(|entry| (entry.path.clone(), entry.clone())).collect(),
            namespaces: answers.listed_keys(&namespaces).map(|key| key.name).collect(),
            unserved,
        })
    }
}
