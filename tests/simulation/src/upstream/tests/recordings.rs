//! Replays recorded calls of upstream's plugin. After each call, the blocks, handles and affinities
//! must equal the recorded ones.

use std::collections::BTreeMap;
use std::path::Path;

use libcalico::api::{IpPool, Node, NodeSpec, ObjectKey};
use libcalico::ipam::{AffinityKey, AffinityOwner, Block, BlockAffinity, Handle, HandleId};
use libcalico::net::{Cidr, IpVersion};
use libcalico::store::Kind;
use memory_store::{MemoryStore, Pairs};
use serde_json::{Map, Value, json};
use time::OffsetDateTime;
use time::macros::datetime;

use crate::upstream::{self, AddRequest};

const NOW: OffsetDateTime = datetime!(2026-08-22 01:02:03 UTC);

/// The recordings without pools of a request, and without a pod that is deleted before its DEL.
const SCENARIOS: [&str; 7] = [
    "args-ip",
    "borrow",
    "dual-stack",
    "pool-exhausted",
    "v4-add-del",
    "v4-two-pods",
    "v6-only",
];

#[derive(Debug, Default, PartialEq)]
struct Stored {
    blocks: BTreeMap<String, Block>,
    handles: BTreeMap<String, Handle>,
    affinities: BTreeMap<String, BlockAffinity>,
}

impl Stored {
    fn of(pairs: &Pairs) -> Self {
        let affinities = ["node1", "node2"].map(|node| {
            let owner = AffinityOwner::Host(node.into());
            pairs.list::<BlockAffinity>(&libcalico::ipam::AffinitySelect::of(owner))
        });
        Stored {
            blocks: by_path(pairs.list::<Block>(&None)),
            handles: by_path(pairs.list::<Handle>(&())),
            affinities: by_path(affinities.concat()),
        }
    }

    /// Reads the objects after a recorded call on etcd.
    fn of_etcd(store: &Map<String, Value>) -> Self {
        let mut stored = Stored::default();
        for (path, value) in store {
            let bytes = value.to_string();
            if Block::parse_path(path).is_some() {
                let block = Block::decode(bytes.as_bytes()).unwrap();
                stored.blocks.insert(path.clone(), block);
            } else if Handle::parse_path(path).is_some() {
                let handle = Handle::decode(bytes.as_bytes()).unwrap();
                stored.handles.insert(path.clone(), handle);
            } else if BlockAffinity::parse_path(path).is_some() {
                let affinity = BlockAffinity::decode(bytes.as_bytes()).unwrap();
                stored.affinities.insert(path.clone(), affinity);
            }
        }
        stored
    }

    /// Reads the objects after a recorded call on an API server.
    fn of_kubernetes(store: &Map<String, Value>) -> Self {
        let mut stored = Stored::default();
        for object in store.values() {
            let mut spec = object["spec"].clone();
            match object["kind"].as_str() {
                Some("IPAMBlock") => {
                    let fields = spec.as_object_mut().unwrap();
                    fields.remove("strictAffinity");
                    let claimed = fields.remove("affinityClaimTime");
                    fields.extend(claimed.map(|time| ("affinity_claim_time".to_owned(), time)));
                    let block: Block = serde_json::from_value(spec).unwrap();
                    stored.blocks.insert(Block::path(&block.cidr), block);
                }
                Some("IPAMHandle") => {
                    let fields = spec.as_object_mut().unwrap();
                    let id = fields.remove("handleID").unwrap();
                    let path = Handle::path(&HandleId::new(id.as_str().unwrap()));
                    let handle = serde_json::from_value(spec).unwrap();
                    stored.handles.insert(path, handle);
                }
                Some("BlockAffinity") => {
                    let text = |key| spec[key].as_str().unwrap();
                    let key = AffinityKey {
                        owner: AffinityOwner::Host(text("node").into()),
                        cidr: text("cidr").parse().unwrap(),
                    };
                    let value = json!({"state": text("state"), "deleted": false});
                    let affinity = serde_json::from_value(value).unwrap();
                    let path = BlockAffinity::path(&key);
                    stored.affinities.insert(path, affinity);
                }
                _ => {}
            }
        }
        stored
    }
}

fn by_path<K: Kind>(objects: Vec<(K::Key, K)>) -> BTreeMap<String, K> {
    let objects = objects.into_iter();
    objects.map(|(key, value)| (K::path(&key), value)).collect()
}

