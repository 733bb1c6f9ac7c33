//! Collects the snapshot of the node and the cluster. An observation that fails becomes the reason
//! why it is missing, and the others continue.

mod cluster;
mod configurations;
mod kernel;
mod network_managers;
mod node;
mod permissions;
mod proxies;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use allocation::busy;
use libcalico::ipam::Statement;
use netconf::NetConf;
use node_process::{node_name, process};
use time::OffsetDateTime;

use self::configurations::Configurations;
use super::snapshot::{KubeconfigFile, NodeName, NodeSnapshot, TokenFile, Unobserved};
use dataplane::host_network::{self, HostNetwork};
use installation::directory_access::UnwritableDirectory;
use installation::layout::Layout;
use installation::state::State;
use installation::token::Claims;
use installation::{conflist, former, kubeconfig};

/// Collects the snapshot. `net_dir` is the path of the configuration directory on the node.
pub async fn collect(layout: &Layout, net_dir: &str, network: &dyn HostNetwork) -> NodeSnapshot {
    let directory = layout.net_dir(net_dir);
    let candidates = conflist::candidates(&directory).map_err(Unobserved::new);
    let Configurations {
        selected,
        delegate,
        conf,
    } = configurations::read(&candidates, layout, net_dir);
    let node = conf.as_ref().map(read_node_name);
    let name = node
        .as_ref()
        .and_then(|node| node.name.clone().ok())
        .unwrap_or_default();
    let state = State::load(layout);
    let recorded = state.as_ref().ok();
    let contents = selected
        .iter()
        .chain(&delegate)
        .filter_map(|selected| selected.content.as_ref().ok());
    let programs = configurations::examine_programs(
        &contents.collect::<Vec<_>>(),
        conf.as_ref(),
        layout,
        recorded,
    );
    let read_busy_notes = || busy::valid_notes(&layout.path(busy::FILE), OffsetDateTime::now_utc());
    let bin_dirs = layout.bin_paths();
    let directories = bin_dirs.chain([directory.clone(), layout.state_dir()]);
    let unwritable = directories.filter_map(|directory| UnwritableDirectory::examine(&directory));
    NodeSnapshot {
        // A container that may write a directory has the capability.
        unwritable: unwritable
            .filter(|found| found.is_denied || !layout.is_container())
            .collect(),
        now: OffsetDateTime::now_utc().unix_timestamp(),
        net_dir: directory,
        selected,
        delegate,
        programs,
        version: process::build_version().to_owned(),
        former: recorded
            .map(|state| former::remaining(state, layout))
            .unwrap_or_default(),
        records: state.map(drop).map_err(Unobserved::new),
        token: conf.as_ref().and_then(read_token_file),
        cluster: match &conf {
            Some(conf) => Some(cluster::query(conf, &name, network).await),
            None => None,
        },
        configured_mtu: conf.as_ref().map(|conf| conf.interface.mtu),
        mtu_file: node::read_mtu_file(layout),
        mtu_file_required: conf
            .as_ref()
            .is_some_and(|conf| conf.interface.require_mtu_file),
        uplinks: host_network::uplinks(network).map_err(Unobserved::new),
        default_routes: kernel::read_default_routes(network),
        managers: network_managers::read(layout),
        settings: node::read_settings(),
        journal: node::read_journal(layout),
        locks: node::observe_locks(conf.as_ref(), layout).await,
        cache: node::read_cache(layout, network),
        recent_busy: read_busy_notes()
            .into_iter()
            .map(|note| (note.address, note.route))
            .collect(),
        proxies: proxies::read(&layout.path("/proc"), process::variables()),
        candidates,
        node,
    }
}

/// Returns the configuration of Calico's plugin.
pub(super) fn read_conf(layout: &Layout, net_dir: &str) -> Statement<NetConf> {
    let directory = layout.net_dir(net_dir);
    let candidates = conflist::candidates(&directory).map_err(Unobserved::new);
    match configurations::read(&candidates, layout, net_dir).conf {
        Some(conf) => Statement::Known(conf),
        None => Statement::Unknown(format!(
            "{} has no readable configuration of Calico's plugin",
            directory.display()
        )),
    }
}

fn read_node_name(conf: &NetConf) -> NodeName {
    NodeName {
        name: node_name::from_conf(conf).map_err(Unobserved::new),
        configured: conf.node.nodename.clone(),
        path: conf.node.nodename_file.clone().into(),
        written: node::read_nodename_file(&conf.node.nodename_file),
        optional: !node_name::is_file_required(conf),
    }
}

fn read_token_file(conf: &NetConf) -> Option<TokenFile> {
    // `kubeconfig` may list several files, of which only the first is examined.
    let path = conf
        .kubernetes
        .kubeconfig
        .split(':')
        .find(|path| !path.is_empty())?;
    let read = || -> std::io::Result<KubeconfigFile> {
        let mode = fs::metadata(path)?.permissions().mode() & 0o7777;
        let text = os::atomic_file::regular_file::text(path.as_ref())?;
        let claims = kubeconfig::token(&text).and_then(|token| Claims::decode(token).ok());
        Ok(KubeconfigFile {
            mode,
            accepts_any_certificate: kubeconfig::accepts_any_certificate(&text),
            claims,
        })
    };
    Some(TokenFile {
        path: path.into(),
        file: read().map_err(Unobserved::new),
    })
}
