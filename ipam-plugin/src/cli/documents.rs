//! Reads manifests from a file: YAML or JSON, one document or several. Lists are split into their items.

use std::io::Read;
use std::path::Path;

use libcalico::validation::manifest::{self, Manifest};
use serde::Deserialize;
use serde_json::Value;

use super::error::CliError;

/// Reads all manifests of `path`, or of stdin for `-`. An invalid manifest rejects all of them.
pub(super) fn read(path: &Path) -> Result<Vec<Manifest>, CliError> {
    let from_stdin = path.as_os_str() == "-";
    let file = if from_stdin { "stdin".to_owned() } else { path.display().to_string() };
    let text = if from_stdin { read_stdin() } else { std::fs::read_to_string(path) };
    let text = text.map_err(|cause| CliError::File { what: "read", path: file.clone(), cause })?;
    parse(&file, &text)
}

fn read_stdin() -> std::io::Result<String> {
    let mut text = String::new();
    std::io::stdin().lock().read_to_string(&mut text)?;
    Ok(text)
}

/// Parses the manifests in `text`. `file` is the name for errors.
pub(super) fn parse(file: &str, text: &str) -> Result<Vec<Manifest>, CliError> {
    let mut manifests = Vec::new();
    for (index, document) in documents(text).enumerate() {
        let number = index + 1;
        let document = document.map_err(|reason| CliError::Document { file: file.into(), number, reason })?;
        for object in objects(document) {
            let decoded = manifest::decode(object);
            manifests.push(decoded.map_err(|cause| CliError::Manifest { file: file.into(), number, cause })?);
        }
    }
    if manifests.is_empty() {
        return Err(CliError::NoDocuments { file: file.into() });
    }
    Ok(manifests)
}

/// Returns the documents in `text`. The YAML parser accepts JSON, but neither consecutive JSON values nor tabs.
fn documents(text: &str) -> Box<dyn Iterator<Item = Result<Value, String>> + '_> {
    if text.trim_start().starts_with(['{', '[']) {
        let values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        return Box::new(values.map(|value| value.map_err(|error| error.to_string())));
    }
    let values = serde_norway::Deserializer::from_str(text);
    Box::new(values.map(|value| Value::deserialize(value).map_err(|error| error.to_string())))
}

/// Returns the objects of a document: none for an empty document, the items of a list.
fn objects(document: Value) -> Vec<Value> {
    match document {
        Value::Null => Vec::new(),
        Value::Array(items) => items,
        Value::Object(mut object) if is_list(object.get("kind"), object.get("items")) => match object.remove("items") {
            Some(Value::Array(items)) => items,
            _ => Vec::new(),
        },
        other => vec![other],
    }
}

fn is_list(kind: Option<&Value>, items: Option<&Value>) -> bool {
    kind.and_then(Value::as_str).is_some_and(|kind| kind.ends_with("List")) && items.is_some_and(Value::is_array)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: &str = r#"{"apiVersion":"projectcalico.org/v3","kind":"IPPool","metadata":{"name":"p"},"spec":{}}"#;
    const NODE: &str = "apiVersion: projectcalico.org/v3\nkind: Node\nmetadata:\n  name: n\n";

    fn kinds(text: &str) -> Vec<&'static str> {
        let kind = |manifest: &Manifest| match manifest {
            Manifest::IpPool(_) => "IPPool",
            Manifest::Node(_) => "Node",
            _ => "other",
        };
        parse("f", text).unwrap().iter().map(kind).collect()
    }

    #[test]
    fn yaml_json_and_lists() {
        assert_eq!(kinds(NODE), ["Node"]);
        assert_eq!(kinds(&format!("---\n{NODE}---\n# nothing\n---\n{NODE}")), ["Node", "Node"]);
        assert_eq!(kinds(&format!("{POOL}\n{POOL}")), ["IPPool", "IPPool"]);
        assert_eq!(kinds(&format!("---\n{NODE}---\n{POOL}\n")), ["Node", "IPPool"]);
        assert_eq!(kinds(&format!("[{POOL},{POOL}]")), ["IPPool", "IPPool"]);
        assert_eq!(kinds(&format!(r#"{{"kind":"IPPoolList","apiVersion":"x","items":[{POOL}]}}"#)), ["IPPool"]);
    }

    #[test]
    fn errors_say_which_document() {
        let error = |text: &str| parse("pools.yaml", text).unwrap_err().to_string();
        let second = error(&format!("{NODE}---\nkind: Pool\n"));
        assert!(second.starts_with("pools.yaml, document 2: the kind \"Pool\" is not known here"), "{second}");
        assert!(error("a: [").starts_with("pools.yaml, document 1: "));
        assert!(error("{\"a\": ").starts_with("pools.yaml, document 1: "));
        assert!(error("").starts_with("pools.yaml holds no object"));
        assert!(error("# only a comment\n").starts_with("pools.yaml holds no object"));
    }
}
