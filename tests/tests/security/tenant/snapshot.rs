//! A snapshot of the other owners' state.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Result, ensure};
use integration_tests::command::ip_json;
use integration_tests::golden::compare::differences;
use integration_tests::golden::marks::Bindings;
use integration_tests::journal::JOURNAL;
use integration_tests::kernel;
use serde_json::{Map, Value, json};

use super::shared_nodes::SharedNodes;

/// Directories of a node, and those below them that belong to the plugin or the runtime.
const DIRECTORIES: [&str; 4] = ["/run", "/var/lib", "/var/log", "/etc/cni"];
const OURS: [&str; 5] = [
    "/run/netns",
    "/run/calico",
    "/var/lib/calico",
    "/var/log/calico",
    "/run/lock",
];

/// Names of everything that existed before the tenant.
pub(crate) struct Others {
    handles: BTreeSet<String>,
    endpoints: BTreeSet<String>,
    /// Per node, in the order of the nodes.
    nodes: Vec<OfNode>,
}

#[derive(Default)]
struct OfNode {
    links: BTreeSet<String>,
    routes: BTreeSet<String>,
    journal_entries: BTreeSet<String>,
}

impl Others {
    pub(crate) fn of(shared: &SharedNodes<'_>) -> Result<Others> {
        let content = shared.cluster.store.dump()?;
        let mut others = Others {
            handles: allocations(&content)
                .map(|(_, attribute)| handle_of(&attribute))
                .collect(),
            endpoints: content
                .keys()
                .filter(|key| is_endpoint(key))
                .cloned()
                .collect(),
            nodes: Vec::new(),
        };
        for node in &shared.nodes {
            let seen = node.kernel()?;
            let routes = seen["routes"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|route| route["dst"].as_str());
            others.nodes.push(OfNode {
                links: seen["links"]
                    .as_object()
                    .into_iter()
                    .flat_map(Map::keys)
                    .cloned()
                    .collect(),
                routes: routes
                    .filter(|to| !to.starts_with("fe80:"))
                    .map(str::to_owned)
                    .collect(),
                journal_entries: node.on(|_| journal_entries())?.into_keys().collect(),
            });
        }
        Ok(others)
    }

    pub(crate) fn snapshot(&self, shared: &SharedNodes<'_>) -> Result<Value> {
        let content = shared.cluster.store.dump()?;
        let allocated: BTreeMap<String, Value> = allocations(&content)
            .filter(|(_, attribute)| self.handles.contains(&handle_of(attribute)))
            .collect();
        let is_handle = |key: &str, value: &Value| {
            let id = value["spec"]["handleID"]
                .as_str()
                .or_else(|| key.strip_prefix("/calico/ipam/v2/handle/"));
            key.contains("handle") && id.is_some_and(|id| self.handles.contains(id))
        };
        let kept = |(key, value): &(&String, &Value)| {
            self.endpoints.contains(*key) || is_handle(key, value)
        };
        let objects: BTreeMap<&String, &Value> = content.iter().filter(kept).collect();
        let mut nodes = Map::new();
        for (node, of_others) in shared.nodes.iter().zip(&self.nodes) {
            nodes.insert(node.name.clone(), node.on(|_| of_others.snapshot())?);
        }
        Ok(json!({ "allocated": allocated, "objects": objects, "nodes": nodes }))
    }
}

impl OfNode {
    /// Returns the state of the other owners on the calling thread's node.
    fn snapshot(&self) -> Result<Value> {
        let mut seen = kernel::host()?;
        for part in ["links", "sysctls"] {
            if let Some(links) = seen[part].as_object_mut() {
                links.retain(|name, _| self.links.contains(name));
            }
        }
        let routes: Vec<Value> = list(ip_json("-4 route show")?)
            .chain(list(ip_json("-6 route show")?))
            .filter(|route| self.is_of_others(route))
            .map(|route| json!({ "dst": route["dst"], "dev": route["dev"], "via": route["gateway"] }))
            .collect();
        seen["routes"] = json!(routes);
        let numbers: BTreeMap<String, Value> = list(ip_json("link show")?)
            .filter_map(|link| {
                let name = link["ifname"]
                    .as_str()
                    .filter(|name| self.links.contains(*name) || *name == "uplink0")?;
                Some((
                    name.to_owned(),
                    json!([link["ifindex"], link["link_index"], link["operstate"]]),
                ))
            })
            .collect();
        seen["numbers"] = json!(numbers);
        let mut entries = journal_entries()?;
        entries.retain(|name, _| self.journal_entries.contains(name));
        seen["journal"] = json!(entries);
        seen["files"] = json!(files()?);
        Ok(seen)
    }

