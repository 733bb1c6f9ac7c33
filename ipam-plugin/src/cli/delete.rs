//! `delete`: deletes stored objects, and with pools and nodes their dependent objects.

use std::time::Duration;

use clap::Args;
use datastore::Datastore;
use libcalico::api::{
    ClusterInformation, IpPool, IpReservation, IpamConfiguration, Node, ObjectKey,
};
use libcalico::failure::Failure;
use libcalico::ipam::{AffinitySelect, Block};
use libcalico::net::Cidr;
use libcalico::store::{Entry, Kind, Store, StoreError, identifier};
use serde::Serialize;

use super::app::{App, CommandOutcome};
use super::documents::{self, Format};
use super::error::{CliError, block_kept};
use super::kind::ResourceKind;
use super::settings;
use super::store_object::retry_races;
use allocation::affinity::release_pool_affinities;
use allocation::exhausted::ReleaseGuard;
use allocation::node_cleanup::{NodeCleanup, NodeCleanupError, delete_node, endpoints_of_node};
use os::clock::SystemClock;
use os::node_files::NodeFiles;

/// Time for allocations in progress to end after the pool was disabled, as in upstream.
const GRACE: Duration = Duration::from_millis(500);

/// Delete a pool, reservation, the settings, a node or the cluster information
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  calico-ipam delete ippool demo
  calico-ipam delete node node2

A pool is disabled first and its blocks are released; addresses in use stay allocated. With a node, its blocks and
tunnel addresses are released, and its peers (BGPPeer), settings (node.NAME) and host endpoints are deleted. A node with
endpoints is refused without --force, which also releases their addresses and deletes the endpoints.

Exit status: 0; 1 after an error or a refusal; 2 if the arguments are invalid.")]
pub(super) struct DeleteArgs {
    /// Kind of the object
    #[arg(value_name = "KIND")]
    kind: ResourceKind,
    /// Names of the objects
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    /// Delete a node even if it has endpoints
    #[arg(long)]
    force: bool,
}

#[derive(Serialize)]
struct Row<'a> {
    kind: &'static str,
    name: &'a str,
    action: &'static str,
}

pub(super) async fn run(args: &DeleteArgs, app: &mut App<'_>) -> Result<CommandOutcome, CliError> {
    let mut rows = Vec::new();
    for name in &args.names {
        let progress = app.progress("deleting");
        match args.kind {
            ResourceKind::IpPool => delete_pool(name, app).await?,
            ResourceKind::Node => delete_node_and_contents(name, args.force, app).await?,
            ResourceKind::IpamConfiguration => delete_settings(name, app).await?,
            ResourceKind::IpReservation => delete::<IpReservation>(name, app).await?,
            ResourceKind::ClusterInformation => delete::<ClusterInformation>(name, app).await?,
        }
        drop(progress);
        let kind = args.kind.name();
        if app.format == Format::Table {
            app.print_line(format_args!("{kind} {name} deleted"))?;
        }
        rows.push(Row {
            kind,
            name,
            action: "deleted",
        });
    }
    documents::print_document(app.format, app.out, &rows)?;
    Ok(CommandOutcome::Success)
}

async fn delete<K: Kind<Key = ObjectKey>>(name: &str, app: &App<'_>) -> Result<(), CliError> {
    Ok(app
        .store
        .delete::<K>(&ObjectKey::global(name), None)
        .await?)
}

async fn delete_settings(name: &str, app: &mut App<'_>) -> Result<(), CliError> {
    let store = app.store;
    let object = format!("IPAMConfiguration {name}");
    if name != "default" || !retry_races(&object, async || settings::delete(store).await).await? {
        let key = identifier::<IpamConfiguration>(&ObjectKey::global(name));
        return Err(StoreError::NotFound { key }.into());
    }
    app.notice("note: the built-in settings are in force now");
    Ok(())
}

async fn delete_node_and_contents(
    name: &str,
    force: bool,
    app: &mut App<'_>,
) -> Result<(), CliError> {
    let store = app.store;
    let node = store.get::<Node>(&ObjectKey::global(name)).await?;
    match store {
        Datastore::Etcd(_) | Datastore::Local(_) => {}
        // The Node is a view of the Kubernetes node, so the store refuses to delete it, before any
        // address is released.
        Datastore::Kubernetes(_) => return Ok(store.delete::<Node>(&node.key, None).await?),
    }
    let endpoints = endpoints_of_node(store, name).await?;
    if !force && !endpoints.is_empty() {
        let number = endpoints.len();
        return Err(Failure::new(format_args!(
            "node {name} has {number} endpoints (`calico-ipam endpoints --node {name}`)"
        ))
        .way_out("--force deletes them too")
        .into());
    }
    // Notes of failed searches on this node end with the release, as with `release`.
    let _releasing = ReleaseGuard::of_node(&NodeFiles::of_this_node());
    let deleted = delete_node(store, &SystemClock::start(), &node, &endpoints)
        .await
        .map_err(|error| match error {
            NodeCleanupError::Ipam(error) => error.into(),
            NodeCleanupError::BlockKept { node, block, cause } => {
                CliError::from(block_kept(&format!("node {node}"), &block, *cause))
            }
        })?;
    let NodeCleanup {
        addresses,
        endpoints,
        blocks,
        ..
    } = deleted;
    app.notice(format_args!(
        "{addresses} addresses released, {endpoints} endpoints deleted, {blocks} blocks released"
    ));
    Ok(())
}

