//! The JSON Schema of the network configuration, generated from the types of [`crate::conf`].

use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use crate::NetConf;

/// Returns the schema of the configuration of one plugin, not of a configuration list.
pub fn netconf() -> Value {
    let settings = SchemaSettings::draft07().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    settings.into_generator().into_root_schema_for::<NetConf>().to_value()
}

/// Returns the text of `deploy/netconf.schema.json`, for the configuration of one plugin and for a configuration list
/// that contains Calico's plugin.
pub fn published() -> String {
    let ours = json!({ "properties": { "type": { "const": "calico" } }, "required": ["type"] });
    let netconf = json!({ "$ref": "#/definitions/NetConf" });
    let schema = json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Network configuration of the Calico CNI plugin",
        "if": { "required": ["plugins"] },
        "then": { "$ref": "#/definitions/List" },
        "else": { "allOf": [netconf, { "required": ["name", "type"] }] },
        "definitions": {
            "NetConf": self::netconf(),
            "List": {
                "description": "A network configuration list.",
                "type": "object",
                "required": ["name", "cniVersion", "plugins"],
                "properties": {
                    "name": { "type": "string", "description": "Name of the network." },
                    "cniVersion": { "type": "string", "description": "Version of the CNI specification." },
                    "plugins": { "type": "array", "minItems": 1, "items": { "if": ours, "then": netconf } },
                },
            },
        },
    });
    format!("{schema:#}\n")
}
