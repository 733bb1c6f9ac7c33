//! The addresses and blocks of this node, in the datastore.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use ipam_plugin::affinity::remove_host;
use ipam_plugin::clock::SystemClock;
use ipam_plugin::{cni, node_name};
use netconf::NetConf;

use super::Options;
use super::plan::Found;
use super::report::Report;
use crate::layout::Layout;
use crate::node_conf;

/// How long the datastore may take for one answer.
const DEADLINE: Duration = Duration::from_secs(10);

/// The configuration that says where the datastore is; read before anything is taken away.
pub(super) fn conf(layout: &Layout, net_dir: &str, found: &[Found]) -> Result<NetConf, String> {
    let mut reason = "no configuration of ours is there".to_owned();
    for file in found.iter().filter(|file| super::is_net(file.place) && crate::runtime_choice::is_read(&file.name)) {
        let text = fs::read_to_string(&file.path).map_err(|error| error.to_string());
        match text.and_then(|text| node_conf::parse(&text, layout, net_dir)) {
            Ok(conf) => return Ok(conf),
            Err(error) => reason = format!("{}: {error}", file.path.display()),
        }
    }
    Err(reason)
}

/// Gives back what pods of the network hold on this node, and the blocks of the node, or says what it would. Whether that
/// is done, if it was asked for.
pub(super) async fn release(conf: Result<NetConf, String>, options: Options, report: &mut Report) -> bool {
    const WHAT: &str = "addresses and blocks of this node";
    if !options.release_addresses {
        report.leave(
            WHAT,
            "they stay in the datastore; --release-addresses gives them back, and so does kube-controllers when the Node is \
             deleted",
        );
        return true;
    }
    let outcome = match conf {
        Ok(conf) => give_back(&conf, options.yes).await,
        Err(reason) => Err(reason),
    };
    match outcome {
        Ok(what) => {
            report.done("release", what);
            true
        }
        Err(reason) => {
            report.fail("release", WHAT, reason);
            false
        }
    }
}

async fn give_back(conf: &NetConf, acts: bool) -> Result<String, String> {
    let node = node_name::of(conf).map_err(|error| error.to_string())?;
    let (_, store) = node_conf::datastore(conf, DEADLINE)?;
    let words = |error: &dyn std::fmt::Display| error.to_string();
    let clock = SystemClock::start();
    let leaked = cni::leaked(&store, &conf.name, &node, &BTreeSet::new()).await.map_err(|error| words(&error))?;
    if !acts {
        return Ok(format!("the addresses of {} containers and all blocks of node {node}", leaked.containers()));
    }
    let collected = leaked.release(&store, &clock, &BTreeSet::new()).await;
    if let Some((handle, error)) = collected.failed.first() {
        return Err(format!("{handle}: {error}"));
    }
    let surrendered = remove_host(&store, &clock, &node).await.map_err(|error| words(&error))?;
    if let Some((block, error)) = surrendered.kept.first() {
        return Err(format!("block {block}: {error}"));
    }
    let (containers, blocks) = (collected.released.len(), surrendered.released.len());
    Ok(format!("the addresses of {containers} containers and {blocks} blocks of node {node}"))
}
