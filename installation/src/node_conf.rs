//! Reads the plugins' configuration on the node, with its paths translated to paths of this
//! process.

use std::path::{Path, PathBuf};
use std::time::Duration;

use datastore::{Datastore, DatastoreConfig};
use ipam_plugin::datastore_settings;
use libcalico::api::{IpPool, IpPoolSpec, ObjectSelect};
use libcalico::failure::{Failure, OrFail};
use libcalico::store::Store;
use netconf::NetConf;
use netconf::conf::DatastoreConf;
use netconf::list::calico_plugin;
use node_process::process;
use os::lock;
use serde_json::{Map, Value};

use crate::layout::Layout;
use crate::plugin_chain::read_chain;

/// The plugin's default for `nodename_file`.
const NODENAME_FILE: &str = "/var/lib/calico/nodename";

const PATHS: [(Option<&str>, &[&str]); 3] = [
    (
        None,
        &[
            "nodename_file",
            "ipam_lock_file",
            "datastore_path",
            "etcd_ca_cert_file",
            "etcd_cert_file",
            "etcd_key_file",
        ],
    ),
    (Some("kubernetes"), &["kubeconfig"]),
    (
        Some("policy"),
        &[
            "k8s_client_certificate",
            "k8s_client_key",
            "k8s_certificate_authority",
        ],
    ),
];

/// Returns the configuration of Calico's plugin as a runtime passes it, with the plugin's default
/// paths. `path_of` translates the absolute paths of the keys in `PATHS`.
pub fn plugin(
    conf: Value,
    path_of: impl Fn(&Path) -> PathBuf,
) -> Result<Map<String, Value>, Failure> {
    let mut plugin = calico_plugin(conf).map_err(Failure::new)?;
    for (key, default) in defaults(&mut plugin) {
        match value_of(&mut plugin, key) {
            Some(value) if value.is_null() || value == "" => *value = default.into(),
            Some(_) => {}
            None => drop(plugin.insert(key.into(), default.into())),
        }
    }
    for (object, keys) in PATHS {
        let object_with_paths = match object {
            None => Some(&mut plugin),
            Some(name) => value_of(&mut plugin, name).and_then(Value::as_object_mut),
        };
        let Some(object_with_paths) = object_with_paths else {
            continue;
        };
        for key in keys {
            if let Some(Value::String(path)) = value_of(object_with_paths, key) {
                *path = translate_paths(path, &path_of);
            }
        }
    }
    Ok(plugin)
}

/// Returns the keys of files with the paths that the plugin uses by default. A `datastore_path`
/// would select the local datastore by itself, so that default is only for a configuration that
/// selects it already.
fn defaults(plugin: &mut Map<String, Value>) -> Vec<(&'static str, &'static str)> {
    let mut defaults = vec![
        ("nodename_file", NODENAME_FILE),
        ("ipam_lock_file", lock::DEFAULT_PATH),
    ];
    if value_of(plugin, "datastore_type").is_some_and(|kind| kind == "local") {
        defaults.push(("datastore_path", DatastoreConf::DEFAULT_PATH));
    }
    defaults
}

/// Returns the value of a key. An exact key wins; otherwise keys match without regard to case
/// (CNI-63).
fn value_of<'a>(object: &'a mut Map<String, Value>, key: &str) -> Option<&'a mut Value> {
    if object.contains_key(key) {
        return object.get_mut(key);
    }
    let spelling = object
        .keys()
        .rfind(|other| other.eq_ignore_ascii_case(key))?
        .clone();
    object.get_mut(&spelling)
}

/// Translates a path, or several paths separated by colons. Relative paths stay as they are.
fn translate_paths(paths: &str, path_of: impl Fn(&Path) -> PathBuf) -> String {
    let translate = |path: &str| {
        if path.starts_with('/') {
            path_of(Path::new(path)).to_string_lossy().into_owned()
        } else {
            path.to_owned()
        }
    };
    paths
        .split(':')
        .map(translate)
        .collect::<Vec<_>>()
        .join(":")
}

/// Parses a configuration file and translates its paths. `net_dir` is the configuration directory
/// on the node.
pub fn parse(text: &str, layout: &Layout, net_dir: &str) -> Result<NetConf, Failure> {
    read(plugin(value(text)?, |path| {
        layout.translate(path, Path::new(net_dir))
    })?)
}

/// Parses a configuration file as JSON. Entries of other programs may contain values that do not
/// fit into a [`Value`].
pub fn value(text: &str) -> Result<Value, Failure> {
    let from_chain = || read_chain(text.as_bytes()).map(|chain| Value::Object(chain.to_list()));
    Ok(serde_json::from_str(text).or_else(|error| from_chain().ok_or(error))?)
}

/// Parses the configuration of a plugin.
pub fn read(plugin: Map<String, Value>) -> Result<NetConf, Failure> {
    Ok(NetConf::parse(
        Value::Object(plugin).to_string().as_bytes(),
    )?)
}

