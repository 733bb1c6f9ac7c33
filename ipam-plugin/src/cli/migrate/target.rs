//! [`Target`]: the objects that an API server has before an import.

use std::collections::{BTreeMap, BTreeSet};

use datastore::Kubernetes;
use libcalico::api::{ClusterInformation, ObjectKey};
use libcalico::ipam::{AffinitySelect, Block, BlockAffinity, Handle, IpamConfig};
use libcalico::kubernetes::Namespace;
use libcalico::migration::IMPORTING;
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
    pub(super) former_import: FormerImport,
}

/// An import before this one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum FormerImport {
    #[default]
    None,
    /// An incomplete import of the same cluster.
    Incomplete,
    /// A complete import of the same cluster, after which the target was unlocked.
    Unlocked,
    /// An incomplete import of another cluster, with this GUID.
    OfOther(String),
}

impl FormerImport {
    /// `guid` is that of the cluster in the file.
    pub(super) fn of(information: &ClusterInformation, guid: &str) -> Self {
        match information.metadata.annotations.get(IMPORTING) {
            Some(other) if other != guid => FormerImport::OfOther(other.clone()),
            Some(_) => FormerImport::Incomplete,
            None if information.spec.datastore_ready == Some(true)
                && information.spec.cluster_guid == guid =>
            {
                FormerImport::Unlocked
            }
            None => FormerImport::None,
        }
    }
}

impl Target {
    /// Reads the objects of `kinds`. `guid` is that of the cluster in the file.
    pub(super) async fn read(
        store: &Kubernetes,
        kinds: &BTreeSet<&'static str>,
        guid: &str,
    ) -> Result<Target, StoreError> {
        let listed: Vec<&'static str> = kinds.iter().copied().collect();
        let unserved = store.unserved_kinds(&listed).await?;
        let mut batch = ReadBatch::new();
        let information = batch.get::<ClusterInformation>(&ObjectKey::global("default"));
        let namespaces = batch.list_keys::<Namespace>(&());
        let mut tickets = vec![
            batch.list_pairs(Block::KIND, Block::prefix(&None)),
            batch.list_pairs(
                BlockAffinity::KIND,
                BlockAffinity::prefix(&AffinitySelect::default()),
            ),
            batch.list_pairs(BlockAffinity::KIND, VIRTUAL_AFFINITIES),
            batch.list_pairs(Handle::KIND, Handle::prefix(&())),
            batch.list_pairs(IpamConfig::KIND, IpamConfig::prefix(&())),
        ];
        for kind in KINDS
            .iter()
            .filter(|kind| kinds.contains(kind.kind) && !unserved.contains(&kind.kind))
        {
            tickets.push(batch.list_pairs(kind.kind, kind.prefix()));
        }
        let answers = store.read(&batch).await?;
        let information = answers.get(&information)?;
        let entries = tickets.iter().flat_map(|ticket| answers.pairs(ticket));
        Ok(Target {
            entries: entries
                .map(|entry| (entry.path.clone(), entry.clone()))
                .collect(),
            namespaces: answers
                .listed_keys(&namespaces)
                .map(|key| key.name)
                .collect(),
            unserved,
            former_import: information
                .map(|found| FormerImport::of(&found.value, guid))
                .unwrap_or_default(),
        })
    }
}
