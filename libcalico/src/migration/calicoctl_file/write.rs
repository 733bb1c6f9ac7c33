//! Writes a file: [`Display`](fmt::Display) of [`CalicoctlFile`].

use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::kinds::KINDS;
use super::{CalicoctlFile, IpamPart, Pair, SEPARATOR, yaml};
use crate::api::API_VERSION;

#[derive(Serialize)]
struct WrittenIpam<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    block_affinities: Vec<WrittenPair<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    blocks: Vec<WrittenPair<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    handles: Vec<WrittenPair<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<WrittenPair<'a>>,
}

#[derive(Serialize)]
struct WrittenPair<'a> {
    #[serde(rename = "Key")]
    path: &'a str,
    #[serde(rename = "Value")]
    value: &'a Value,
    #[serde(rename = "TTL")]
    ttl: u32,
}

impl fmt::Display for CalicoctlFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for known in &KINDS {
            writeln!(f, "apiVersion: {API_VERSION}")?;
            let items = self
                .resources
                .iter()
                .filter(|object| object["kind"] == known.kind);
            let mut items = items.peekable();
            f.write_str(if items.peek().is_some() {
                "items:\n"
            } else {
                "items: []\n"
            })?;
            for item in items {
                yaml::write_items(f, std::slice::from_ref(item), 0)?;
            }
            writeln!(f, "kind: {}List\nmetadata: {{}}\n---", known.kind)?;
        }
        writeln!(f, "{SEPARATOR}\n{}\n{SEPARATOR}", json_text(&self.cluster)?)?;
        writeln!(f, "{}", json_text(&WrittenIpam::of(&self.ipam))?)
    }
}

impl<'a> WrittenIpam<'a> {
    fn of(ipam: &'a IpamPart) -> Self {
        let pairs = |pairs: &'a [Pair]| pairs.iter().map(WrittenPair::of).collect();
        WrittenIpam {
            block_affinities: pairs(&ipam.affinities),
            blocks: pairs(&ipam.blocks),
            handles: pairs(&ipam.handles),
            config: ipam.config.as_ref().map(WrittenPair::of),
        }
    }
}

impl<'a> WrittenPair<'a> {
    fn of(pair: &'a Pair) -> Self {
        WrittenPair {
            path: &pair.path,
            value: &pair.value,
            ttl: 0,
        }
    }
}

fn json_text(value: &impl Serialize) -> Result<String, fmt::Error> {
    serde_json::to_string_pretty(value).map_err(|_| fmt::Error)
}
