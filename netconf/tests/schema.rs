//! Checks that the published schema matches the types, and that the description of every key states
//! its readers.

use netconf::schema;
use serde_json::Value;

#[test]
fn published_schema_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/netconf.schema.json");
    let published = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        published == schema::published(),
        "deploy/netconf.schema.json is out of date; run `make generate`"
    );
}

#[test]
fn every_schema_key_names_its_reader() {
    fn check(schema: &Value, path: &str) -> usize {
        let properties = schema
            .get("properties")
            .and_then(Value::as_object)
            .into_iter()
            .flatten();
        let mut count = 0;
        for (key, property) in properties {
            let description = property
                .get("description")
                .and_then(Value::as_str)
                .unwrap_or_default();
            let said = ["Read by ", "Read on ", "Not read."]
                .iter()
                .any(|words| description.contains(words));
            assert!(said, "{path}.{key}: {description:?}");
            count += 1 + check(property, &format!("{path}.{key}"));
        }
        schema
            .get("items")
            .map_or(count, |items| count + check(items, &format!("{path}[]")))
    }
    assert!(check(&schema::netconf(), "$") > 80);
}

#[test]
fn deprecated_keys_are_marked_in_the_schema() {
    let schema = schema::netconf();
    let properties = schema["properties"].as_object().unwrap();
    let deprecated = properties
        .iter()
        .filter(|(_, property)| property["deprecated"] == true);
    let names: Vec<_> = deprecated.map(|(key, _)| key.as_str()).collect();
    assert_eq!(names, ["etcd_authority", "etcd_scheme", "hostname"]);
    for name in names {
        assert!(
            properties[name]["description"]
                .as_str()
                .unwrap()
                .starts_with("Deprecated"),
            "{name}"
        );
    }
}
