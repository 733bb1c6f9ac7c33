//! Network configuration lists, as stored in a runtime's configuration directory.

use serde_json::{Map, Value};

use crate::decode::Node;
use crate::{CniError, Code};

/// Returns the first plugin of `conf`, a list or the configuration of one plugin, that is `calico`
/// or has `calico-ipam` as its IPAM plugin. A plugin from a list gets the list's `name` and
/// `cniVersion`, as a runtime passes them.
///
/// # Errors
/// The problem. The text can follow "the configuration: ".
pub fn calico_plugin(conf: Value) -> Result<Map<String, Value>, &'static str> {
    let Value::Object(mut list) = conf else {
        return Err("the network configuration is not a JSON object");
    };
    let Some(plugins) = list.remove("plugins") else {
        let problem =
            "the configured plugin is not `calico` and does not use the IPAM plugin `calico-ipam`";
        return if is_calico(&list) {
            Ok(list)
        } else {
            Err(problem)
        };
    };
    let mut plugins = plugins
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_object);
    let calico = plugins.find(|plugin| is_calico(plugin)).cloned();
    let mut plugin =
        calico.ok_or("no plugin of the list is `calico` or uses the IPAM plugin `calico-ipam`")?;
    for key in ["name", "cniVersion"] {
        if let Some(value) = list.remove(key) {
            plugin.insert(key.into(), value);
        }
    }
    Ok(plugin)
}

fn is_calico(plugin: &Map<String, Value>) -> bool {
    let ipam_type = plugin.get("ipam").and_then(|ipam| ipam.get("type"));
    plugin.get("type").is_some_and(|kind| kind == "calico")
        || ipam_type.is_some_and(|kind| kind == "calico-ipam")
}

/// Rejects a configuration list, which people who call a plugin by hand often pass by mistake.
pub(crate) fn refuse_list(root: &Node<'_>) -> Result<(), CniError> {
    let given = |key| {
        root.object()
            .and_then(|object| object.has(key))
            .map_err(|e| e.with_context(LOAD_CONTEXT))
    };
    if !given("plugins")? || given("type")? {
        return Ok(());
    }
    Err(CniError::new(
        Code::INVALID_CONFIG,
        "found a network configuration list, want the configuration of one plugin",
    )
    .with_details(LIST_ADVICE))
}

pub(crate) const LIST_ADVICE: &str = "extract the configuration of the plugin: jq '.plugins[0] + \
                                      {name, cniVersion}' /etc/cni/net.d/10-calico.conflist";

/// Upstream's prefix of errors about the configuration.
pub(crate) const LOAD_CONTEXT: &str = "failed to load netconf";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn calico_plugin_is_extracted_with_name_and_version_of_its_list() {
        let list = json!({
            "name": "n", "cniVersion": "1.0.0",
            "plugins": [
                { "type": "bandwidth" }, { "type": "calico", "mtu": 7 }, { "type": "calico" },
            ],
        });
        let plugin = Value::Object(calico_plugin(list).unwrap());
        assert_eq!(
            plugin,
            json!({ "type": "calico", "mtu": 7, "name": "n", "cniVersion": "1.0.0" })
        );
        let by_ipam =
            json!({ "plugins": [{ "type": "bridge", "ipam": { "type": "calico-ipam" } }] });
        assert_eq!(calico_plugin(by_ipam).unwrap()["type"], "bridge");
        assert_eq!(
            calico_plugin(json!({ "type": "calico" })).unwrap()["type"],
            "calico"
        );
        let alone = json!({ "type": "bridge", "ipam": { "type": "calico-ipam" } });
        assert_eq!(Value::Object(calico_plugin(alone.clone()).unwrap()), alone);
    }

    #[test]
    fn list_without_calico_is_rejected_with_the_reason() {
        assert_eq!(
            calico_plugin(json!([])).unwrap_err(),
            "the network configuration is not a JSON object"
        );
        for plugins in [json!([{ "type": "bridge" }]), json!([]), json!("x")] {
            let error = calico_plugin(json!({ "plugins": plugins })).unwrap_err();
            assert!(error.starts_with("no plugin of the list"), "{error}");
        }
        for alone in [
            json!({ "type": "multus" }),
            json!({ "type": "bridge", "ipam": { "type": "host-local" } }),
            json!({}),
        ] {
            let error = calico_plugin(alone).unwrap_err();
            assert!(
                error.starts_with("the configured plugin is not `calico`"),
                "{error}"
            );
        }
    }
}
