//! Stores an object by compare-and-swap, with the semantics of `apply`.

use datastore::Datastore;
use libcalico::api::{Object, Spec, Unknown};
use libcalico::failure::Failure;
use libcalico::store::{Entry, Store, StoreError, Write, identifier};
use serde::Serialize;
use time::OffsetDateTime;
use uuid::Uuid;

use super::error::{CliError, contended};

/// Maximum number of lost races.
const ATTEMPTS: usize = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Applied {
    Created,
    Configured,
    Unchanged,
}

impl std::fmt::Display for Applied {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Applied::Created => "created",
            Applied::Configured => "configured",
            Applied::Unchanged => "unchanged",
        })
    }
}

/// Runs `attempt`, which reads and writes the object called `name`, again after a lost race,
/// [`ATTEMPTS`] times at most.
pub(super) async fn retry_races<T>(
    name: &str,
    attempt: impl AsyncFn() -> Result<T, CliError>,
) -> Result<T, CliError> {
    for _ in 0..ATTEMPTS {
        match attempt().await {
            Err(CliError::Store(error)) if error.is_race() => {}
            outcome => return outcome,
        }
    }
    Err(contended(name).into())
}

/// Returns the write that stores `wanted`, if one is necessary. Fails if `wanted` names another
/// revision than that of the stored object.
pub(super) fn plan<S: Spec>(
    previous: Option<Entry<Object<S>>>,
    wanted: Object<S>,
    unknown_of: fn(&mut S) -> &mut Unknown,
) -> Result<(Applied, Option<Write>), Failure> {
    let key = wanted.key();
    let Some(previous) = previous else {
        let mut new = wanted;
        new.metadata.uid.clear();
        new.metadata.creation_timestamp = None;
        new.metadata
            .stamp(Uuid::new_v4(), OffsetDateTime::now_utc());
        return Ok((Applied::Created, Some(Write::create(&key, &new)?)));
    };
    let given = &wanted.metadata.resource_version;
    if !given.is_empty() && *given != previous.revision.0 {
        let (object, stored) = (identifier::<Object<S>>(&key), previous.revision.to_string());
        return Err(Failure::new(format_args!(
            "{object} changed since it was read: the manifest has resourceVersion {given}, stored \
             is {stored}"
        ))
        .way_out("get it again, or remove metadata.resourceVersion to replace the stored object"));
    }
    let merged = merge(&previous.value, wanted, unknown_of);
    if merged == previous.value {
        return Ok((Applied::Unchanged, None));
    }
    Ok((
        Applied::Configured,
        Some(Write::update(&key, &merged, &previous.revision)?),
    ))
}

pub(super) async fn write_planned(
    store: &Datastore,
    plan: (Applied, Option<Write>),
) -> Result<Applied, StoreError> {
    let (applied, write) = plan;
    if let Some(write) = write {
        store.write_one(write).await?;
    }
    Ok(applied)
}

/// The fields that users write come from `wanted`. Fields of servers and of newer versions stay.
fn merge<S: Spec>(
    previous: &Object<S>,
    wanted: Object<S>,
    unknown_of: fn(&mut S) -> &mut Unknown,
) -> Object<S> {
    let mut merged = wanted;
    let (old, meta) = (&previous.metadata, &mut merged.metadata);
    meta.uid.clone_from(&old.uid);
    meta.resource_version.clone_from(&old.resource_version);
    meta.creation_timestamp.clone_from(&old.creation_timestamp);
    meta.deletion_timestamp.clone_from(&old.deletion_timestamp);
    keep(&mut meta.unknown, &old.unknown);
    keep(&mut merged.unknown, &previous.unknown);
    let mut old_spec = previous.spec.clone();
    keep(unknown_of(&mut merged.spec), unknown_of(&mut old_spec));
    merged.status = previous.status.clone().or(merged.status);
    (merged.kind, merged.api_version) = (previous.kind.clone(), previous.api_version.clone());
    merged
}

fn keep(new: &mut Unknown, old: &Unknown) {
    for (key, value) in old {
        new.entry(key.clone()).or_insert_with(|| value.clone());
    }
}
