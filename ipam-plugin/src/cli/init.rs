//! `init`: prepares an empty datastore.

use clap::Args;
use datastore::Datastore;
use libcalico::api::{
    ClusterInformation, IpPool, IpPoolSpec, Node, NodeSpec, ObjectKey, ObjectSelect,
};
use libcalico::failure::{Failure, OrFail};
use libcalico::net::{Cidr, IpVersion};
use libcalico::store::Store;
use netconf::NetConf;

use super::app::{App, CommandOutcome};
use super::apply::Row;
use super::error::{CliError, no_node_name};
use super::store_object::{Applied, retry_races};
use super::{apply, documents};
use allocation::reads::find;
use node_process::node_name;

/// Prepare an empty datastore: cluster information, tiers, this node, pools
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  calico-ipam init --datastore-type local --pool 10.65.0.0/16 --pool fd65::/112
  calico-ipam init --etcd-endpoints http://127.0.0.1:2379 --node node2

Running it again changes nothing.

Exit status: 0; 1 after an error; 2 if the arguments are invalid.")]
pub(super) struct InitArgs {
    /// Name of the node [default: /var/lib/calico/nodename or the host name, as for the plugin]
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Range of a pool. May be given several times
    #[arg(long, value_name = "CIDR")]
    pool: Vec<String>,
    /// Prefix length of a block: 20 to 32 for IPv4 pools [default: 26], 116 to 128 for IPv6 pools
    /// [default: 122]
    #[arg(long, value_name = "BITS")]
    block_size: Vec<u8>,
}

pub(super) async fn run(args: &InitArgs, app: &mut App<'_>) -> Result<CommandOutcome, CliError> {
    let pools = ranges(args)?;
    let node = match &args.node {
        Some(name) => name.clone(),
        None => node_name::from_conf(&NetConf::default()).map_err(no_node_name)?,
    };
    let store = app.store;
    match store {
        Datastore::Etcd(_) | Datastore::Local(_) => {}
        // The Node is a view of the Kubernetes node, which only kubelet creates.
        Datastore::Kubernetes(_) => {
            if find::<Node>(store, &ObjectKey::global(&node))
                .await?
                .is_none()
            {
                return Err(Failure::new(format_args!(
                    "Kubernetes has no Node {node}, and only its kubelet or kubectl create it"
                ))
                .way_out("name a node of the cluster with --node")
                .into());
            }
        }
    }
    let progress = app.progress("writing the first objects");
    let mut rows = vec![initialize(app).await?, ensure_node(store, &node).await?];
    for range in pools {
        rows.push(ensure_pool(store, range, block_size(args, range)).await?);
    }
    drop(progress);
    if !documents::print_document(app.format, app.out, &rows)? {
        for Row { kind, name, action } in &rows {
            app.print_line(format_args!("{kind} {name} {action}"))?;
        }
        let datastore = app.datastore.clone();
        app.print_line(format_args!("{datastore} is ready for node {node}"))?;
    }
    warn_if_not_ready(app).await?;
    Ok(CommandOutcome::Success)
}

fn ranges(args: &InitArgs) -> Result<Vec<Cidr>, Failure> {
    let parse = |text: &String| {
        let range = text.parse::<Cidr>().or_fail(format_args!("--pool {text}"));
        range.map_err(|failure| failure.way_out("write it like 10.65.0.0/16 or fd65::/112"))
    };
    args.pool.iter().map(parse).collect()
}

/// Returns the block size given for the pool's family; `None` for the default. Sizes up to 32 are
/// for IPv4.
fn block_size(args: &InitArgs, pool: Cidr) -> Option<u8> {
    let fits = |size: &&u8| (**size <= 32) == (pool.version() == IpVersion::V4);
    args.block_size.iter().find(fits).copied()
}

/// A new file of the embedded datastore is initialized when it is opened, and also counts as
/// created here.
async fn initialize(app: &App<'_>) -> Result<Row, CliError> {
    let store = app.store;
    let key = ObjectKey::global("default");
    let before = find::<ClusterInformation>(store, &key).await?;
    store.ensure_initialized().await?;
    let after = find::<ClusterInformation>(store, &key).await?;
    let action = match (before, after) {
        (None, _) => Applied::Created,
        _ if app.is_new => Applied::Created,
        (Some(before), Some(after)) if before.revision != after.revision => Applied::Configured,
        _ => Applied::Unchanged,
    };
    Ok(Row {
        kind: "ClusterInformation",
        name: key.name,
        action,
    })
}

async fn ensure_node(store: &Datastore, name: &str) -> Result<Row, CliError> {
    let node = Node::new(name, NodeSpec::default());
    let action = retry_races(&format!("Node {name}"), async || {
        match find::<Node>(store, &node.key()).await? {
            Some(_) => Ok(Applied::Unchanged),
            None => apply::apply_node(store, &node).await,
        }
    })
    .await?;
    Ok(Row {
        kind: "Node",
        name: name.into(),
        action,
    })
}

