//! Creates objects that Calico needs, if they are missing.

use libcalico::api::{
    BUILT_IN_TIERS, ClusterInformation, ClusterInformationSpec, IpPool, Node, Object, ObjectKey,
    ObjectSelect, Spec, Tier, TierSpec,
};
use libcalico::ipam::{IpamConfig, IpamConfigKey};
use libcalico::store::{Entry, Kind, ReadBatch, Store, StoreError, Write};
use libcalico::validation::{PoolContext, admit_ip_pool};
use libcalico::validation_error::ValidationError;
use serde_json::{Map, Value};
use time::OffsetDateTime;
use uuid::Uuid;

/// The cluster type by which calicoctl shows that an API server is the datastore (DS-52).
pub const CLUSTER_TYPE_OF_API_SERVER: &str = "kdd";
const DEFAULT_NAME: &str = "default";
/// Maximum number of attempts to initialize, because other processes may initialize at the same
/// time.
const ATTEMPTS: usize = 10;

/// The objects that [`ensure_initialized`] reads, and creates if they are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InitialObjects {
    /// The ClusterInformation and the built-in tiers. An API server gets a request for each of
    /// them.
    All,
    /// Only the ClusterInformation.
    ClusterInformation,
}

/// Creates the ClusterInformation and the built-in tiers, as far as `objects` names them and they
/// are missing. Adds missing fields to an existing ClusterInformation, and to its cluster type the
/// missing items of the comma-separated list `cluster_type`.
///
/// A ClusterInformation without `datastoreReady` becomes ready (DS-52). With
/// `datastoreReady: false`, missing tiers are not created, because the operator who locked the
/// datastore expects no new objects.
pub async fn ensure_initialized(
    store: &impl Store,
    cluster_type: &str,
    objects: InitialObjects,
) -> Result<(), StoreError> {
    let mut attempts = 1;
    loop {
        match try_initialize(store, cluster_type, objects).await {
            Err(error) if error.is_race() && attempts < ATTEMPTS => attempts += 1,
            result => return result,
        }
    }
}

/// An error of [`ensure_first_pool`].
#[derive(Debug, thiserror::Error)]
pub enum FirstPoolError {
    /// The datastore failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The pool is invalid.
    #[error("IPPool {name}: {cause}")]
    Invalid {
        /// The name of the pool.
        name: String,
        /// The validation error.
        cause: ValidationError,
    },
}

/// Creates the ClusterInformation if it is missing, and never changes an existing one. Returns true
/// if it was created.
pub async fn ensure_cluster_information(
    store: &impl Store,
    cluster_type: &str,
) -> Result<bool, StoreError> {
    create_if_missing(store, cluster_information(cluster_type)).await
}

/// Returns the built-in tiers, as [`ensure_initialized`] creates them.
pub fn built_in_tiers() -> [Tier; 3] {
    BUILT_IN_TIERS.map(tier)
}

/// Creates `node` if no node has its name. Returns true if the object was created. Not for the API
/// server, where the kubelet creates nodes.
pub async fn ensure_node(store: &impl Store, node: Node) -> Result<bool, StoreError> {
    create_if_missing(store, node).await
}

async fn create_if_missing<S: Spec>(
    store: &impl Store,
    object: Object<S>,
) -> Result<bool, StoreError> {
    let mut batch = ReadBatch::new();
    let ticket = batch.get::<Object<S>>(&object.key());
    if store.read(&batch).await?.get(&ticket)?.is_some() {
        return Ok(false);
    }
    is_created(
        store
            .write_one(create(object, OffsetDateTime::now_utc())?)
            .await,
    )
}

/// Creates `pool` if there is no pool of its address family. Returns true if the pool was created.
pub async fn ensure_first_pool(store: &impl Store, pool: IpPool) -> Result<bool, FirstPoolError> {
    let invalid = |cause| FirstPoolError::Invalid {
        name: pool.metadata.name.clone(),
        cause,
    };
    let admitted = admit_ip_pool(pool.clone(), &PoolContext::default()).map_err(invalid)?;
    let family = |pool: &IpPool| pool.spec.range().ok().map(|range| range.version());
    let pools = store.list::<IpPool>(&ObjectSelect::default()).await?;
    if pools
        .iter()
        .any(|stored| family(&stored.value) == family(&admitted))
    {
        return Ok(false);
    }
    Ok(is_created(
        store
            .write_one(create(admitted, OffsetDateTime::now_utc())?)
            .await,
    )?)
}

/// Creates the settings of IPAM if there are none. Returns the existing settings, or `None` if this
/// call created them.
pub async fn ensure_ipam_config(
    store: &impl Store,
    config: &IpamConfig,
) -> Result<Option<IpamConfig>, StoreError> {
    let mut batch = ReadBatch::new();
    let ticket = batch.get::<IpamConfig>(&IpamConfigKey);
    if let Some(stored) = store.read(&batch).await?.get(&ticket)? {
        return Ok(Some(stored.value));
    }
    // Settings that another process has created since the read are taken to equal `config`.
    let is_created = is_created(store.create(&IpamConfigKey, config).await)?;
    Ok((!is_created).then(|| config.clone()))
}

