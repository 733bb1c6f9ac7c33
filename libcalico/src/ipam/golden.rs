//! Replays recorded calls of upstream's plugin (`tests/golden/etcd`): our changes of blocks and
//! handles must equal upstream's.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use time::OffsetDateTime;

use super::*;
use crate::api::{AllowedUse, IpPool};
use crate::net::{Cidr, IpVersion};
use crate::store::Kind;

type Store = BTreeMap<String, Value>;

#[derive(Deserialize)]
struct Scenario {
    initial: Store,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Step {
    env: BTreeMap<String, String>,
    stdin: Value,
    exit: i32,
    after: After,
}

#[derive(Deserialize)]
struct After {
    store: Store,
}

/// Returns a number for a mark `<seqN+k>`, which replaces a sequence number in the recordings.
fn sequence_of_mark(mark: &str) -> Option<u64> {
    let inner = mark.strip_prefix("<seq")?.strip_suffix('>')?;
    let at = inner.find(['+', '-'])?;
    let (family, offset): (i64, i64) = (inner[..at].parse().ok()?, inner[at..].parse().ok()?);
    u64::try_from(family * 1_000_000_000 + offset).ok()
}

fn numbers_for_marks(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Some(number) = sequence_of_mark(text) {
                *value = number.into();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(numbers_for_marks),
        Value::Object(fields) => fields.values_mut().for_each(numbers_for_marks),
        _ => {}
    }
}

fn decode_all<K: Kind>(store: &Store) -> Vec<(K::Key, K)> {
    let entries = store
        .iter()
        .filter_map(|(path, value)| Some((K::parse_path(path)?, value)));
    entries
        .map(|(key, value)| {
            let mut value = value.clone();
            numbers_for_marks(&mut value);
            (key, K::decode(value.to_string().as_bytes()).unwrap())
        })
        .collect()
}

fn blocks(store: &Store) -> BTreeMap<Cidr, Block> {
    decode_all::<Block>(store).into_iter().collect()
}

fn handles(store: &Store) -> BTreeMap<HandleId, Handle> {
    decode_all::<Handle>(store).into_iter().collect()
}

struct Call {
    owner: AffinityOwner,
    handle: HandleId,
    attributes: BTreeMap<String, String>,
    requested_ip: Option<std::net::IpAddr>,
    is_add: bool,
    has_failed: bool,
}

impl Call {
    fn of(step: &Step) -> Self {
        let node = step.stdin["nodename"].as_str().unwrap();
        let args: BTreeMap<&str, &str> =
            step.env.get("CNI_ARGS").map_or_else(BTreeMap::new, |args| {
                args.split(';')
                    .filter_map(|pair| pair.split_once('='))
                    .collect()
            });
        let mut attributes = BTreeMap::from([("node", node), ("timestamp", "<go-time>")]);
        for (arg, attribute) in [("K8S_POD_NAME", "pod"), ("K8S_POD_NAMESPACE", "namespace")] {
            attributes.extend(args.get(arg).map(|value| (attribute, *value)));
        }
        Call {
            owner: AffinityOwner::Host(node.into()),
            handle: HandleId::for_container(
                step.stdin["name"].as_str().unwrap(),
                &step.env["CNI_CONTAINERID"],
            ),
            attributes: attributes
                .into_iter()
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
                .collect(),
            requested_ip: args.get("IP").map(|ip| ip.parse().unwrap()),
            is_add: step.env["CNI_COMMAND"] == "ADD",
            has_failed: step.exit != 0,
        }
    }

    fn now() -> OffsetDateTime {
        OffsetDateTime::UNIX_EPOCH + time::Duration::days(20_000)
    }

    /// Returns the block after this call. A missing block is created with its first allocation.
    fn apply(&self, cidr: Cidr, before: Option<&Block>, after: &Block) -> Block {
        let mut block = before.cloned().unwrap_or_else(|| {
            let mut block = Block::new(cidr, &self.owner, Self::now()).unwrap();
            block.affinity_claim_time = Some("<time>".into());
            // The recording has a mark instead of the clock.
            let writes = 1 + u64::from(self.has_failed);
            block.sequence_number = after.sequence_number - writes;
            block
        });
        if self.is_add {
            self.assign(&mut block);
        }
        if !self.is_add || self.has_failed {
            block
                .release_by_handle(&self.handle, None, 0, Self::now())
                .unwrap();
            block.count_write();
        }
        block
    }

