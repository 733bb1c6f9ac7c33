//! The JSON Schema of the network configuration, generated from the types of [`crate::conf`].

use schemars::Schema;
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use serde_json::{Value, json};

use crate::NetConf;

/// Returns the schema of the configuration of one plugin, not of a configuration list.
pub fn netconf() -> Value {
    let settings = SchemaSettings::draft07().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let settings = settings.with_transform(RecursiveTransform(join_lines));
    settings
        .into_generator()
        .into_root_schema_for::<NetConf>()
        .to_value()
}

/// Writes each paragraph of a description on one line. The breaks in it are those of the source.
fn join_lines(schema: &mut Schema) {
    if let Some(Value::String(description)) = schema.get_mut("description") {
        let paragraphs = description
            .split("\n\n")
            .map(|paragraph| paragraph.replace('\n', " "));
        *description = paragraphs.collect::<Vec<_>>().join("\n\n");
    }
}

/// Returns the text of `deploy/netconf.schema.json`, for the configuration of one plugin and for a
/// configuration list that contains Calico's plugin.
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
                    "cniVersion": {
                        "type": "string", "description": "Version of the CNI specification.",
                    },
                    "plugins": {
                        "type": "array", "minItems": 1, "items": { "if": ours, "then": netconf },
                    },
                },
            },
        },
    });
    format!("{schema:#}\n")
}