    fn is_of_others(&self, route: &Value) -> bool {
        let is_in = |field: &str, names: &BTreeSet<String>| {
            route[field]
                .as_str()
                .is_some_and(|name| names.contains(name))
        };
        is_in("dst", &self.routes) || is_in("dev", &self.links) || route["dev"] == "uplink0"
    }
}

pub(crate) fn same(before: &Value, after: &Value) -> Result<()> {
    if before == after {
        return Ok(());
    }
    let text = |value: &Option<Value>| {
        value
            .as_ref()
            .map_or("nothing".to_owned(), Value::to_string)
    };
    let changes: Vec<String> = differences(before, after, "", &mut Bindings::default())
        .iter()
        .map(|change| {
            format!(
                "{}: was {}, is {}",
                change.path,
                text(&change.recorded),
                text(&change.ours)
            )
        })
        .collect();
    ensure!(
        changes.is_empty(),
        "changed of the others': {}",
        changes.join("\n")
    );
    Ok(())
}

fn is_endpoint(key: &str) -> bool {
    key.starts_with("pods/") || key.contains("/workloadendpoints/")
}

/// Returns block and ordinal of each allocation, with its attribute.
fn allocations(content: &BTreeMap<String, Value>) -> impl Iterator<Item = (String, Value)> {
    let blocks = content
        .iter()
        .filter(|(key, _)| key.starts_with("ipamblocks/") || key.contains("/assignment/"));
    blocks.flat_map(|(_, block)| {
        let block = if block["spec"].is_object() {
            &block["spec"]
        } else {
            block
        };
        let cidr = block["cidr"].as_str().unwrap_or_default();
        let given = block["allocations"]
            .as_array()
            .into_iter()
            .flatten()
            .enumerate();
        given.filter_map(move |(ordinal, index)| {
            let attribute = block["attributes"].get(usize::try_from(index.as_u64()?).ok()?)?;
            Some((format!("{cidr} {ordinal}"), attribute.clone()))
        })
    })
}

fn handle_of(attribute: &Value) -> String {
    attribute["handle_id"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

fn journal_entries() -> Result<BTreeMap<String, String>> {
    let mut entries = BTreeMap::new();
    for file in fs::read_dir(JOURNAL).into_iter().flatten() {
        let path = file?.path();
        if path.extension().is_some_and(|ending| ending == "json") {
            entries.insert(path.display().to_string(), fs::read_to_string(&path)?);
        }
    }
    Ok(entries)
}

/// Returns the files that belong neither to the plugin nor to the runtime.
fn files() -> Result<BTreeMap<String, (u64, i64, i64, String)>> {
    let mut found = BTreeMap::new();
    let mut open: Vec<_> = DIRECTORIES
        .iter()
        .map(|dir| Path::new(dir).to_owned())
        .collect();
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory)? {
            let path = entry?.path();
            let metadata = fs::symlink_metadata(&path)?;
            if OURS.iter().any(|ours| path.starts_with(ours)) {
                continue;
            }
            if metadata.is_dir() {
                open.push(path);
            } else {
                let content = fs::read(&path).unwrap_or_default();
                let text = String::from_utf8_lossy(&content).into_owned();
                found.insert(
                    path.display().to_string(),
                    (
                        metadata.ino(),
                        metadata.mtime(),
                        metadata.mtime_nsec(),
                        text,
                    ),
                );
            }
        }
    }
    Ok(found)
}

fn list(value: Value) -> impl Iterator<Item = Value> {
    let items = if let Value::Array(items) = value {
        items
    } else {
        Vec::new()
    };
    items.into_iter()
}