/// Creates the pool unless a pool of exactly this range exists under any name.
async fn ensure_pool(
    store: &Datastore,
    range: Cidr,
    block_size: Option<u8>,
) -> Result<Row, CliError> {
    let kind = "IPPool";
    let (name, action) = retry_races(&format!("{kind} {range}"), async || {
        let pools = store.list::<IpPool>(&ObjectSelect::default()).await?;
        if let Some(pool) = pools
            .iter()
            .find(|pool| pool.value.spec.range() == Ok(range))
        {
            return Ok((pool.key.name.clone(), Applied::Unchanged));
        }
        let name = pool_name(range, pools.iter().map(|pool| pool.key.name.as_str()));
        let spec = IpPoolSpec {
            cidr: range.to_string(),
            block_size,
            ..IpPoolSpec::default()
        };
        let applied = apply::apply_pool(store, &IpPool::new(&name, spec)).await?;
        Ok((name, applied))
    })
    .await?;
    Ok(Row { kind, name, action })
}

/// Returns the name that calico-node gives to a family's first pool, or a name made from the range
/// for further pools.
fn pool_name<'a>(range: Cidr, mut taken: impl Iterator<Item = &'a str>) -> String {
    let first = format!("default-ipv{}-ippool", range.version());
    if !taken.any(|name| name == first) {
        return first;
    }
    let network: String = range
        .network()
        .to_string()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    format!("pool-{}-{}", network.trim_matches('-'), range.prefix())
}

async fn warn_if_not_ready(app: &mut App<'_>) -> Result<(), CliError> {
    let information = find::<ClusterInformation>(app.store, &ObjectKey::global("default")).await?;
    if information.is_some_and(|entry| entry.value.spec.datastore_ready == Some(false)) {
        app.notice(
            "note: ClusterInformation has datastoreReady: false, perhaps because of an upgrade; \
             plugins refuse to work until it is true",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use libcalico::api::{IpPool, Tier};
    use serde_json::json;

    use super::*;
    use crate::cli::testing::Shell;

    #[test]
    fn init_prepares_an_empty_datastore_and_is_idempotent() {
        let shell = Shell::new();
        let line = [
            "init",
            "--node",
            "n1",
            "--pool",
            "10.0.0.0/16",
            "--pool",
            "fd00::/112",
            "--block-size",
            "27",
        ];
        let said = shell.ok(&line);
        for expected in [
            "Node n1 created\n",
            "IPPool default-ipv4-ippool created\n",
            "IPPool default-ipv6-ippool created\n",
        ] {
            assert!(said.contains(expected), "{said}");
        }
        let block_size = |name: &str| {
            shell
                .stored::<IpPool>(&ObjectKey::global(name))
                .unwrap()
                .spec
                .block_size
        };
        assert_eq!(block_size("default-ipv4-ippool"), Some(27));
        assert_eq!(block_size("default-ipv6-ippool"), Some(122));
        assert!(
            shell
                .stored::<Tier>(&ObjectKey::global("default"))
                .is_some()
        );
        assert!(
            shell
                .json(&line)
                .as_array()
                .unwrap()
                .iter()
                .all(|row| row["action"] == "unchanged")
        );
    }

    #[test]
    fn init_leaves_existing_nodes_and_pools_unchanged() {
        let shell = Shell::new();
        shell.apply(&json!({
            "apiVersion": "projectcalico.org/v3", "kind": "Node",
            "metadata": {"name": "n1", "labels": {"a": "b"}},
        }));
        shell.apply(&json!({
            "apiVersion": "projectcalico.org/v3", "kind": "IPPool", "metadata": {"name": "mine"},
            "spec": {"cidr": "10.0.0.0/16", "disabled": true},
        }));
        let said = shell.ok(&["init", "--node", "n1", "--pool", "10.0.0.0/16"]);
        assert!(
            said.contains("Node n1 unchanged\nIPPool mine unchanged\n"),
            "{said}"
        );
        assert_eq!(
            shell
                .stored::<Node>(&ObjectKey::global("n1"))
                .unwrap()
                .metadata
                .labels["a"],
            "b"
        );
    }

    #[test]
    fn second_pool_of_a_family_is_named_after_its_range() {
        let taken = ["default-ipv4-ippool", "default-ipv6-ippool"];
        let name =
            |range: &str, taken: &[&str]| pool_name(range.parse().unwrap(), taken.iter().copied());
        assert_eq!(name("10.0.0.0/16", &[]), "default-ipv4-ippool");
        assert_eq!(name("10.0.0.0/16", &taken), "pool-10-0-0-0-16");
        assert_eq!(name("fd65::/112", &taken), "pool-fd65-112");
    }

    #[test]
    fn invalid_init_arguments_are_rejected() {
        let shell = Shell::new();
        assert!(
            shell
                .error(&["init", "--node", "n1", "--pool", "ten"])
                .contains("write it like 10.65.0.0/16")
        );
        assert!(
            shell
                .error(&["init", "--node", "N 1"])
                .contains("Node N 1: error with field Metadata.Name")
        );
        let error = shell.error(&[
            "init",
            "--node",
            "n1",
            "--pool",
            "10.0.0.0/28",
            "--block-size",
            "26",
        ]);
        assert!(error.contains("IPPool.Spec"), "{error}");
    }

    #[test]
    fn init_leaves_a_locked_datastore_locked() {
        let shell = Shell::new();
        shell.apply(&json!({
            "apiVersion": "projectcalico.org/v3", "kind": "ClusterInformation",
            "metadata": {"name": "default"},
            "spec": {"datastoreReady": false},
        }));
        assert!(
            shell
                .run(&["init", "--node", "n1"])
                .notices
                .contains("datastoreReady: false")
        );
        let stored = shell
            .stored::<ClusterInformation>(&ObjectKey::global("default"))
            .unwrap();
        assert_eq!(stored.spec.datastore_ready, Some(false));
    }
}