/// Returns true if the write created the object, and false if an object with its key exists.
fn is_created<T>(created: Result<T, StoreError>) -> Result<bool, StoreError> {
    match created {
        Ok(_) => Ok(true),
        Err(StoreError::AlreadyExists { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

async fn try_initialize(
    store: &impl Store,
    cluster_type: &str,
    objects: InitialObjects,
) -> Result<(), StoreError> {
    let mut batch = ReadBatch::new();
    let cluster = batch.get::<ClusterInformation>(&ObjectKey::global(DEFAULT_NAME));
    let tiers = match objects {
        InitialObjects::All => &BUILT_IN_TIERS[..],
        InitialObjects::ClusterInformation => &[],
    };
    let tiers: Vec<_> = tiers
        .iter()
        .map(|fields| (batch.get::<Tier>(&ObjectKey::global(fields.0)), *fields))
        .collect();
    let answers = store.read(&batch).await?;

    let now = OffsetDateTime::now_utc();
    let cluster = answers.get(&cluster)?;
    let is_locked = cluster
        .as_ref()
        .is_some_and(|stored| stored.value.spec.datastore_ready == Some(false));
    let mut writes = Vec::new();
    match cluster {
        None => writes.push(create(cluster_information(cluster_type), now)?),
        Some(stored) => writes.extend(add_missing_fields(stored, cluster_type)?),
    }
    for (ticket, fields) in tiers {
        if answers.get(&ticket)?.is_none() && !is_locked {
            writes.push(create(tier(fields), now)?);
        }
    }
    if writes.is_empty() {
        return Ok(());
    }
    store.write(&writes).await.map(|_| ()).map_err(|e| e.cause)
}

#[cfg(feature = "local")]
pub(crate) fn initial_objects() -> Result<Vec<Write>, StoreError> {
    let now = OffsetDateTime::now_utc();
    let tiers = BUILT_IN_TIERS
        .into_iter()
        .map(|fields| create(tier(fields), now));
    std::iter::once(create(cluster_information(""), now))
        .chain(tiers)
        .collect()
}

/// Returns true if `path` is the path of an object that [`ensure_initialized`] creates.
pub(crate) fn is_initial(path: &str) -> bool {
    ClusterInformation::parse_path(path).is_some_and(|key| key.name == DEFAULT_NAME)
        || Tier::parse_path(path)
            .is_some_and(|key| BUILT_IN_TIERS.iter().any(|(name, _, _)| *name == key.name))
}

/// Returns the update that adds missing fields and items of `cluster_type`, or `None` if nothing is
/// missing.
fn add_missing_fields(
    stored: Entry<ClusterInformation>,
    cluster_type: &str,
) -> Result<Option<Write>, StoreError> {
    let mut value = stored.value.clone();
    value.spec.datastore_ready.get_or_insert(true);
    if value.spec.cluster_guid.is_empty() {
        value.spec.cluster_guid = new_guid();
    }
    value.spec.cluster_type = merge_lists(&stored.value.spec.cluster_type, cluster_type);
    if value == stored.value {
        return Ok(None);
    }
    Write::update(&stored.key, &value, &stored.revision).map(Some)
}

/// Returns the comma-separated list `stored`, followed by the items of `more` that `stored` lacks.
fn merge_lists(stored: &str, more: &str) -> String {
    let mut items: Vec<&str> = stored.split(',').filter(|item| !item.is_empty()).collect();
    let missing: Vec<&str> = more
        .split(',')
        .filter(|item| !item.is_empty() && !items.contains(item))
        .collect();
    if missing.is_empty() {
        // A list that lacks nothing stays as it is, even with empty items, so that no write is
        // necessary.
        return stored.to_owned();
    }
    items.extend(missing);
    items.join(",")
}

fn cluster_information(cluster_type: &str) -> ClusterInformation {
    let spec = ClusterInformationSpec {
        cluster_guid: new_guid(),
        cluster_type: cluster_type.into(),
        datastore_ready: Some(true),
        ..ClusterInformationSpec::default()
    };
    ClusterInformation::new(DEFAULT_NAME, spec)
}

fn tier((name, action, order): (&str, &str, u32)) -> Tier {
    let spec = TierSpec {
        order: Some(order.into()),
        default_action: Some(action.into()),
        ..TierSpec::default()
    };
    // Upstream always writes a tier's status, even if it is empty (DS-131).
    Tier {
        status: Some(Value::Object(Map::new())),
        ..Tier::new(name, spec)
    }
}

/// Returns 32 lower-case hexadecimal digits, which is upstream's format of a cluster GUID.
fn new_guid() -> String {
    Uuid::new_v4().simple().to_string()
}

fn create<S: Spec>(mut object: Object<S>, now: OffsetDateTime) -> Result<Write, StoreError> {
    object.metadata.stamp(Uuid::new_v4(), now);
    Write::create(&object.key(), &object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_type_union_adds_missing_values_and_removes_none() {
        for (stored, more, expected) in [
            ("", "k8s,kdd", "k8s,kdd"),
            ("kdd", "k8s,kdd", "kdd,k8s"),
            ("typha,k8s,bgp,kdd", "k8s,kdd", "typha,k8s,bgp,kdd"),
            ("k8s,", "k8s", "k8s,"),
            ("k8s,", "bgp", "k8s,bgp"),
            ("kdd", "", "kdd"),
        ] {
            assert_eq!(merge_lists(stored, more), expected, "{stored} and {more}");
        }
    }
}
