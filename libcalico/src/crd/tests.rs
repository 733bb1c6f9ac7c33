//! Tests of the definitions and of the files in `deploy/crds`.
//!
//! CEL rules need a real API server: `tests/tests/kubernetes/kubernetes_crds.rs`.

mod api_server;
mod migration;
mod preserved_fields;
mod rejected_objects;

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use serde_json::Value;

use super::migration::datastore_migration;
use super::{definitions, generated_files};
use crate::kubernetes::ApiGroup;
use crate::kubernetes::golden::GROUPS;

/// The definitions of each group, whose generation takes long.
static DEFINITIONS: LazyLock<Vec<(ApiGroup, Vec<Value>)>> =
    LazyLock::new(|| GROUPS.map(|(_, group)| (group, definitions(group))).into());

fn schema(group: ApiGroup, plural: &str) -> Value {
    let (_, definitions) = DEFINITIONS
        .iter()
        .find(|(of, _)| *of == group)
        .expect("each group has definitions");
    let definition = definitions
        .iter()
        .find(|definition| definition["spec"]["names"]["plural"] == plural);
    let definition = definition.unwrap_or_else(|| panic!("no {plural}"));
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

#[test]
fn published_crds_are_current() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/crds");
    let mut there: Vec<String> = Vec::new();
    for group in fs::read_dir(&folder).unwrap() {
        for file in fs::read_dir(group.unwrap().path()).unwrap() {
            there.push(
                file.unwrap()
                    .path()
                    .strip_prefix(&folder)
                    .unwrap()
                    .display()
                    .to_string(),
            );
        }
    }
    there.sort();
    let mut made = generated_files().unwrap();
    made.sort();
    assert_eq!(
        there,
        made.iter()
            .map(|(path, _)| path.as_str())
            .collect::<Vec<_>>(),
        "make generate"
    );
    for (path, text) in made {
        assert!(
            fs::read_to_string(folder.join(&path)).unwrap() == text,
            "deploy/crds/{path} is old: make generate"
        );
    }
}

#[test]
fn crd_short_names_columns_and_status_match_upstreams() {
    let shown = |group| {
        let shown = definitions(group).into_iter().map(|definition| {
            let (names, version) = (
                &definition["spec"]["names"],
                &definition["spec"]["versions"][0],
            );
            let list = |value: &Value, key: Option<&str>| {
                let items = value.as_array().into_iter().flatten();
                items
                    .map(|item| {
                        key.map_or(item, |key| &item[key])
                            .as_str()
                            .unwrap()
                            .to_owned()
                    })
                    .collect::<Vec<_>>()
            };
            let mut line = vec![names["kind"].as_str().unwrap().to_owned()];
            line.extend(list(&names["shortNames"], None));
            line.extend(list(&version["additionalPrinterColumns"], Some("name")));
            line.extend(
                version
                    .pointer("/subresources/status")
                    .map(|_| "status".to_owned()),
            );
            line.join(" ")
        });
        shown.collect::<Vec<_>>()
    };
    assert_eq!(
        shown(ApiGroup::CrdV1),
        [
            "BlockAffinity",
            "ClusterInformation",
            "GlobalNetworkPolicy",
            "HostEndpoint",
            "IPAMBlock",
            "IPAMConfig",
            "IPAMHandle",
            "IPPool status",
            "IPReservation",
            "KubeControllersConfiguration status",
            "NetworkPolicy",
            "StagedGlobalNetworkPolicy",
            "StagedNetworkPolicy",
            "Tier status",
        ]
    );
    assert_eq!(
        shown(ApiGroup::V3),
        [
            "BlockAffinity affinity affinities CIDR Node Type",
            "ClusterInformation clusterinfo clusterinfos",
            "GlobalNetworkPolicy",
            "HostEndpoint Node Interface",
            "IPAMBlock CIDR Affinity ClaimTime",
            "IPAMConfiguration ipamconfig ipamconfigs StrictAffinity MaxBlocksPerHost \
             AutoAllocateBlocks",
            "IPAMHandle ID",
            "IPPool CIDR VXLAN IPIP NAT Allocatable Age status",
            "IPReservation",
            "KubeControllersConfiguration status",
            "NetworkPolicy",
            "StagedGlobalNetworkPolicy",
            "StagedNetworkPolicy",
            "Tier Order DefaultAction Status status",
        ]
    );
}

#[test]
fn crd_schemas_are_structural() {
    const KEYWORDS: [&str; 21] = [
        "additionalProperties",
        "anyOf",
        "default",
        "description",
        "enum",
        "format",
        "items",
        "maxItems",
        "maxLength",
        "maximum",
        "minLength",
        "minimum",
        "nullable",
        "pattern",
        "properties",
        "required",
        "type",
        "x-kubernetes-int-or-string",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-list-type",
        "x-kubernetes-validations",
    ];
    fn check(schema: &Value, path: &str, is_field: bool) {
        let keywords = schema.as_object().unwrap();
        assert!(
            schema["type"].is_string() || schema["x-kubernetes-int-or-string"] == true,
            "{path} has no type"
        );
        for keyword in keywords.keys() {
            assert!(KEYWORDS.contains(&keyword.as_str()), "{path}: {keyword}");
        }
        assert!(
            !(keywords.contains_key("properties") && keywords.contains_key("additionalProperties")),
            "{path}"
        );
        let description = schema["description"].as_str().unwrap_or_default();
        assert!(
            !is_field || path == ".metadata" || description.ends_with('.'),
            "{path}: {description:?}"
        );
        assert!(
            !["DS-", "IPAM-", "CNI-", "](", "::"]
                .iter()
                .any(|mark| description.contains(mark)),
            "{description}"
        );
        let properties = schema["properties"].as_object();
        for name in schema["required"].as_array().into_iter().flatten() {
            assert!(
                properties.unwrap().contains_key(name.as_str().unwrap()),
                "{path}: {name}"
            );
        }
        properties
            .into_iter()
            .flatten()
            .for_each(|(key, field)| check(field, &format!("{path}.{key}"), true));
        for each in ["items", "additionalProperties"]
            .iter()
            .filter_map(|key| keywords.get(*key))
        {
            check(each, &format!("{path}[]"), false);
        }
    }
    for definition in GROUPS
        .iter()
        .flat_map(|(_, group)| definitions(*group))
        .chain([datastore_migration()])
    {
        check(
            &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"],
            "",
            true,
        );
    }
}
