//! IPAM bookkeeping read from raw datastore content, independently of the code under test, and the
//! contradictions in it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::Value;

const BLOCKS: &str = "/calico/ipam/v2/assignment/";
const HANDLES: &str = "/calico/ipam/v2/handle/";
const AFFINITIES: &str = "/calico/ipam/v2/host/";
const ENDPOINTS: &str = "/calico/resources/v3/projectcalico.org/workloadendpoints/";

/// Prefixes of the same data as Kubernetes objects, whose values are in `spec`. Endpoints are
/// annotations of pods.
const BLOCK_OBJECTS: &str = "ipamblocks/";
const HANDLE_OBJECTS: &str = "ipamhandles/";
const AFFINITY_OBJECTS: &str = "blockaffinities/";
const PODS: &str = "pods/";
const POD_IPS: &str = "cni.projectcalico.org/podIPs";

/// End of the problem text for an address that an endpoint lists although no block assigns the
/// address to a handle.
pub const HELD_BY_NO_ONE: &str = "held by no one";

/// Allocations, handles, endpoints and affinities of one datastore.
#[derive(Debug, Default)]
pub struct Accounts {
    /// Address → handle, from the blocks.
    pub held: BTreeMap<IpAddr, String>,
    /// (handle, block) → count, from the handles.
    pub counted: BTreeMap<(String, String), u64>,
    /// Address → endpoint, from the endpoints.
    pub used: BTreeMap<IpAddr, String>,
    /// CIDR of each block → the host with its affinity; `None` for a block without an affinity to a
    /// host.
    pub blocks: BTreeMap<String, Option<String>>,
    /// (host, block) of each affinity.
    pub affinities: BTreeSet<(String, String)>,
    /// Number of released addresses that blocks still allocate, because of a cooldown.
    pub cooling: usize,
    /// Contradictions in blocks, and between blocks, handles, endpoints and affinities, and values
    /// that cannot be parsed.
    pub problems: Vec<String>,
}

impl Accounts {
    /// Reads datastore content, with the keys of etcd or with keys such as `ipamblocks/NAME`, and
    /// finds contradictions.
    pub fn of(content: &BTreeMap<String, Value>) -> Accounts {
        let mut accounts = Accounts::default();
        for (key, value) in content {
            if key.starts_with(BLOCKS) {
                accounts.block(key, value);
            } else if let Some(handle) = key.strip_prefix(HANDLES) {
                accounts.handle(handle, value);
            } else if let Some(affinity) = key.strip_prefix(AFFINITIES) {
                accounts.affinity(affinity);
            } else if let Some(endpoint) = key.strip_prefix(ENDPOINTS) {
                let networks = value["spec"]["ipNetworks"].as_array().into_iter().flatten();
                accounts.endpoint(endpoint, networks.filter_map(Value::as_str));
            } else if key.starts_with(BLOCK_OBJECTS) {
                accounts.block(key, &value["spec"]);
            } else if key.starts_with(HANDLE_OBJECTS) {
                accounts.handle(
                    value["spec"]["handleID"].as_str().unwrap_or_default(),
                    &value["spec"],
                );
            } else if key.starts_with(AFFINITY_OBJECTS) {
                let field =
                    |name: &str| value["spec"][name].as_str().unwrap_or_default().to_owned();
                accounts.affinities.insert((field("node"), field("cidr")));
            } else if let Some(pod) = key.strip_prefix(PODS) {
                let networks = value["annotations"][POD_IPS].as_str().unwrap_or_default();
                accounts.endpoint(
                    pod,
                    networks.split(',').filter(|network| !network.is_empty()),
                );
            }
        }
        accounts.compare();
        accounts
    }

