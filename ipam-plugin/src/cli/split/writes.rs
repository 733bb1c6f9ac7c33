//! [`replace`]: the writes of a split.
//!
//! A store with transactions replaces the pool by its parts at once. On an API server, the pool is
//! disabled, the parts are created, and the pool is deleted. In `projectcalico.org/v3`,
//! kube-controllers releases the blocks of a deleted pool with its finalizer. The write that
//! disables the pool therefore removes the finalizer, and kube-controllers adds none to a disabled
//! pool.

use libcalico::api::{IP_POOL_FINALIZER, IpPool, ObjectKey, Unknown};
use libcalico::failure::Failure;
use libcalico::store::{Entry, Store, StoreError, Write, WriteModel, identifier};

use super::plan::Planned;
use crate::cli::error::CliError;
use crate::cli::store_object;
use allocation::reads::find;

/// The maximum number of writes in one transaction, below etcd's 128.
const MAX_TRANSACTION: usize = 100;
/// The maximum number of attempts to delete a pool that other programs change meanwhile.
const ATTEMPTS: usize = 10;

/// Replaces the pool by its parts. A lost race before the first write is an error of the store.
pub(super) async fn replace<S: Store>(store: &S, planned: &Planned) -> Result<(), CliError> {
    let creates: Vec<Write> = planned
        .missing
        .iter()
        .map(create)
        .collect::<Result<_, _>>()?;
    match store.write_model() {
        WriteModel::Transactional if creates.len() < MAX_TRANSACTION => {
            let pool = &planned.pool;
            let mut writes = vec![Write::delete::<IpPool>(&pool.key, Some(&pool.revision))];
            writes.extend(creates);
            store.write(&writes).await.map_err(|error| error.cause)?;
            Ok(())
        }
        WriteModel::Transactional | WriteModel::PerObject => {
            replace_in_steps(store, planned, creates).await
        }
    }
}

fn create(part: &IpPool) -> Result<Write, CliError> {
    let (_, write) = store_object::plan(None, part.clone(), |spec| &mut spec.unknown)?;
    let missing = || {
        StoreError::Other(format!(
            "no write for {}",
            identifier::<IpPool>(&part.key())
        ))
    };
    Ok(write.ok_or_else(missing)?)
}

async fn replace_in_steps<S: Store>(
    store: &S,
    planned: &Planned,
    creates: Vec<Write>,
) -> Result<(), CliError> {
    let pool = &planned.pool;
    let failed = |cause: StoreError, state: String| {
        let failure = Failure::new(format_args!("splitting IPPool {} failed", pool.key.name));
        CliError::from(failure.because(cause).way_out(state))
    };
    let changed = retired(&pool.value);
    if let Some(changed) = &changed {
        match store.update(&pool.key, changed, &pool.revision).await {
            Err(cause) if cause.has_unknown_outcome() => {
                let state =
                    "the pool may be disabled: run the command again, which completes the split";
                return Err(failed(cause, state.into()));
            }
            outcome => _ = outcome?,
        }
    }
    let mut created = Vec::new();
    let written = match create_all(store, &planned.missing, creates, &mut created).await {
        Ok(()) => withdraw(store, &pool.value).await,
        refused => refused,
    };
    let Err(cause) = written else { return Ok(()) };
    let state = if cause.has_unknown_outcome() {
        "the last write may have taken effect: while the pool exists, run the command again, which \
         completes the split"
            .to_owned()
    } else {
        undo(store, pool, changed.is_some(), &created).await
    };
    Err(failed(cause, state))
}