    fn assign(&self, block: &mut Block) {
        let request = BlockRequest {
            handle: Some(&self.handle),
            attributes: &self.attributes,
            requester: &self.owner,
            check_affinity: false,
        };
        match self.requested_ip {
            Some(ip) => block.assign_address(ip, &request).unwrap(),
            None => assert_eq!(
                block
                    .assign(1, &request, &Reservations::none())
                    .unwrap()
                    .len(),
                1
            ),
        }
        block.count_write();
    }
}

fn expected_claim(call: &Call, store: &Store, version: IpVersion) -> UsableBlock {
    let pools: Vec<IpPool> = decode_all::<IpPool>(store)
        .into_iter()
        .map(|(_, pool)| pool)
        .collect();
    let request = PoolRequest {
        version,
        requested: &[],
        purpose: AllowedUse::Workload,
        node: call.owner.name(),
        node_labels: &Labels::new(),
        namespace: None,
        named: NamedPools::default(),
    };
    let choice = choose_pools(&pools, &request).unwrap();
    let stored = blocks(store);
    let ranges = stored.keys().copied().collect();
    let none = Reservations::none();
    let room = |cidr: &Cidr| {
        Some(Some(Room::of(
            stored.get(cidr)?,
            &none,
            &call.owner,
            Call::now(),
        )))
    };
    usable_block(
        &choice.chosen,
        &room,
        &ranges,
        &none,
        &call.owner,
        Call::now(),
    )
}

/// Returns the numbers of blocks that the step changed and claimed.
fn replay(name: &str, before: &Store, step: &Step) -> (usize, usize) {
    let (blocks_before, blocks_after) = (blocks(before), blocks(&step.after.store));
    let (mut handles_now, handles_after) = (handles(before), handles(&step.after.store));
    let (mut changes, mut claims) = (0, 0);
    let cidrs: BTreeSet<Cidr> = blocks_before
        .keys()
        .chain(blocks_after.keys())
        .copied()
        .collect();
    for cidr in cidrs {
        let (old, new) = (blocks_before.get(&cidr), &blocks_after[&cidr]);
        if old == Some(new) {
            continue;
        }
        changes += 1;
        let call = Call::of(step);
        if old.is_none() && call.requested_ip.is_none() {
            claims += 1;
            assert_eq!(
                expected_claim(&call, before, cidr.version()),
                UsableBlock::Claim(cidr),
                "{name}"
            );
        }
        let reproduced = call.apply(cidr, old, new);
        assert_eq!(
            serde_json::to_value(&reproduced).unwrap(),
            serde_json::to_value(new).unwrap(),
            "{name}: block {cidr}"
        );

        let handle = handles_now.entry(call.handle.clone()).or_default();
        if call.is_add {
            handle.increment(cidr, 1);
        }
        if !call.is_add || call.has_failed {
            handle.decrement(&call.handle, cidr, 1).unwrap();
        }
        if handle.is_empty() {
            handles_now.remove(&call.handle);
        }
    }
    assert_eq!(handles_now, handles_after, "{name}: handles");
    (changes, claims)
}

#[test]
fn every_recorded_step_reproduces_upstreams_blocks_and_handles() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/etcd");
    let (mut changes, mut claims) = (0, 0);
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let scenario: Scenario = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let mut before = &scenario.initial;
        for (index, step) in scenario.steps.iter().enumerate() {
            let name = format!(
                "{} step {index}",
                path.file_name().unwrap().to_string_lossy()
            );
            let (changed, claimed) = replay(&name, before, step);
            changes += changed;
            claims += claimed;
            before = &step.after.store;
        }
    }
    // A replay that skips steps must not pass.
    assert_eq!((changes, claims), (65, 16));
}