    /// Returns true if no address is assigned, counted or listed.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && self.counted.is_empty() && self.used.is_empty()
    }

    fn block(&mut self, key: &str, block: &Value) {
        let cidr = block["cidr"].as_str().unwrap_or_default();
        let Some(base) = cidr.split('/').next().and_then(|base| base.parse().ok()) else {
            return self.problems.push(format!("{key}: no cidr"));
        };
        let affinity = block["affinity"]
            .as_str()
            .and_then(|a| a.strip_prefix("host:"))
            .map(str::to_owned);
        self.blocks.insert(cidr.to_owned(), affinity);
        let attributes = block["attributes"]
            .as_array()
            .map_or(&[][..], Vec::as_slice);
        let free: Vec<u64> = block["unallocated"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_u64)
            .collect();
        let distinct: BTreeSet<_> = free.iter().collect();
        if distinct.len() != free.len() {
            self.problems
                .push(format!("{cidr}: an ordinal is twice in unallocated"));
        }
        let mut referenced = BTreeSet::new();
        for (ordinal, attribute) in
            (0u64..).zip(block["allocations"].as_array().into_iter().flatten())
        {
            let address = offset(base, ordinal);
            if attribute.is_null() != free.contains(&ordinal) {
                self.problems
                    .push(format!("{address}: held and free at once, or neither"));
            }
            let Some(index) = attribute.as_u64() else {
                continue;
            };
            referenced.insert(index);
            let attribute = attributes.get(index as usize).unwrap_or(&Value::Null);
            match attribute["handle_id"].as_str() {
                // With a cooldown, a released address stays allocated for some time, without a
                // handle.
                None if attribute["releasedAt"].is_string() => self.cooling += 1,
                None => self.problems.push(format!("{address}: no handle")),
                Some(handle) => {
                    if let Some(other) = self.held.insert(address, handle.to_owned()) {
                        self.problems
                            .push(format!("{address}: held by {handle} and by {other}"));
                    }
                }
            }
        }
        if referenced.len() != attributes.len() {
            self.problems
                .push(format!("{cidr}: attributes that no ordinal refers to"));
        }
    }

    fn handle(&mut self, handle: &str, value: &Value) {
        for (block, count) in value["block"].as_object().into_iter().flatten() {
            self.counted.insert(
                (handle.to_owned(), block.clone()),
                count.as_u64().unwrap_or(0),
            );
        }
    }

    /// Reads an affinity from its key without the prefix, such as `node1/ipv4/block/10.65.0.0-26`.
    fn affinity(&mut self, key: &str) {
        let parts: Vec<&str> = key.split('/').collect();
        match parts[..] {
            [host, _, "block", block] => {
                let cidr = block
                    .rsplit_once('-')
                    .map(|(base, length)| format!("{base}/{length}"));
                self.affinities
                    .insert((host.to_owned(), cidr.unwrap_or_default()));
            }
            _ => self.problems.push(format!("{key}: not an affinity")),
        }
    }

    fn endpoint<'n>(&mut self, key: &str, networks: impl Iterator<Item = &'n str>) {
        for network in networks {
            let Some(address) = network.split('/').next().and_then(|a| a.parse().ok()) else {
                self.problems
                    .push(format!("{key}: {network} is no network"));
                continue;
            };
            if let Some(other) = self.used.insert(address, key.to_owned()) {
                self.problems
                    .push(format!("{address}: used by {key} and by {other}"));
            }
        }
    }

    fn compare(&mut self) {
        let mut held: BTreeMap<&str, u64> = BTreeMap::new();
        for handle in self.held.values() {
            *held.entry(handle).or_default() += 1;
        }
        let mut counted: BTreeMap<&str, u64> = BTreeMap::new();
        for ((handle, _), count) in &self.counted {
            *counted.entry(handle).or_default() += count;
        }
        let mut problems = Vec::new();
        for handle in held.keys().chain(counted.keys()).collect::<BTreeSet<_>>() {
            let (held, counted) = (
                held.get(*handle).unwrap_or(&0),
                counted.get(*handle).unwrap_or(&0),
            );
            if held != counted {
                problems.push(format!(
                    "handle {handle}: holds {held} addresses, counts {counted}"
                ));
            }
        }
        for (address, endpoint) in self
            .used
            .iter()
            .filter(|(address, _)| !self.held.contains_key(*address))
        {
            problems.push(format!("{address}: used by {endpoint}, {HELD_BY_NO_ONE}"));
        }
        for (cidr, host) in &self.blocks {
            if let Some(host) = host
                && !self.affinities.contains(&(host.clone(), cidr.clone()))
            {
                problems.push(format!(
                    "block {cidr} is affine to {host}, which has no affinity for it"
                ));
            }
        }
        self.problems.extend(problems);
    }
}