/// The pool is disabled, its blocks are released, and then the object is deleted (DS-48).
async fn delete_pool(name: &str, app: &mut App<'_>) -> Result<(), CliError> {
    let store = app.store;
    let key = ObjectKey::global(name);
    let pool = retry_races(&format!("IPPool {name}"), async || {
        disable_pool(app, &key).await
    })
    .await?;
    // A pool without a valid range has no blocks.
    if let Ok(range) = pool.value.spec.range() {
        tokio::time::sleep(GRACE).await;
        release_blocks(name, &range, app).await?;
    }
    Ok(store.delete::<IpPool>(&key, None).await?)
}

async fn disable_pool(app: &App<'_>, key: &ObjectKey) -> Result<Entry<IpPool>, CliError> {
    let mut pool = match app.store.get::<IpPool>(key).await {
        // A missing object counts as a lost race, which a retry cannot win.
        Err(error @ StoreError::NotFound { .. }) => {
            return Err(Failure::new(error).into());
        }
        pool => pool?,
    };
    if !pool.value.spec.disabled {
        pool.value.spec.disabled = true;
        pool.revision = app.store.update(key, &pool.value, &pool.revision).await?;
    }
    Ok(pool)
}

async fn release_blocks(name: &str, range: &Cidr, app: &mut App<'_>) -> Result<(), CliError> {
    let owners = AffinitySelect::default();
    let released =
        release_pool_affinities(app.store, &SystemClock::start(), &owners, range, false).await?;
    if let Some((block, cause)) = released.kept.into_iter().next() {
        return Err(block_kept(&format!("IPPool {name}"), &block, cause).into());
    }
    let blocks = app.store.list::<Block>(&Some(range.version())).await?;
    let inside = blocks.iter().filter(|block| range.covers(&block.key));
    let in_use: usize = inside.map(|block| block.value.allocated().count()).sum();
    app.notice(format_args!(
        "{} blocks of IPPool {name} released",
        released.released.len()
    ));
    if in_use > 0 {
        app.notice(format_args!(
            "note: {in_use} addresses of IPPool {name} stay in use until they are released"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use libcalico::api::WorkloadEndpoint;
    use libcalico::ipam::{IpamConfig, IpamConfigKey};
    use serde_json::json;

    use super::*;
    use crate::cli::testing::Shell;

    #[test]
    fn deleted_pool_releases_empty_blocks_and_retains_allocated_addresses() {
        let shell = Shell::with_pool();
        let in_use = shell.allocate("a");
        let ran = shell.run(&["delete", "ippool", "default-ipv4-ippool"]);
        assert_eq!(ran.out, "IPPool default-ipv4-ippool deleted\n");
        assert!(
            ran.notices
                .contains("1 blocks of IPPool default-ipv4-ippool released\nnote: 1 addresses"),
            "{}",
            ran.notices
        );
        assert_eq!(
            shell.stored::<IpPool>(&ObjectKey::global("default-ipv4-ippool")),
            None
        );
        let shown = shell.json(&["show", "--ip", &in_use]);
        assert_eq!(
            (&shown["state"], &shown["affinity"]),
            (&json!("inUse"), &json!(null))
        );
    }

    #[test]
    fn delete_node_requires_force_and_releases_endpoint_addresses() {
        let shell = Shell::with_pool();
        let (used, tunnel) = (shell.allocate("a"), shell.allocate("b"));
        shell.endpoint("a", &used);
        let error = shell.error(&["delete", "node", "node1"]);
        assert!(
            error.starts_with("node node1 has 1 endpoints") && error.contains("--force"),
            "{error}"
        );
        assert!(shell.stored::<Node>(&ObjectKey::global("node1")).is_some());

        let ran = shell.run(&["delete", "node", "node1", "--force"]);
        assert_eq!(
            ran.notices,
            "1 addresses released, 1 endpoints deleted, 1 blocks released\n"
        );
        assert_eq!(shell.stored::<Node>(&ObjectKey::global("node1")), None);
        let endpoint = ObjectKey::namespaced("default", "node1-k8s-a-eth0");
        assert_eq!(shell.stored::<WorkloadEndpoint>(&endpoint), None);
        assert_eq!(shell.json(&["show", "--ip", &used])["state"], "free");
        assert_eq!(
            shell.json(&["show", "--ip", &tunnel])["state"],
            "inUse",
            "it carries no type: a pod's"
        );
    }

    #[test]
    fn delete_ipamconfig_removes_both_keys() {
        let shell = Shell::new();
        shell.apply(&json!({
            "apiVersion": "projectcalico.org/v3", "kind": "IPAMConfiguration",
            "metadata": {"name": "default"},
            "spec": {"strictAffinity": true},
        }));
        assert!(
            shell
                .run(&["delete", "ipamconfig", "default"])
                .notices
                .contains("built-in")
        );
        assert_eq!(shell.stored::<IpamConfig>(&IpamConfigKey), None);
        assert_eq!(
            shell.stored::<IpamConfiguration>(&ObjectKey::global("default")),
            None
        );
        assert!(
            shell
                .error(&["delete", "ipamconfig", "default"])
                .contains("resource does not exist")
        );
        assert!(
            shell
                .error(&["delete", "ipamconfig", "other"])
                .contains("IPAMConfiguration(other)")
        );
    }

    #[test]
    fn reservations_are_deleted_and_missing_objects_reported() {
        let shell = Shell::new();
        shell.apply(&json!({
            "apiVersion": "projectcalico.org/v3", "kind": "IPReservation",
            "metadata": {"name": "r"}, "spec": {},
        }));
        assert_eq!(
            shell.ok(&["delete", "ipreservation", "r"]),
            "IPReservation r deleted\n"
        );
        for (kind, key) in [
            ("ipreservation", "IPReservation(r)"),
            ("pool", "IPPool(r)"),
            ("node", "Node(r)"),
        ] {
            assert_eq!(
                shell.error(&["delete", kind, "r"]),
                format!("resource does not exist: {key}")
            );
        }
    }
}