/// Replaces the marks of times and of sequence numbers. The first write of a block after its
/// creation has the mark `<seqN+0>`.
fn without_marks(value: &mut Value) {
    match value {
        Value::String(text) if text == "<time>" => *text = "2026-08-22T01:02:03Z".into(),
        Value::String(text) if text.starts_with("<seq") => {
            let end = text.trim_end_matches('>');
            let sign = end.find(['+', '-']).unwrap();
            let offset: i128 = end[sign..].parse().unwrap();
            let number = NOW.unix_timestamp_nanos() + 1 + offset;
            *value = u64::try_from(number).unwrap().into();
        }
        Value::Array(items) => items.iter_mut().for_each(without_marks),
        Value::Object(fields) => fields.values_mut().for_each(without_marks),
        _ => {}
    }
}

fn scenario(folder: &str, name: &str) -> Value {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden");
    let file = golden.join(folder).join(name).with_extension("json");
    let mut scenario = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    without_marks(&mut scenario);
    scenario
}

fn prepare(store: &MemoryStore, initial: &Value) {
    for (path, object) in initial.as_object().unwrap() {
        let name = path.rsplit('/').next().unwrap();
        if path.contains("ippools/") {
            let spec = serde_json::from_value(object["spec"].clone()).unwrap();
            store.put(&ObjectKey::global(name), &IpPool::new(name, spec));
        }
    }
    for name in ["node1", "node2"] {
        let node = Node::new(name, NodeSpec::default());
        store.put(&ObjectKey::global(name), &node);
    }
}

/// Makes the call, and returns true if it succeeds.
async fn call(store: &MemoryStore, step: &Value) -> bool {
    let (env, conf) = (&step["env"], &step["stdin"]);
    let args: BTreeMap<&str, &str> = env["CNI_ARGS"]
        .as_str()
        .unwrap()
        .split(';')
        .filter_map(|pair| pair.split_once('='))
        .collect();
    let (network, container) = (conf["name"].as_str(), env["CNI_CONTAINERID"].as_str());
    let handle = HandleId::for_container(network.unwrap(), container.unwrap());
    let now = &|| NOW;
    if env["CNI_COMMAND"] == "DEL" {
        return upstream::del(store, now, &handle, None).await.is_ok();
    }
    let node = conf["nodename"].as_str().unwrap();
    let mut attributes: BTreeMap<String, String> = [
        ("node".to_owned(), node.to_owned()),
        ("timestamp".to_owned(), "<go-time>".to_owned()),
    ]
    .into();
    for (key, arg) in [("namespace", "K8S_POD_NAMESPACE"), ("pod", "K8S_POD_NAME")] {
        attributes.extend(
            args.get(arg)
                .map(|text| (key.to_owned(), (*text).to_owned())),
        );
    }
    let request = AddRequest {
        node,
        handle: &handle,
        attributes: &attributes,
        pools: &Vec::<Cidr>::new(),
        namespace: None,
    };
    if let Some(ip) = args.get("IP") {
        let ip = ip.parse().unwrap();
        return upstream::add_fixed(store, now, &request, ip).await.is_ok();
    }
    let mut families = Vec::new();
    if conf["ipam"]["assign_ipv4"] != "false" {
        families.push(IpVersion::V4);
    }
    if conf["ipam"]["assign_ipv6"] == "true" {
        families.push(IpVersion::V6);
    }
    let added = upstream::add(store, now, &request, &families).await;
    added.is_ok()
}

async fn replay(
    folder: &str,
    store: impl Fn() -> MemoryStore,
    read: impl Fn(&Map<String, Value>) -> Stored,
) {
    for name in SCENARIOS {
        let (scenario, store) = (scenario(folder, name), store());
        prepare(&store, &scenario["initial"]);
        for (index, step) in scenario["steps"].as_array().unwrap().iter().enumerate() {
            let succeeded = call(&store, step).await;
            let place = format!("{folder}/{name}, step {}", index + 1);
            assert_eq!(succeeded, step["exit"] == 0, "{place}");
            let recorded = read(step["after"]["store"].as_object().unwrap());
            assert_eq!(Stored::of(&store.pairs()), recorded, "{place}");
        }
    }
}

#[tokio::test]
async fn replay_of_recordings_on_etcd_leaves_the_same_objects() {
    replay("etcd", MemoryStore::transactional, Stored::of_etcd).await;
}

#[tokio::test]
async fn replay_of_recordings_on_kubernetes_leaves_the_same_objects() {
    for folder in ["kdd1", "kdd3"] {
        replay(folder, MemoryStore::sequential, Stored::of_kubernetes).await;
    }
}