fn offset(base: IpAddr, ordinal: u64) -> IpAddr {
    match base {
        IpAddr::V4(v4) => IpAddr::V4((u32::from(v4) + ordinal as u32).into()),
        IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) + u128::from(ordinal)).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::marks::{Concrete, Places};
    use crate::golden::recording;
    use serde_json::json;

    fn recorded(name: &str, step: usize) -> BTreeMap<String, Value> {
        recorded_on("etcd", name, step)
    }

    fn recorded_on(folder: &str, name: &str, step: usize) -> BTreeMap<String, Value> {
        let recording = recording::read(folder, name).unwrap();
        let content = Concrete::new(&Places::default()).value(&recording.steps[step].after.store);
        serde_json::from_value(content).unwrap()
    }

    #[test]
    fn recorded_upstream_content_has_no_contradictions() {
        for folder in ["etcd", "kdd1", "kdd3"] {
            let names = recording::names(folder).unwrap();
            assert!(names.len() > 10, "{names:?}");
            for name in names {
                for step in 0..recording::read(folder, &name).unwrap().steps.len() {
                    let mut accounts = Accounts::of(&recorded_on(folder, &name, step));
                    // With host-local or without IPAM, the addresses are not in Calico's blocks.
                    let foreign = name.starts_with("host-local") || name == "annot-noipam-hwaddr";
                    accounts
                        .problems
                        .retain(|p| !foreign || !p.ends_with(HELD_BY_NO_ONE));
                    assert_eq!(
                        accounts.problems,
                        Vec::<String>::new(),
                        "{folder}/{name} step {step}"
                    );
                }
            }
        }
    }

    #[test]
    fn owner_of_each_address_is_read_from_blocks_handles_and_endpoints() {
        let accounts = Accounts::of(&recorded("dual-stack", 0));
        let addresses: Vec<String> = accounts.held.keys().map(IpAddr::to_string).collect();
        assert_eq!(addresses, ["10.65.166.128", "fd00:65::c11:b42f:f17e:a680"]);
        assert_eq!(accounts.used.len(), 2);
        assert!(!accounts.is_empty());
        assert!(Accounts::of(&recorded("dual-stack", 1)).is_empty());
        for folder in ["kdd1", "kdd3"] {
            let same = Accounts::of(&recorded_on(folder, "dual-stack", 0));
            assert_eq!(
                (&same.held, &same.counted),
                (&accounts.held, &accounts.counted)
            );
            assert_eq!(
                (&same.blocks, &same.affinities),
                (&accounts.blocks, &accounts.affinities)
            );
            assert!(same.used.keys().eq(accounts.used.keys()));
            assert!(Accounts::of(&recorded_on(folder, "dual-stack", 1)).is_empty());
        }
    }

    #[test]
    fn each_bookkeeping_defect_is_reported() {
        let block = "/calico/ipam/v2/assignment/ipv4/block/10.65.166.128-26";
        let id = "c0ffee0100000000000000000000000000000000000000000000000000000000";
        let handle = format!("/calico/ipam/v2/handle/k8s-pod-network.{id}");
        let endpoint = format!("{ENDPOINTS}default/node1-cni-{id}-eth0");
        type Breakage<'a> = (&'a str, &'a dyn Fn(&mut BTreeMap<String, Value>));
        let broken: [Breakage<'_>; 7] = [
            ("held and free at once", &|c| {
                c.get_mut(block).unwrap()["unallocated"][0] = json!(0)
            }),
            ("twice in unallocated", &|c| {
                c.get_mut(block).unwrap()["unallocated"][0] = json!(2)
            }),
            ("no ordinal refers to", &|c| {
                c.get_mut(block).unwrap()["attributes"]
                    .as_array_mut()
                    .unwrap()
                    .push(json!({"handle_id": "x"}))
            }),
            ("counts 2", &|c| {
                c.get_mut(&handle).unwrap()["block"]["10.65.166.128/26"] = json!(2)
            }),
            ("counts 0", &|c| drop(c.remove(&handle))),
            (HELD_BY_NO_ONE, &|c| {
                c.get_mut(&endpoint).unwrap()["spec"]["ipNetworks"][0] = json!("10.65.1.1/32")
            }),
            ("has no affinity", &|c| {
                drop(c.remove("/calico/ipam/v2/host/node1/ipv4/block/10.65.166.128-26"))
            }),
        ];
        for (words, break_it) in broken {
            let mut content = recorded("v4-add-del", 0);
            break_it(&mut content);
            let problems = Accounts::of(&content).problems.join("\n");
            assert!(problems.contains(words), "{words}: {problems}");
        }
    }
}
