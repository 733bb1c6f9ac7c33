//! [`variable`]: the value of a variable of a container, as far as objects of the API server show
//! it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// ConfigMaps by their names, without the missing ones.
pub(super) type ConfigMaps = BTreeMap<String, Value>;

/// The value of a variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Variable {
    /// The container does not have the variable.
    Unset,
    Text(String),
    /// The value is unknown. The text says why.
    Unknown(String),
}

/// Returns the value of a variable of a container. An entry of `env` precedes all of `envFrom`, and
/// a later entry an earlier one.
pub(super) fn variable(container: &Value, name: &str, config_maps: &ConfigMaps) -> Variable {
    if let Some(entry) = entries(container, "env").rfind(|entry| entry["name"] == name) {
        return of_entry(name, entry, config_maps);
    }
    let found = entries(container, "envFrom")
        .rev()
        .find_map(|source| of_source(name, source, config_maps));
    found.unwrap_or(Variable::Unset)
}

/// Returns the names of the ConfigMaps from which a container gets variables.
pub(super) fn config_maps_of(container: &Value) -> BTreeSet<String> {
    let of_entries =
        entries(container, "env").map(|entry| &entry["valueFrom"]["configMapKeyRef"]["name"]);
    let of_sources = entries(container, "envFrom").map(|source| &source["configMapRef"]["name"]);
    of_entries
        .chain(of_sources)
        .filter_map(|name| name.as_str().map(str::to_owned))
        .collect()
}

fn entries<'a>(
    container: &'a Value,
    field: &str,
) -> impl DoubleEndedIterator<Item = &'a Value> + use<'a> {
    container[field]
        .as_array()
        .map_or(&[][..], Vec::as_slice)
        .iter()
}

fn of_entry(name: &str, entry: &Value, config_maps: &ConfigMaps) -> Variable {
    if entry["valueFrom"].is_null() {
        let text = entry["value"].as_str().unwrap_or_default();
        let is_text = !text.contains("$(");
        return if is_text {
            Variable::Text(text.to_owned())
        } else {
            Variable::Unknown(format!("{name} refers to other variables"))
        };
    }
    let reference = &entry["valueFrom"]["configMapKeyRef"];
    let (Some(config_map), Some(key)) = (reference["name"].as_str(), reference["key"].as_str())
    else {
        return Variable::Unknown(format!("{name} is neither a text nor from a ConfigMap"));
    };
    match config_maps
        .get(config_map)
        .and_then(|found| found["data"][key].as_str())
    {
        Some(text) => Variable::Text(text.to_owned()),
        None if reference["optional"] == true => Variable::Unset,
        None => Variable::Unknown(format!(
            "{name} is from ConfigMap {config_map}, which lacks {key}"
        )),
    }
}

/// Returns `None` if an entry of `envFrom` does not have the variable.
fn of_source(name: &str, source: &Value, config_maps: &ConfigMaps) -> Option<Variable> {
    let key = name.strip_prefix(source["prefix"].as_str().unwrap_or_default())?;
    if let Some(secret) = source["secretRef"]["name"].as_str() {
        return Some(Variable::Unknown(format!(
            "{name} may be from Secret {secret}"
        )));
    }
    let config_map = config_maps.get(source["configMapRef"]["name"].as_str()?)?;
    Some(Variable::Text(config_map["data"][key].as_str()?.to_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NAME: &str = "CALICO_API_GROUP";

    fn config_maps() -> ConfigMaps {
        let data = |value: &str| json!({ "data": { "group": value, NAME: value, "GROUP": value } });
        [("a", data("of a")), ("b", data("of b"))]
            .map(|(name, map)| (name.to_owned(), map))
            .into()
    }

    fn read(container: &Value) -> Variable {
        variable(container, NAME, &config_maps())
    }

    fn text(value: &str) -> Variable {
        Variable::Text(value.to_owned())
    }

    fn of_key(config_map: &str, key: &str, optional: bool) -> Value {
        let reference = json!({ "name": config_map, "key": key, "optional": optional });
        json!({ "name": NAME, "valueFrom": { "configMapKeyRef": reference } })
    }

    #[test]
    fn value_is_a_text_or_from_a_config_map() {
        for (entry, expected) in [
            (json!({ "name": NAME, "value": "v" }), text("v")),
            (json!({ "name": NAME }), text("")),
            (json!({ "name": "OTHER", "value": "v" }), Variable::Unset),
            (of_key("a", "group", false), text("of a")),
            (of_key("a", "missing", true), Variable::Unset),
            (of_key("missing", "group", true), Variable::Unset),
        ] {
            assert_eq!(
                read(&json!({ "env": [entry.clone()] })),
                expected,
                "{entry}"
            );
        }
        let twice =
            json!({ "env": [{ "name": NAME, "value": "1" }, { "name": NAME, "value": "2" }] });
        assert_eq!(read(&twice), text("2"));
    }

    #[test]
    fn value_that_no_object_shows_is_unknown() {
        let of_field =
            json!({ "name": NAME, "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } });
        for (entry, reason) in [
            (
                of_key("missing", "group", false),
                "CALICO_API_GROUP is from ConfigMap missing, which lacks group",
            ),
            (
                of_key("a", "missing", false),
                "CALICO_API_GROUP is from ConfigMap a, which lacks missing",
            ),
            (
                of_field,
                "CALICO_API_GROUP is neither a text nor from a ConfigMap",
            ),
            (
                json!({ "name": NAME, "value": "$(GROUP)" }),
                "CALICO_API_GROUP refers to other variables",
            ),
        ] {
            assert_eq!(
                read(&json!({ "env": [entry.clone()] })),
                Variable::Unknown(reason.to_owned()),
                "{entry}"
            );
        }
    }

    #[test]
    fn last_source_counts_and_an_entry_precedes_the_sources() {
        let source = |name: &str, prefix: &str| {
            json!({
                "configMapRef": { "name": name }, "prefix": prefix,
            })
        };
        let from = |sources: Vec<Value>| read(&json!({ "envFrom": sources }));
        assert_eq!(from(vec![source("a", ""), source("b", "")]), text("of b"));
        assert_eq!(
            from(vec![source("a", ""), source("missing", "")]),
            text("of a")
        );
        assert_eq!(
            from(vec![source("a", "CALICO_API_")]),
            text("of a"),
            "GROUP with a prefix"
        );
        assert_eq!(from(vec![source("a", "OTHER_")]), Variable::Unset);
        let secret = json!({ "secretRef": { "name": "s" } });
        let unknown = Variable::Unknown("CALICO_API_GROUP may be from Secret s".to_owned());
        assert_eq!(from(vec![source("a", ""), secret.clone()]), unknown);
        let both = json!({ "env": [{ "name": NAME, "value": "v" }], "envFrom": [secret] });
        assert_eq!(read(&both), text("v"));
        assert_eq!(read(&json!({})), Variable::Unset);
    }

    #[test]
    fn config_maps_of_entries_and_sources_are_found() {
        let container = json!({ "env": [of_key("a", "group", false), { "name": "B", "value": "v" }],
            "envFrom": [{ "configMapRef": { "name": "b" } }, { "secretRef": { "name": "s" } }] });
        assert_eq!(
            config_maps_of(&container),
            ["a", "b"].map(str::to_owned).into()
        );
    }
}
