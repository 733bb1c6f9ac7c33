//! [`plan`]: compares the objects of a file with those of the target. Only built-in tiers are
//! changed, and only missing fields of nodes are added.

use std::collections::{BTreeMap, BTreeSet};

use libcalico::api::{Node, ObjectKey};
use libcalico::ipam::{AffinityOwner, Block, BlockAffinity, Handle, IpamConfig};
use libcalico::kubernetes::merge_node;
use libcalico::migration::calicoctl_file::{Comparison, compare};
use libcalico::names::is_dns_name;
use libcalico::net::{Cidr, first_overlap};
use libcalico::store::{Kind, RawEntry, StoredValue, Write, WriteOp};
use serde_json::Value;

use super::items::{Item, comparable};
use super::report::{Named, Report};
use super::target::{FormerImport, Target};

/// Tiers that every cluster has.
const BUILT_IN_TIERS: [&str; 3] = ["Tier(default)", "Tier(kube-admin)", "Tier(kube-baseline)"];

/// The maximum length in bytes of a name on an API server.
const NAME_LIMIT: usize = 253;

/// The writes of an import, in their order.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) writes: Vec<Write>,
    pub(super) report: Report,
    /// The number of blocks that belong to nodes that do not exist in Kubernetes.
    pub(super) ownerless_blocks: usize,
    /// True if an earlier import of the same cluster is incomplete. The target is then locked.
    pub(super) is_continued: bool,
}

/// Compares the items with the target.
pub(super) fn plan(items: &[Item], target: &Target) -> Plan {
    let is_continued = target.former_import == FormerImport::Incomplete;
    let mut plan = Plan {
        is_continued,
        ..Plan::default()
    };
    plan.refuse_former_import(&target.former_import);
    plan.refuse_by_kind_and_name(items, target);
    for item in items
        .iter()
        .filter(|item| !target.unserved.contains(&item.kind))
    {
        if let Some(namespace) = item
            .namespace
            .as_ref()
            .filter(|name| !target.namespaces.contains(*name))
        {
            plan.report.refuse(
                &item.name,
                format!("namespace {namespace} does not exist; create it first"),
            );
            continue;
        }
        match (target.entries.get(&item.path), &item.create) {
            (None, None) => plan.report.skipped_nodes.push(item.name.clone()),
            (None, Some((_, write))) => {
                plan.report.counts(item.is_ipam).created += 1;
                plan.writes.push(write.clone());
            }
            (Some(entry), None) => plan.merge_node(item, entry),
            (Some(entry), Some(_)) => plan.compare(item, entry),
        }
    }
    plan.refuse_other_addresses(items, target);
    let is_missing = |host: &str| {
        !target
            .entries
            .contains_key(&Node::path(&ObjectKey::global(host)))
    };
    let owners = items
        .iter()
        .filter(|item| item.kind == Block::KIND)
        .filter_map(|block| block.value["affinity"].as_str());
    let hosts = owners
        .filter_map(AffinityOwner::parse)
        .filter(|owner| matches!(owner, AffinityOwner::Host(_)));
    plan.ownerless_blocks = hosts.filter(|host| is_missing(host.name())).count();
    plan
}

impl Plan {
    fn refuse_former_import(&mut self, former: &FormerImport) {
        let remark = match former {
            FormerImport::None | FormerImport::Incomplete => return,
            FormerImport::Unlocked => {
                "has the clusterGUID of the file and is unlocked, so that programs may use the \
                 imported objects; run `calico-ipam migrate lock` to import again"
                    .to_owned()
            }
            FormerImport::OfOther(guid) => format!(
                "an import of the cluster with clusterGUID {guid} is incomplete; complete it, or \
                 end it with `calico-ipam migrate unlock --force`"
            ),
        };
        self.report.refuse("ClusterInformation(default)", remark);
    }

    fn refuse_by_kind_and_name(&mut self, items: &[Item], target: &Target) {
        for kind in &target.unserved {
            let remark = "the API server does not serve this kind; apply deploy/crds, and Calico's \
                          own definitions for kinds that deploy/crds lacks";
            self.report.refuse(*kind, remark);
        }
        let mut names = BTreeMap::new();
        for (item, url) in items
            .iter()
            .filter_map(|item| Some((item, &item.create.as_ref()?.0)))
        {
            if let Some(other) = names.insert(url, &item.name) {
                self.report.refuse(
                    &item.name,
                    format!("has the same name on an API server as {other}"),
                );
            }
            if !url
                .rsplit('/')
                .next()
                .is_some_and(|name| name.len() <= NAME_LIMIT && is_dns_name(name))
            {
                self.report.refuse(
                    &item.name,
                    "has a name that no API server accepts; delete it in etcd, and export again",
                );
            }
        }
    }

