//! `migrate lock` and `migrate unlock`: set `datastoreReady` in ClusterInformation. While it is
//! false, the plugins and kube-controllers change no addresses, endpoints or policies. The target
//! of an import has a mark besides, until the import is complete.

use clap::Args;
use datastore::bootstrap::CLUSTER_TYPE_OF_API_SERVER;
use datastore::{ClusterStore as _, Datastore};
use libcalico::api::{ClusterInformation, ClusterInformationSpec, ObjectKey};
use libcalico::failure::Failure;
use libcalico::migration::{IMPORTING, V1_LOCKED_BY};
use libcalico::store::{Store, StoreError};
use serde::Serialize;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::cli::app::{App, CommandOutcome};
use crate::cli::documents;
use crate::cli::error::CliError;
use crate::cli::store_object::retry_races;
use allocation::reads::find;

const NAME: &str = "default";

/// Lock the datastore: no program assigns or releases addresses until it is unlocked
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  calico-ipam migrate lock --etcd-endpoints http://127.0.0.1:2379

No pod starts or ends on the nodes of the cluster while the datastore is locked.

Exit status: 0; 1 after an error; 2 if the arguments are invalid.")]
pub(super) struct LockArgs {}

/// Unlock the datastore
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  calico-ipam migrate unlock --kubeconfig ~/.kube/config

An API server with an incomplete import is not unlocked.

Exit status: 0; 1 after an error or a refusal; 2 if the arguments are invalid.")]
pub(super) struct UnlockArgs {
    /// Unlock despite an incomplete import or migration: pods may then get addresses that other
    /// pods have
    #[arg(long)]
    force: bool,
}

/// The document of both commands.
#[derive(Serialize)]
struct LockState {
    locked: bool,
    /// False if the datastore was in this state before.
    changed: bool,
}

pub(super) async fn lock(app: &mut App<'_>) -> Result<CommandOutcome, CliError> {
    refuse_during_migration(app.store).await?;
    app.store.ensure_initialized().await?;
    let changed = change(app.store, &app.datastore, |information| {
        information.spec.datastore_ready = Some(false);
        Ok(())
    });
    let changed = changed.await?;
    print(false, changed, app)
}

pub(super) async fn unlock(
    args: &UnlockArgs,
    app: &mut App<'_>,
) -> Result<CommandOutcome, CliError> {
    if !args.force {
        refuse_during_migration(app.store).await?;
    }
    let changed = change(app.store, &app.datastore, |information| {
        if information.metadata.annotations.remove(IMPORTING).is_some() && !args.force {
            return Err(import_incomplete().into());
        }
        information.spec.datastore_ready = Some(true);
        Ok(())
    });
    let changed = changed.await?;
    print(true, changed, app)
}

fn print(is_ready: bool, changed: bool, app: &mut App<'_>) -> Result<CommandOutcome, CliError> {
    if !documents::print_document(
        app.format,
        app.out,
        &LockState {
            locked: !is_ready,
            changed,
        },
    )? {
        // Upstream's text.
        app.print_line(if is_ready {
            "Datastore unlocked."
        } else {
            "Datastore locked."
        })?;
    }
    Ok(CommandOutcome::Success)
}

/// Locks the target of an import, with the identity of the source and the mark of an incomplete
/// import. A new ClusterInformation is locked from its creation on. Returns true if the target was
/// not locked before.
pub(super) async fn lock_target(
    store: &Datastore,
    name: &str,
    source: &ClusterInformationSpec,
) -> Result<bool, CliError> {
    let identify = |information: &mut ClusterInformation| {
        let guid = &source.cluster_guid;
        let former = information
            .metadata
            .annotations
            .insert(IMPORTING.to_owned(), guid.clone());
        if let Some(other) = former.filter(|former| former != guid) {
            return Err(Failure::new(format_args!(
                "an import of the cluster with clusterGUID {other} is incomplete"
            ))
            .way_out("complete it, or end it with `calico-ipam migrate unlock --force`")
            .into());
        }
        let spec = &mut information.spec;
        spec.datastore_ready = Some(false);
        spec.cluster_guid.clone_from(guid);
        spec.calico_version.clone_from(&source.calico_version);
        Ok(())
    };
    refuse_during_migration(store).await?;
    let key = ObjectKey::global(NAME);
    let was_ready = match find::<ClusterInformation>(store, &key).await? {
        Some(found) => found.value.spec.datastore_ready != Some(false),
        None => {
            let cluster_type = CLUSTER_TYPE_OF_API_SERVER.to_owned();
            let mut new = ClusterInformation::new(
                NAME,
                ClusterInformationSpec {
                    cluster_type,
                    ..ClusterInformationSpec::default()
                },
            );
            new.metadata
                .stamp(Uuid::new_v4(), OffsetDateTime::now_utc());
            identify(&mut new)?;
            match store.create(&key, &new).await {
                Ok(_) => return Ok(true),
                // Another process created the object first.
                Err(StoreError::AlreadyExists { .. }) => true,
                Err(error) => return Err(error.into()),
            }
        }
    };
    change(store, name, identify).await?;
    Ok(was_ready)
}

/// Removes the mark of an incomplete import.
pub(super) async fn complete_import(store: &Datastore, name: &str) -> Result<(), CliError> {
    let unmarked = change(store, name, |information| {
        information.metadata.annotations.remove(IMPORTING);
        Ok(())
    });
    unmarked.await.map(drop)
}

/// During a migration to v3, the lock of v3 shows whether the copies are complete.
async fn refuse_during_migration(store: &Datastore) -> Result<(), CliError> {
    if store.has_marked_v1().await? {
        Err(migrates_to_v3().into())
    } else {
        Ok(())
    }
}

fn migrates_to_v3() -> Failure {
    Failure::new(
        "a migration to projectcalico.org/v3 is under way, which locks and unlocks the datastore",
    )
    .way_out(
        "`kubectl get datastoremigrations` shows its state, and `kubectl delete datastoremigration \
         v1-to-v3` ends it",
    )
}

fn import_incomplete() -> Failure {
    Failure::new(
        "an import into this datastore is incomplete, so that pods would get addresses that other \
         pods have",
    )
    .way_out(
        "run `calico-ipam migrate import` or `calico-ipam import` again, which continues, or \
         unlock with --force",
    )
}

pub(super) fn no_cluster_information(datastore: &str) -> Failure {
    Failure::new(format_args!(
        "datastore {datastore} has no ClusterInformation"
    ))
    .way_out("name the datastore of the cluster")
}

/// Changes ClusterInformation. Returns false if the change is none. `datastore` is the name in
/// errors.
async fn change(
    store: &Datastore,
    datastore: &str,
    set: impl Fn(&mut ClusterInformation) -> Result<(), CliError>,
) -> Result<bool, CliError> {
    retry_races("ClusterInformation default", async || {
        let Some(mut found) = find::<ClusterInformation>(store, &ObjectKey::global(NAME)).await?
        else {
            return Err(no_cluster_information(datastore).into());
        };
        if found.value.metadata.annotations.contains_key(V1_LOCKED_BY) {
            return Err(migrates_to_v3().into());
        }
        let before = found.value.clone();
        set(&mut found.value)?;
        if found.value == before {
            return Ok(false);
        }
        store
            .update(&found.key, &found.value, &found.revision)
            .await?;
        Ok(true)
    })
    .await
}