/// Opens the datastore that a configuration names. Sends no request.
pub fn datastore(
    conf: &NetConf,
    deadline: Duration,
) -> Result<(DatastoreConfig, Datastore), Failure> {
    let config = datastore_settings::from_conf(conf, Some(deadline))?;
    let store = Datastore::open(&config).or_fail("IPPools")?;
    Ok((config, store))
}

/// Returns the pools of the datastore that a configuration names. A missing file of the local
/// datastore counts as empty.
pub fn pools(conf: &NetConf, deadline: Duration) -> Result<Vec<IpPoolSpec>, Failure> {
    let (config, store) = datastore(conf, deadline)?;
    if config.missing_file().is_some() {
        return Ok(Vec::new());
    }
    let pools = process::block_on(store.list::<IpPool>(&ObjectSelect::default()));
    let pools = pools.or_fail("IPPools")?;
    Ok(pools.into_iter().map(|pool| pool.value.spec).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = r#"{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"calico",
        "kubernetes":{"kubeconfig":"/etc/cni/net.d/calico-kubeconfig"},
        "etcd_ca_cert_file":"/etc/cni/net.d/calico-tls/etcd-ca"}]}"#;

    #[test]
    fn paths_in_the_configuration_are_translated_in_a_container() {
        let conf = parse(LIST, &Layout::container(), "/etc/cni/net.d").unwrap();
        assert_eq!(
            conf.kubernetes.kubeconfig,
            "/host/etc/cni/net.d/calico-kubeconfig"
        );
        assert_eq!(
            conf.datastore.etcd_ca_cert_file,
            "/host/etc/cni/net.d/calico-tls/etcd-ca"
        );
        assert_eq!(conf.datastore.etcd_key_file, "");
        assert_eq!(conf.node.nodename_file, "/var/lib/calico/nodename");
        assert_eq!(
            (conf.name.as_str(), conf.cni_version.as_str()),
            ("n", "1.0.0")
        );
    }

    #[test]
    fn paths_in_the_configuration_are_translated_below_another_root() {
        let root = tempfile::tempdir().unwrap();
        let below = |path: &str| root.path().join(path).display().to_string();
        let list = r#"{"name":"n","type":"calico","Kubernetes":{"kubeconfig":"/a/k1:/b/k2"},"NodeName_File":"",
            "policy":{"k8s_client_key":"/c/key"},"datastore_path":"relative.db"}"#;
        let conf = parse(list, &Layout::below(root.path()), "/etc/cni/net.d").unwrap();
        assert_eq!(
            conf.kubernetes.kubeconfig,
            format!("{}:{}", below("a/k1"), below("b/k2"))
        );
        assert_eq!(conf.policy.k8s_client_key, below("c/key"));
        assert_eq!(conf.node.nodename_file, below("var/lib/calico/nodename"));
        assert_eq!(conf.datastore.datastore_path, "relative.db");
        assert_eq!(conf.node.ipam_lock_file, below("var/run/calico/ipam.lock"));
        let parse =
            |text: &str| parse(text, &Layout::below(root.path()), "/etc/cni/net.d").unwrap();
        let conf =
            parse(r#"{"name":"n","type":"calico","datastore_type":"local","datastore_path":null}"#);
        assert_eq!(
            conf.datastore.datastore_path,
            below("var/lib/calico/calico.db")
        );
        let conf = parse(r#"{"name":"n","type":"calico"}"#);
        assert_eq!(
            conf.datastore.kind(),
            netconf::conf::DatastoreType::Kubernetes
        );
    }

    #[test]
    fn calico_plugin_is_parsed_beside_foreign_entries_with_unrepresentable_values() {
        for list in [
            r#"{"name":"n","plugins":[{"type":"calico","mtu":1400},{"type":"mesh","n":1e400,"s":"\ud800"}]}"#,
            r#"{"name":"n","type":"calico","mtu":1400,"n":1e400}"#,
        ] {
            let conf = parse(list, &Layout::node(), "/etc/cni/net.d").unwrap();
            assert_eq!(
                (conf.name.as_str(), conf.plugin_type.as_str()),
                ("n", "calico")
            );
        }
    }

    #[test]
    fn default_paths_match_the_plugins() {
        let node = NetConf::default().node;
        assert_eq!(
            (node.nodename_file.as_str(), node.ipam_lock_file.as_str()),
            (NODENAME_FILE, lock::DEFAULT_PATH)
        );
    }

    #[test]
    fn configuration_without_calico_is_rejected_with_the_reason() {
        for (text, reason) in [
            ("{", "EOF"),
            ("[]", "not a JSON object"),
            (r#"{"plugins":[]}"#, "no plugin of the"),
        ] {
            let error = parse(text, &Layout::node(), "/etc/cni/net.d").unwrap_err();
            assert!(error.to_string().contains(reason), "{error}");
        }
    }
}
