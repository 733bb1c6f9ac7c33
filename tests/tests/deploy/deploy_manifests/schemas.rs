//! Each object of a rendering fits the schema that the API server publishes for its kind. Users
//! check manifests with kubeconform, which works offline.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use integration_tests::kubernetes::{ApiServer, Kubernetes, on_shared_kubernetes};
use integration_tests::manifests::{Objects, compose, deploy, kubeconform, parse};
use integration_tests::skip::skipped;
use serde_json::{Value, json};

use super::{COMPONENTS, DAEMON_SET, OVERLAYS, can_render, is_for_prometheus, overlay};

fn can_check() -> bool {
    kubeconform()
        .map_err(|missing| skipped(&missing.to_string()))
        .is_ok()
        && can_render()
}

/// Number of attempts to get a schema, ten per second.
const PATIENCE: usize = 600;

/// Kinds of the Prometheus operator, of which this API server has no schema.
const FOR_PROMETHEUS: &str = "ServiceMonitor,PodMonitor,PrometheusRule";

/// Template of the file names under which kubeconform finds the schemas.
const FILE: &str = "{{.Group}}_{{.ResourceAPIVersion}}_{{.ResourceKind}}.json";

/// Writes the schemas of the kinds of `objects` into a folder, one file per kind.
fn write_schemas(api: &ApiServer, objects: &[Objects], into: &Path) {
    let text = |object: &Value, field: &str| object[field].as_str().unwrap_or_default().to_owned();
    let mut kinds: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for object in objects.iter().flat_map(|set| set.values()) {
        kinds
            .entry(text(object, "apiVersion"))
            .or_default()
            .insert(text(object, "kind"));
    }
    for (api_version, kinds) in kinds
        .into_iter()
        .filter(|(group, _)| !group.starts_with("monitoring.coreos.com/"))
    {
        let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
        let path = if group.is_empty() {
            format!("api/{version}")
        } else {
            format!("apis/{api_version}")
        };
        let names = |kind: &String| json!({ "group": group, "version": version, "kind": kind });
        let (schemas, mut components) =
            published(api, &path, &kinds.iter().map(names).collect::<Vec<_>>());
        components["schemas"]
            .as_object_mut()
            .unwrap()
            .values_mut()
            .for_each(forbid_others);
        let group = if group.is_empty() { version } else { group };
        for (kind, name) in kinds.iter().zip(schemas) {
            let reference = format!("#/components/schemas/{name}");
            let schema = json!({
                "$schema": "http://json-schema.org/draft-07/schema#",
                "allOf": [{ "$ref": reference }],
                "components": components,
            });
            fs::write(
                into.join(format!("{group}_{version}_{}.json", kind.to_lowercase())),
                schema.to_string(),
            )
            .unwrap();
        }
    }
}

/// Waits until the schemas of kinds of one group are published. Returns their names and all schemas
/// of the group.
fn published(api: &ApiServer, path: &str, kinds: &[Value]) -> (Vec<String>, Value) {
    let get = |place: &str| api.admin().get(place).unwrap().success();
    for _ in 0..PATIENCE {
        if let Some(place) = get("/openapi/v3")["paths"][path]["serverRelativeURL"].as_str() {
            let components = get(place)["components"].take();
            let schemas = components["schemas"].as_object().unwrap();
            let name_of = |kind: &Value| {
                let is_it = |schema: &Value| {
                    schema["x-kubernetes-group-version-kind"]
                        .as_array()
                        .is_some_and(|kinds| kinds.contains(kind))
                };
                schemas
                    .iter()
                    .find(|(_, schema)| is_it(schema))
                    .map(|(name, _)| name.clone())
            };
            if let Some(names) = kinds.iter().map(name_of).collect() {
                return (names, components);
            }
        }
        thread::sleep(Duration::from_millis(100));
    }
    panic!("no schemas of {kinds:?}");
}

/// Forbids additional fields in objects whose schema lists fields and does not permit others.
fn forbid_others(schema: &mut Value) {
    let Value::Object(fields) = schema else {
        return;
    };
    let is_open = fields.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true));
    if let Some(Value::Object(named)) = fields.get_mut("properties") {
        named.values_mut().for_each(forbid_others);
        if !is_open {
            fields
                .entry("additionalProperties")
                .or_insert(Value::Bool(false));
        }
    }
    for part in ["items", "additionalProperties"] {
        fields.get_mut(part).into_iter().for_each(forbid_others);
    }
}