/// Adds the parts that this run creates to `created`, also before an error. Another run of the same
/// split may create parts, too.
async fn create_all<S: Store>(
    store: &S,
    missing: &[IpPool],
    creates: Vec<Write>,
    created: &mut Vec<IpPool>,
) -> Result<(), StoreError> {
    for (part, write) in missing.iter().zip(creates) {
        match store.write_one(write).await {
            Ok(_) => created.push(part.clone()),
            Err(error @ StoreError::AlreadyExists { .. }) => {
                if store.get::<IpPool>(&part.key()).await?.value.spec != part.spec {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Deletes the parts that this split created, and puts the pool back into service if this split
/// disabled it. Returns a description of the state.
async fn undo<S: Store>(
    store: &S,
    pool: &Entry<IpPool>,
    was_changed: bool,
    created: &[IpPool],
) -> String {
    match try_undo(store, pool, was_changed, created).await {
        Ok(()) => "the pools are as before this command".to_owned(),
        Err(error) => format!(
            "the undoing failed, too: {error}; the pool may be disabled, and some of its parts may \
             exist: run the command again, which completes the split"
        ),
    }
}

async fn try_undo<S: Store>(
    store: &S,
    pool: &Entry<IpPool>,
    was_changed: bool,
    created: &[IpPool],
) -> Result<(), StoreError> {
    for part in created {
        withdraw(store, part).await?;
    }
    if was_changed {
        restore(store, pool).await
    } else {
        Ok(())
    }
}

async fn restore<S: Store>(store: &S, pool: &Entry<IpPool>) -> Result<(), StoreError> {
    let Some(now) = find::<IpPool>(store, &pool.key).await? else {
        return Err(StoreError::NotFound {
            key: identifier::<IpPool>(&pool.key),
        });
    };
    require_same(&now.value, &pool.value)?;
    let mut restored = now.value;
    restored.spec.disabled = pool.value.spec.disabled;
    restored
        .metadata
        .unknown
        .clone_from(&pool.value.metadata.unknown);
    store
        .update(&pool.key, &restored, &now.revision)
        .await
        .map(drop)
}

/// Deletes a pool without the release of its blocks. kube-controllers may write conditions and
/// finalizers meanwhile.
async fn withdraw<S: Store>(store: &S, expected: &IpPool) -> Result<(), StoreError> {
    let key = expected.key();
    for _ in 0..ATTEMPTS {
        match withdraw_once(store, &key, expected).await {
            Err(StoreError::Conflict { .. }) => {}
            // Another process has deleted the pool.
            Err(StoreError::NotFound { .. }) => return Ok(()),
            outcome => return outcome,
        }
    }
    Err(StoreError::Conflict {
        key: identifier::<IpPool>(&key),
    })
}

async fn withdraw_once<S: Store>(
    store: &S,
    key: &ObjectKey,
    expected: &IpPool,
) -> Result<(), StoreError> {
    let Entry {
        value,
        mut revision,
        ..
    } = store.get::<IpPool>(key).await?;
    require_same(&value, expected)?;
    if let Some(changed) = retired(&value) {
        revision = store.update(key, &changed, &revision).await?;
    }
    store.delete::<IpPool>(key, Some(&revision)).await
}

/// Returns the pool disabled and without the finalizer, or `None` if the pool already is.
fn retired(pool: &IpPool) -> Option<IpPool> {
    let mut changed = pool.clone();
    changed.spec.disabled = true;
    remove_finalizer(&mut changed.metadata.unknown);
    (changed != *pool).then_some(changed)
}

fn remove_finalizer(metadata: &mut Unknown) {
    const FINALIZERS: &str = "finalizers";
    let Some(finalizers) = metadata
        .get_mut(FINALIZERS)
        .and_then(|listed| listed.as_array_mut())
    else {
        return;
    };
    finalizers.retain(|finalizer| finalizer != IP_POOL_FINALIZER);
    if finalizers.is_empty() {
        metadata.remove(FINALIZERS);
    }
}

/// Returns an error if the spec of a pool, apart from `disabled`, is not the expected one.
fn require_same(pool: &IpPool, expected: &IpPool) -> Result<(), StoreError> {
    let mut spec = pool.spec.clone();
    spec.disabled = expected.spec.disabled;
    if spec == expected.spec {
        return Ok(());
    }
    Err(StoreError::Other(format!(
        "another process changed {} meanwhile",
        identifier::<IpPool>(&pool.key())
    )))
}
