//! A network configuration list, as it lies in a runtime's directory: Calico's plugin in it.

use serde_json::{Map, Value};

/// The plugin of a list, or of a configuration of one plugin, that is Calico's or has its addresses from Calico's IPAM; with
/// the list's `name` and `cniVersion`, as a runtime calls it.
///
/// # Errors
/// What is missing, in words that complete "the configuration: …".
pub fn calico_plugin(conf: Value) -> Result<Map<String, Value>, &'static str> {
    let Value::Object(mut list) = conf else { return Err("it is no JSON object") };
    let Some(plugins) = list.remove("plugins") else { return Ok(list) };
    let ours = |plugin: &&Value| {
        let of = |object: &Value| object["type"].as_str().map(str::to_owned);
        of(plugin).as_deref() == Some("calico") || of(&plugin["ipam"]).as_deref() == Some("calico-ipam")
    };
    let found = plugins.as_array().and_then(|plugins| plugins.iter().find(ours)).and_then(Value::as_object);
    let mut plugin = found.cloned().ok_or("none of its plugins is `calico` or has `calico-ipam` as ipam")?;
    for key in ["name", "cniVersion"] {
        if let Some(value) = list.remove(key) {
            plugin.insert(key.into(), value);
        }
    }
    Ok(plugin)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn calicos_plugin_is_found_and_knows_its_list() {
        let list = json!({
            "name": "n", "cniVersion": "1.0.0",
            "plugins": [{ "type": "bandwidth" }, { "type": "calico", "mtu": 7 }, { "type": "calico" }],
        });
        let plugin = Value::Object(calico_plugin(list).unwrap());
        assert_eq!(plugin, json!({ "type": "calico", "mtu": 7, "name": "n", "cniVersion": "1.0.0" }));
        let by_ipam = json!({ "plugins": [{ "type": "bridge", "ipam": { "type": "calico-ipam" } }] });
        assert_eq!(calico_plugin(by_ipam).unwrap()["type"], "bridge");
        assert_eq!(calico_plugin(json!({ "type": "calico" })).unwrap()["type"], "calico");
    }

    #[test]
    fn what_is_no_list_of_ours_says_why() {
        assert_eq!(calico_plugin(json!([])).unwrap_err(), "it is no JSON object");
        for plugins in [json!([{ "type": "bridge" }]), json!([]), json!("x")] {
            let error = calico_plugin(json!({ "plugins": plugins })).unwrap_err();
            assert!(error.starts_with("none of its plugins"), "{error}");
        }
    }
}