/// Returns kubeconform's messages, and the number of valid objects.
fn check(directory: &Path, objects: &Objects) -> (Vec<String>, usize) {
    let file = directory.join("objects.yaml");
    let documents: Vec<String> = objects.values().map(Value::to_string).collect();
    fs::write(&file, documents.join("\n---\n")).unwrap();
    let schemas = directory.join(FILE).display().to_string();
    let answer = Command::new(kubeconform().unwrap())
        .args([
            "-strict",
            "-summary",
            "-output",
            "json",
            "-skip",
            FOR_PROMETHEUS,
            "-schema-location",
            &schemas,
        ])
        .arg(&file)
        .output()
        .unwrap();
    let said: Value = serde_json::from_slice(&answer.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&answer.stderr)));
    let count = |field: &str| usize::try_from(said["summary"][field].as_u64().unwrap()).unwrap();
    let monitors = objects
        .keys()
        .filter(|name| is_for_prometheus(name))
        .count();
    assert_eq!(count("skipped"), monitors, "{said}");
    let wrong = said["resources"].as_array().into_iter().flatten();
    (
        wrong
            .map(|object| format!("{}: {}", object["name"], object["msg"]))
            .collect(),
        count("valid"),
    )
}

#[test]
fn every_object_matches_the_schema_of_its_kind() {
    if !can_check() {
        return;
    }
    on_shared_kubernetes(|host, Kubernetes { api, .. }| {
        let directory = host.dir("schemas");
        let read = |file: &Path| parse(&fs::read_to_string(file).unwrap()).unwrap();
        let mut renderings: Vec<Objects> = OVERLAYS.iter().map(|name| overlay(name)).collect();
        let optional = COMPONENTS
            .iter()
            .map(|name| compose(&directory, &[OVERLAYS[0]], &[name]).unwrap());
        renderings.extend(optional);
        let files = [
            "install.yaml",
            "uninstall/uninstall.yaml",
            "adopt/adopt.yaml",
            "adopt/rbac.yaml",
        ];
        renderings.extend(files.map(|file| read(&deploy(file))));
        for group in ["crd.projectcalico.org/v1", "projectcalico.org/v3"] {
            api.define(group).unwrap();
            for example in fs::read_dir(deploy("examples")).unwrap() {
                let text = fs::read_to_string(example.unwrap().path()).unwrap();
                renderings.push(parse(&text.replace("crd.projectcalico.org/v1", group)).unwrap());
            }
        }
        write_schemas(api, &renderings, &directory);
        // Most objects are the same in many renderings, so each is checked once.
        let mut checked = BTreeSet::new();
        for mut objects in renderings {
            objects.retain(|_, object| checked.insert(object.to_string()));
            if objects.is_empty() {
                continue;
            }
            let monitors = objects
                .keys()
                .filter(|name| is_for_prometheus(name))
                .count();
            assert_eq!(
                check(&directory, &objects),
                (Vec::new(), objects.len() - monitors)
            );
        }
    });
}

#[test]
fn kubeconform_reports_fields_that_violate_the_schema() {
    if !can_check() {
        return;
    }
    on_shared_kubernetes(|host, Kubernetes { api, .. }| {
        let directory = host.dir("schemas");
        let of = |object: Value| Objects::from([(DAEMON_SET.to_owned(), object)]);
        let right = overlay(OVERLAYS[0])[DAEMON_SET].clone();
        write_schemas(api, &[of(right.clone())], &directory);
        for (place, wrong, said) in [
            (
                "/spec/template/spec/initConteiners",
                json!([]),
                "initConteiners",
            ),
            (
                "/spec/template/spec/hostNetwork",
                json!("yes"),
                "hostNetwork",
            ),
            (
                "/spec/template/spec/containers",
                json!([{ "image": "x" }]),
                "name",
            ),
        ] {
            let mut object = right.clone();
            let (parent, field) = place.rsplit_once('/').unwrap();
            object.pointer_mut(parent).unwrap()[field] = wrong;
            let (told, valid) = check(&directory, &of(object));
            assert!(
                valid == 0 && told.len() == 1 && told[0].contains(said),
                "{place}: {told:?}"
            );
        }
        assert_eq!(check(&directory, &of(right)), (Vec::new(), 1));
    });
}
