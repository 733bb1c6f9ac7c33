//! Looks at the node and asks the cluster. Every answer stands alone: what fails is noted as the reason, and the rest is
//! looked at all the same.

mod api_server;
mod cache;
mod cluster;
mod etcd;
mod interfaces;
mod locks;
mod node;
mod programs;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use ipam_plugin::node_name;
use netconf::NetConf;

use super::facts::{Chosen, Content, Facts, File, NodeName, TokenFile};
use crate::host_network::{self, HostNetwork};
use crate::layout::Layout;
use crate::token::claims::Claims;
use crate::{kubeconfig, node_conf, runtime_choice, template};

/// Looks at everything. `net_dir` is the configuration directory on the node.
pub async fn gather(layout: &Layout, net_dir: &str, network: &dyn HostNetwork) -> Facts {
    let seen = layout.net_dir(net_dir);
    let candidates = runtime_choice::candidates(&seen).map_err(|error| error.to_string());
    let first = candidates.as_ref().ok().and_then(|names| names.first()).cloned();
    let read = first.map(|name| {
        let text = fs::read_to_string(seen.join(&name)).map_err(|error| error.to_string());
        (name, text)
    });
    let text = read.as_ref().and_then(|(_, text)| text.as_ref().ok());
    let conf = text.and_then(|text| node_conf::parse(text, layout, net_dir).ok());
    let chosen = read.as_ref().map(|(name, text)| Chosen {
        name: name.clone(),
        content: text.clone().and_then(|text| content(&text, layout, &seen)),
    });
    let node = conf.as_ref().map(node_facts);
    let name = node.as_ref().and_then(|node| node.name.clone().ok()).unwrap_or_default();
    let programs = match &chosen {
        Some(Chosen { content: Ok(content), .. }) => programs::all(content, conf.as_ref(), layout),
        _ => Vec::new(),
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    Facts {
        now: i64::try_from(now).unwrap_or_default(),
        net_dir: seen,
        chosen,
        programs,
        token: conf.as_ref().and_then(token_file),
        cluster: match &conf {
            Some(conf) => Some(cluster::ask(conf, &name, network).await),
            None => None,
        },
        configured_mtu: conf.as_ref().map(|conf| conf.interface.mtu),
        mtu_file: node::mtu_file(layout),
        mtu_file_required: conf.as_ref().is_some_and(|conf| conf.interface.require_mtu_file),
        uplinks: host_network::uplinks(network),
        settings: node::settings(),
        journal: node::journal(layout),
        locks: node::locks(conf.as_ref(), layout).await,
        cache: node::cache(layout, network),
        candidates,
        node,
    }
}

fn content(text: &str, layout: &Layout, net_dir: &Path) -> Result<Content, String> {
    let conf = template::parse(text).map_err(|error| error.to_string())?;
    let word = |key: &str| conf.get(key).and_then(serde_json::Value::as_str).unwrap_or_default().to_owned();
    let directories: Vec<_> = layout.bin_dirs().into_iter().map(|(_, directory)| directory).collect();
    let network = word("name");
    let appends = !conf.get("loadOnlyInlinedPlugins").is_some_and(|only| only == true);
    let appended = runtime_choice::candidates(&net_dir.join(&network)).unwrap_or_default();
    let appended = appended.into_iter().filter(|name| appends && !network.is_empty() && name.ends_with(".conf"));
    Ok(Content {
        plugins: template::plugins(&conf).iter().map(|plugin| template::kind(plugin).to_owned()).collect(),
        cni_version: word("cniVersion"),
        findings: template::findings(text, &conf, &directories),
        appended: appended.collect(),
        network,
    })
}

fn node_facts(conf: &NetConf) -> NodeName {
    NodeName {
        name: node_name::of(conf).map_err(|error| error.to_string()),
        configured: conf.node.nodename.clone(),
        path: conf.node.nodename_file.clone().into(),
        written: fs::read_to_string(&conf.node.nodename_file).ok(),
        optional: conf.node.nodename_file_optional || conf.datastore.kind() == netconf::conf::DatastoreType::Local,
    }
}

fn token_file(conf: &NetConf) -> Option<TokenFile> {
    // Of several the first one wins.
    let path = conf.kubernetes.kubeconfig.split(':').find(|path| !path.is_empty())?;
    let read = || -> std::io::Result<File> {
        let mode = fs::metadata(path)?.permissions().mode() & 0o7777;
        let text = fs::read_to_string(path)?;
        Ok(File { mode, claims: kubeconfig::token(&text).and_then(|token| Claims::of(token).ok()) })
    };
    Some(TokenFile { path: path.into(), file: read().map_err(|error| error.to_string()) })
}
