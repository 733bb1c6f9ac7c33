//! `delete`: deletes stored objects, and with pools and nodes their dependent objects.

mod node;
mod pool;

use clap::Args;
use libcalico::api::{ClusterInformation, IpReservation, IpamConfiguration, ObjectKey};
use libcalico::store::{Kind, Store, StoreError, identifier};

use super::error::CliError;
use super::kind::ResourceKind;
use super::output::Format;
use super::session::{Outcome, Session};
use super::settings;
use super::store_object::until_won;

/// Delete a pool, reservation, the settings, a node or the cluster information
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  calico-ipam delete ippool demo
  calico-ipam delete node node2

A pool is disabled first and its blocks are given up; addresses that are held stay held. A node's blocks and tunnel
addresses are given up, and its peers (BGPPeer), settings (node.NAME) and host endpoints go with it; one that has endpoints
is refused without --force, which releases and deletes those too.")]
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

pub(super) async fn run(args: &DeleteArgs, session: &mut Session<'_>) -> Result<Outcome, CliError> {
    for name in &args.names {
        match args.kind {
            ResourceKind::IpPool => pool::delete(name, session).await?,
            ResourceKind::Node => node::delete(name, args.force, session).await?,
            ResourceKind::IpamConfiguration => delete_settings(name, session).await?,
            ResourceKind::IpReservation => delete::<IpReservation>(name, session).await?,
            ResourceKind::ClusterInformation => delete::<ClusterInformation>(name, session).await?,
        }
        if session.format == Format::Table {
            session.say(format_args!("{} {name} deleted", args.kind))?;
        }
    }
    Ok(Outcome::Fine)
}

async fn delete<K: Kind<Key = ObjectKey>>(name: &str, session: &Session<'_>) -> Result<(), CliError> {
    Ok(session.store.delete::<K>(&ObjectKey::global(name), None).await?)
}

async fn delete_settings(name: &str, session: &mut Session<'_>) -> Result<(), CliError> {
    let store = session.store;
    let object = format!("IPAMConfiguration {name}");
    if name != "default" || !until_won(&object, async || settings::delete(store).await).await? {
        let key = identifier::<IpamConfiguration>(&ObjectKey::global(name));
        return Err(StoreError::NotFound { key }.into());
    }
    session.notice("note: the built-in settings are in force now");
    Ok(())
}

#[cfg(test)]
mod tests {
    use libcalico::api::{IpPool, Node, WorkloadEndpoint};
    use libcalico::ipam::{IpamConfig, TheConfig};
    use serde_json::json;

    use super::*;
    use crate::cli::testing::Shell;

    #[test]
    fn a_pool_goes_with_its_empty_blocks_and_held_addresses_stay() {
        let shell = Shell::with_pool();
        let held = shell.allocate("a");
        let ran = shell.run(&["delete", "ippool", "default-ipv4-ippool"]);
        assert_eq!(ran.out, "IPPool default-ipv4-ippool deleted\n");
        assert!(
            ran.notices.contains("1 blocks of IPPool default-ipv4-ippool given up\nnote: 1 addresses"),
            "{}",
            ran.notices
        );
        assert_eq!(shell.stored::<IpPool>(&ObjectKey::global("default-ipv4-ippool")), None);
        let shown = shell.json(&["show", "--ip", &held]);
        assert_eq!((&shown["state"], &shown["affinity"]), (&json!("inUse"), &json!(null)));
    }

    #[test]
    fn a_node_gives_up_what_it_has() {
        let shell = Shell::with_pool();
        let (used, tunnel) = (shell.allocate("a"), shell.allocate("b"));
        shell.endpoint("a", &used);
        let error = shell.error(&["delete", "node", "node1"]);
        assert!(error.starts_with("node node1 has 1 endpoints") && error.contains("--force"), "{error}");
        assert!(shell.stored::<Node>(&ObjectKey::global("node1")).is_some());

        let ran = shell.run(&["delete", "node", "node1", "--force"]);
        assert_eq!(ran.notices, "1 addresses released, 1 endpoints deleted, 1 blocks given up\n");
        assert_eq!(shell.stored::<Node>(&ObjectKey::global("node1")), None);
        let endpoint = ObjectKey::namespaced("default", "node1-k8s-a-eth0");
        assert_eq!(shell.stored::<WorkloadEndpoint>(&endpoint), None);
        assert_eq!(shell.json(&["show", "--ip", &used])["state"], "free");
        assert_eq!(shell.json(&["show", "--ip", &tunnel])["state"], "inUse", "it carries no type: a pod's");
    }

    #[test]
    fn settings_go_from_both_keys() {
        let shell = Shell::new();
        shell.apply(&json!({
            "apiVersion": "projectcalico.org/v3", "kind": "IPAMConfiguration", "metadata": {"name": "default"},
            "spec": {"strictAffinity": true},
        }));
        assert!(shell.run(&["delete", "ipamconfig", "default"]).notices.contains("built-in"));
        assert_eq!(shell.stored::<IpamConfig>(&TheConfig), None);
        assert_eq!(shell.stored::<IpamConfiguration>(&ObjectKey::global("default")), None);
        assert!(shell.error(&["delete", "ipamconfig", "default"]).contains("resource does not exist"));
        assert!(shell.error(&["delete", "ipamconfig", "other"]).contains("IPAMConfiguration(other)"));
    }

    #[test]
    fn others_just_go() {
        let shell = Shell::new();
        shell.apply(&json!({
            "apiVersion": "projectcalico.org/v3", "kind": "IPReservation", "metadata": {"name": "r"}, "spec": {},
        }));
        assert_eq!(shell.ok(&["delete", "ipreservation", "r"]), "IPReservation r deleted\n");
        for (kind, key) in [("ipreservation", "IPReservation(r)"), ("pool", "IPPool(r)"), ("node", "Node(r)")] {
            assert_eq!(shell.error(&["delete", kind, "r"]), format!("resource does not exist: {key}"));
        }
    }
}