    fn compare(&mut self, item: &Item, entry: &RawEntry) {
        let Some(stored) = entry.value.json().ok().filter(|stored| stored.is_object()) else {
            return self.report.refuse(
                &item.name,
                "exists and cannot be read; correct or delete it",
            );
        };
        let Comparison {
            differing,
            missing,
            added,
        } = compare(&item.value, &comparable(stored.clone().into_owned()));
        let is_exact = item.is_ipam && item.kind != IpamConfig::KIND;
        // The first comparison refused objects that existed and lacked fields. So the API server
        // dropped these.
        let may_lack = !is_exact && self.is_continued;
        let differing = differing
            .or_else(|| missing.first().filter(|_| !may_lack).cloned())
            .or_else(|| added.first().filter(|_| is_exact).cloned());
        match differing {
            None => {
                self.report.counts(item.is_ipam).unchanged += 1;
                if !missing.is_empty() {
                    let dropped = Named {
                        object: item.name.clone(),
                        remark: missing.join(", "),
                    };
                    self.report.dropped_fields.push(dropped);
                }
                if !added.is_empty() {
                    self.report.other_fields.push(Named {
                        object: item.name.clone(),
                        remark: added.join(", "),
                    });
                }
            }
            Some(_) if BUILT_IN_TIERS.contains(&item.name.as_str()) => {
                let mut changed = stored.into_owned();
                changed["spec"] = item.value["spec"].clone();
                self.update(item, &changed, entry);
            }
            Some(field) => {
                self.report.refuse(
                    &item.name,
                    format!("exists and differs in {field}; correct or delete it"),
                );
            }
        }
    }

    fn merge_node(&mut self, item: &Item, entry: &RawEntry) {
        let Ok(stored) = entry.value.json() else {
            return self.report.refuse(&item.name, "exists and cannot be read");
        };
        match merge_node(&stored, &item.value) {
            Ok(Some(merged)) => self.update(item, &merged, entry),
            Ok(None) => self.report.resources.unchanged += 1,
            Err(field) => {
                let remark = format!(
                    "exists and {field}; correct the annotation of that field on the Kubernetes \
                     node"
                );
                self.report.refuse(&item.name, remark);
            }
        }
    }

    fn update(&mut self, item: &Item, changed: &Value, entry: &RawEntry) {
        self.report.resources.configured += 1;
        let op = WriteOp::Update(
            libcalico::kubernetes::json_bytes(changed),
            entry.revision.clone(),
        );
        self.writes.push(Write {
            kind: item.kind,
            path: item.path.clone(),
            key: item.name.clone(),
            op,
        });
    }

    /// Refuses addresses that two objects could assign.
    fn refuse_other_addresses(&mut self, items: &[Item], target: &Target) {
        let paths: BTreeSet<&str> = items.iter().map(|item| item.path.as_str()).collect();
        for path in target
            .entries
            .keys()
            .filter(|path| !paths.contains(path.as_str()))
        {
            if is_allocation(path) {
                self.report.refuse(
                    path,
                    "exists, but not in the file: another cluster's addresses are in use here",
                );
            }
        }
        let blocks = items
            .iter()
            .filter_map(|item| Block::parse_path(&item.path));
        if let Some((first, second)) = first_overlap(blocks) {
            self.report.refuse(
                format!("IPAMBlock({first})"),
                format!("overlaps the block {second} of the file"),
            );
        }
        let others = target
            .entries
            .values()
            .filter(|entry| !paths.contains(entry.path.as_str()));
        let others: Vec<(&str, Cidr)> = others
            .filter_map(|entry| pool_range(&entry.path, &entry.value))
            .collect();
        for item in items.iter().filter(|item| item.kind == "IPPool") {
            let Some(range) = range_of(&item.value) else {
                continue;
            };
            if let Some((other, _)) = others.iter().find(|(_, other)| other.overlaps(&range)) {
                self.report.refuse(
                    &item.name,
                    format!("overlaps {other}, which the file does not contain"),
                );
            }
        }
    }
}

/// Returns true for the path of a block, an affinity or a handle.
fn is_allocation(path: &str) -> bool {
    Block::parse_path(path).is_some()
        || BlockAffinity::parse_path(path).is_some()
        || Handle::parse_path(path).is_some()
}

/// Returns the path and the range of a pool; `None` for another kind.
fn pool_range<'p>(path: &'p str, value: &StoredValue) -> Option<(&'p str, Cidr)> {
    libcalico::api::IpPool::parse_path(path)?;
    Some((path, range_of(&*value.json().ok()?)?))
}

fn range_of(pool: &Value) -> Option<Cidr> {
    pool["spec"]["cidr"].as_str()?.parse().ok()
}
