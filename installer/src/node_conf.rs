//! The configuration of the plugins as it lies on the node, with the paths that this process finds the node's files by.

use std::path::Path;
use std::time::Duration;

use datastore::{Datastore, DatastoreConfig};
use ipam_plugin::datastore_settings;
use netconf::NetConf;
use netconf::list::calico_plugin;
use serde_json::Value;

use crate::layout::Layout;

/// Calico's plugin in the text of a configuration. `net_dir` is the configuration directory on the node.
///
/// # Errors
/// What is wrong with the text.
pub fn parse(text: &str, layout: &Layout, net_dir: &str) -> Result<NetConf, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let plugin = Value::Object(calico_plugin(value)?);
    let mut conf = NetConf::parse(plugin.to_string().as_bytes()).map_err(|error| error.to_string())?;
    let seen_from_here = |path: &mut String| {
        if !path.is_empty() {
            *path = layout.of_node(Path::new(path.as_str()), Path::new(net_dir)).display().to_string();
        }
    };
    seen_from_here(&mut conf.kubernetes.kubeconfig);
    seen_from_here(&mut conf.node.nodename_file);
    seen_from_here(&mut conf.datastore.datastore_path);
    let policy = &mut conf.policy;
    for path in [&mut policy.k8s_client_certificate, &mut policy.k8s_client_key, &mut policy.k8s_certificate_authority]
    {
        seen_from_here(path);
    }
    let etcd = &mut conf.datastore;
    for path in [&mut etcd.etcd_ca_cert_file, &mut etcd.etcd_cert_file, &mut etcd.etcd_key_file] {
        seen_from_here(path);
    }
    Ok(conf)
}

/// The datastore that it leads to. Nothing is sent.
///
/// # Errors
/// Why it leads nowhere.
pub fn datastore(conf: &NetConf, deadline: Duration) -> Result<(DatastoreConfig, Datastore), String> {
    let config = datastore_settings::of(conf, Some(deadline)).map_err(|error| error.to_string())?;
    let store = Datastore::open(&config).map_err(|error| error.to_string())?;
    Ok((config, store))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = r#"{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"calico",
        "kubernetes":{"kubeconfig":"/etc/cni/net.d/calico-kubeconfig"},
        "etcd_ca_cert_file":"/etc/cni/net.d/calico-tls/etcd-ca"}]}"#;

    #[test]
    fn in_a_container_the_nodes_files_are_elsewhere() {
        let conf = parse(LIST, &Layout::container(), "/etc/cni/net.d").unwrap();
        assert_eq!(conf.kubernetes.kubeconfig, "/host/etc/cni/net.d/calico-kubeconfig");
        assert_eq!(conf.datastore.etcd_ca_cert_file, "/host/etc/cni/net.d/calico-tls/etcd-ca");
        assert_eq!(conf.datastore.etcd_key_file, "");
        assert_eq!(conf.node.nodename_file, "/var/lib/calico/nodename");
        assert_eq!((conf.name.as_str(), conf.cni_version.as_str()), ("n", "1.0.0"));
    }

    #[test]
    fn what_is_no_configuration_of_calicos_says_so() {
        for (text, reason) in [("{", "EOF"), ("[]", "no JSON object"), (r#"{"plugins":[]}"#, "none of its plugins")] {
            let error = parse(text, &Layout::node(), "/etc/cni/net.d").unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
