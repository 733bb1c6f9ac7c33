//! The configuration of a DEL. Keys that only an ADD needs may be invalid there: a running pod must
//! stay deletable after a change to such a key.

use serde_json::Value;

use super::net_conf::NetConf;
use crate::CniError;
use crate::decode::{DecodeError, FromNode, Node};
use crate::list::LOAD_CONTEXT;

/// Keys, in lower case, that a DEL needs beside those with [`REQUIRED_PREFIXES`] and the `type` of
/// `ipam`. `calico_api_group` is not needed: without it, the client discovers the group.
const REQUIRED_KEYS: [&str; 7] = [
    "name",
    "cniversion",
    "kubernetes",
    "policy",
    "args",
    "dataplane_options",
    "hostname",
];

/// Prefixes of further required keys: those of the datastore, and `nodename`, `nodename_file` and
/// `nodename_file_optional`.
const REQUIRED_PREFIXES: [&str; 3] = ["etcd_", "datastore_", "nodename"];

impl NetConf {
    /// Decodes the configuration of a DEL. Returns the errors of keys that a DEL does not need;
    /// those keys get their defaults.
    ///
    /// # Errors
    /// Code 6 or 7 for an invalid key that DEL needs.
    pub(crate) fn read_for_del(root: &Node<'_>) -> Result<(NetConf, Vec<DecodeError>), CniError> {
        let (mut document, mut ignored_settings) = (root.value.clone(), Vec::new());
        loop {
            let error = match NetConf::from_node(&Node::root("$", &document)) {
                Ok(conf) => return Ok((conf, ignored_settings)),
                Err(error) => error,
            };
            if !remove_setting(&mut document, &error.path) {
                return Err(error.with_context(LOAD_CONTEXT));
            }
            ignored_settings.push(error);
        }
    }
}

/// Removes the top-level key of `path`, or, if that is `ipam`, only the key below it. Returns false
/// if that is not possible or DEL needs the key.
fn remove_setting(document: &mut Value, path: &str) -> bool {
    let mut keys = path_keys(path);
    let Some(key) = keys.next() else { return false };
    let name = key.to_ascii_lowercase();
    if name == "ipam" {
        let setting = keys
            .next()
            .filter(|setting| !setting.eq_ignore_ascii_case("type"));
        let ipam = document.get_mut(key).and_then(Value::as_object_mut);
        return setting
            .zip(ipam)
            .is_some_and(|(setting, ipam)| ipam.remove(setting).is_some());
    }
    let is_required = REQUIRED_KEYS.contains(&name.as_str())
        || REQUIRED_PREFIXES
            .iter()
            .any(|prefix| name.starts_with(prefix));
    !is_required
        && document
            .as_object_mut()
            .is_some_and(|object| object.remove(key).is_some())
}

/// Returns the keys of a JSON path as [`DecodeError`] writes it, up to the first that is quoted or
/// inside a list.
fn path_keys(path: &str) -> impl Iterator<Item = &str> {
    let is_plain = |step: &&str| !step.is_empty() && !step.contains('[');
    let steps = path.trim_start_matches('$').split('.').skip(1);
    steps
        .map(|step| step.split('[').next().unwrap_or_default())
        .take_while(is_plain)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(document: &Value) -> Result<(NetConf, Vec<String>), String> {
        let told =
            |errors: Vec<DecodeError>| errors.iter().map(|error| error.path.to_owned()).collect();
        let read = NetConf::read_for_del(&Node::root("$", document));
        read.map(|(conf, errors)| (conf, told(errors)))
            .map_err(|error| error.msg)
    }

    /// An ADD rejects each of these values.
    #[test]
    fn del_ignores_invalid_values_that_del_does_not_need() {
        let document = json!({
            "name": "n", "mtu": 1, "MTU": 1500, "num_queues": 5000,
            "policy_setup_timeout_seconds": -1, "log_level": 7,
            "container_settings": { "allow_ip_forwarding": "yes" }, "prevResult": "x",
            "calico_api_group": "v7",
            "ipam": {
                "type": "calico-ipam", "assign_ipv4": "perhaps", "ipv4_pools": ["10.0.0.0/8", ""],
            },
        });
        assert!(NetConf::read(&Node::root("$", &document)).is_err());
        let (conf, told) = read(&document).unwrap();
        assert_eq!(
            (conf.name.as_str(), conf.ipam.ipam_type.as_str()),
            ("n", "calico-ipam")
        );
        assert_eq!((conf.interface.mtu, conf.interface.num_queues), (1500, 1));
        for path in [
            "$.num_queues",
            "$.calico_api_group",
            "$.ipam.assign_ipv4",
            "$.container_settings.allow_ip_forwarding",
            "$.prevResult",
        ] {
            assert!(told.iter().any(|told| told == path), "{told:?}");
        }
        assert_eq!(read(&json!({ "name": "n" })).unwrap().1, [""; 0]);
    }

    #[test]
    fn del_rejects_invalid_values_needed_for_the_cleanup() {
        for (key, value) in [
            ("datastore_type", json!("oracle")),
            ("etcd_endpoints", json!(1)),
            ("Kubernetes", json!({ "kubeconfig": 1 })),
            ("nodename", json!([])),
            ("dataplane_options", json!({ "type": "other" })),
            ("ipam", json!("calico-ipam")),
            ("ipam", json!({ "type": 1 })),
        ] {
            let error = read(&json!({ "name": "n", key: value })).unwrap_err();
            assert!(error.contains(key), "{error}");
        }
        assert!(read(&json!([])).is_err());
    }
}
