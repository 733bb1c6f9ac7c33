//! Compares our reports with those that calicoctl wrote (`tests/golden/calicoctl`).

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use time::{Duration, OffsetDateTime};

use super::*;
use crate::api::{ClusterInformation, IpPool, WorkloadEndpoint};
use crate::ipam::{
    AuditedEndpoint, Inventory, Owners, PackedBlock, PackedEndpoint, PackedHandle, Pods, audit,
};
use crate::net::Cidr;
use crate::store::{Entry, Kind};

#[derive(Deserialize)]
struct Step {
    files_before: BTreeMap<String, String>,
    files_after: BTreeMap<String, String>,
    changed: BTreeMap<String, Option<Value>>,
}

fn read(path: &str) -> String {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/golden/calicoctl")
        .join(path);
    std::fs::read_to_string(&golden).unwrap_or_else(|error| panic!("{}: {error}", golden.display()))
}

fn step(path: &str) -> Step {
    serde_json::from_str(&read(path)).unwrap()
}

fn steps_of(course: &str) -> Vec<String> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/golden/calicoctl")
        .join(course);
    let names = std::fs::read_dir(golden)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut steps: Vec<String> = names
        .filter(|name| name.starts_with(|c: char| c.is_ascii_digit()))
        .collect();
    steps.sort();
    steps
        .into_iter()
        .map(|name| format!("{course}/{name}"))
        .collect()
}

fn all<K: Kind>(content: &BTreeMap<String, Value>) -> Vec<Entry<K>> {
    let pairs = content
        .iter()
        .filter_map(|(path, value)| Some((K::parse_path(path)?, value)));
    let entry = |(key, value): (K::Key, &Value)| Entry {
        key,
        value: K::decode(value.to_string().as_bytes()).unwrap(),
        revision: Revision("1".into()),
    };
    pairs.map(entry).collect()
}

/// Returns our report on the content of an etcd, with version and revision of `theirs`.
fn our_report(content: &BTreeMap<String, Value>, theirs: &IpamReport) -> IpamReport {
    let pools: Vec<Cidr> = all::<IpPool>(content)
        .iter()
        .map(|pool| pool.value.spec.range().unwrap())
        .collect();
    let endpoint = |entry: Entry<WorkloadEndpoint>| AuditedEndpoint {
        name: entry.key.to_string(),
        object: entry.key.to_string(),
        node: entry.value.spec.node.clone(),
        addresses: entry
            .value
            .spec
            .ip_networks
            .iter()
            .map(|network| network.parse::<Cidr>().unwrap().network())
            .collect(),
        ..AuditedEndpoint::default()
    };
    let endpoints: Vec<_> = all(content)
        .into_iter()
        .map(|entry| PackedEndpoint::of(&endpoint(entry)))
        .collect();
    let blocks: Vec<_> = all(content)
        .into_iter()
        .map(|entry| PackedBlock::of(entry.value))
        .collect();
    let handles: Vec<_> = all(content).iter().map(PackedHandle::of).collect();
    let inventory = Inventory {
        pools: &pools,
        active_pools: &pools,
        blocks: &blocks,
        handles: &handles,
        affinities: &[],
        endpoints: &endpoints,
        pods: &Pods::new(),
        owners: &Owners::default(),
        // Later than each allocation of the recordings.
        now: OffsetDateTime::UNIX_EPOCH + Duration::weeks(5_000),
        in_flight: Duration::ZERO,
    };
    let information = all::<ClusterInformation>(content).remove(0).value.spec;
    let (version, revision) = (
        theirs.version.as_str(),
        theirs.cluster_information_revision.as_str(),
    );
    build(
        &ReportedCluster {
            version,
            information: &information,
            revision,
        },
        &inventory,
        &audit(&inventory),
    )
}

#[test]
fn report_has_the_shape_of_upstreams_recordings() {
    let mut content: BTreeMap<String, Value> =
        serde_json::from_str(&read("etcd-ipam/initial.json")).unwrap();
    let mut compared = 0;
    for path in steps_of("etcd-ipam") {
        let Step {
            files_after,
            changed,
            ..
        } = step(&path);
        for text in files_after.values() {
            let theirs = IpamReport::parse(text.as_bytes()).unwrap();
            assert_eq!(
                our_report(&content, &theirs).to_text().unwrap(),
                *text,
                "{path}"
            );
            compared += 1;
        }
        for (key, value) in changed {
            match value {
                Some(value) => _ = content.insert(key, value),
                None => _ = content.remove(&key),
            }
        }
    }
    assert_eq!(compared, 3);
}

#[test]
fn report_of_upstream_is_read_and_written_unchanged() {
    let mut read = 0;
    for path in [steps_of("etcd-ipam"), steps_of("kubernetes-ipam")].concat() {
        for text in step(&path).files_after.values() {
            assert_eq!(
                IpamReport::parse(text.as_bytes())
                    .unwrap()
                    .to_text()
                    .unwrap(),
                *text,
                "{path}"
            );
            read += 1;
        }
    }
    assert_eq!(read, 6);
    // This one was edited by hand, and so has other white space.
    let edited = &step("etcd-ipam/23-release-from-report-version.json").files_before["other.json"];
    assert_eq!(
        IpamReport::parse(edited.as_bytes()).unwrap().version,
        "v3.0.0"
    );
}

#[test]
fn report_escapes_texts_as_go_does() {
    let allocation = ReportedAllocation {
        ip: "10.0.0.1".into(),
        pod: "<&>\u{2028}".into(),
        ..Default::default()
    };
    let report = report([("10.0.0.1", vec![allocation])]);
    let text = report.to_text().unwrap();
    assert!(
        text.contains(r#""pod": "\u003c\u0026\u003e\u2028","#),
        "{text}"
    );
    assert!(
        text.contains("\"owners\": null") && !text.ends_with('\n'),
        "{text}"
    );
    assert_eq!(IpamReport::parse(text.as_bytes()).unwrap(), report);
}

fn report<const N: usize>(allocations: [(&str, Vec<ReportedAllocation>); N]) -> IpamReport {
    IpamReport {
        version: "v3.33.0".into(),
        cluster_guid: "g".into(),
        datastore_locked: true,
        cluster_information_revision: "7".into(),
        cluster_type: String::new(),
        allocations: allocations
            .map(|(address, allocations)| (address.to_owned(), allocations))
            .into(),
        leaked_handles: Vec::new(),
        findings: Vec::new(),
    }
}

fn leak(handle: &str, sequence_number: u64) -> ReportedAllocation {
    ReportedAllocation {
        handle: handle.into(),
        sequence_number: Some(sequence_number),
        ..ReportedAllocation::default()
    }
}

fn addresses(reports: &[IpamReport]) -> (Vec<String>, Vec<String>) {
    let common = intersect(reports);
    let text = |address: &std::net::IpAddr| address.to_string();
    (
        common.leaks.keys().map(text).collect(),
        common.reallocated.iter().map(text).collect(),
    )
}

#[test]
fn intersection_has_the_leaks_of_every_report() {
    let used = ReportedAllocation {
        in_use: true,
        ..leak("a", 1)
    };
    let cooling = ReportedAllocation {
        cooling_down: true,
        ..leak("a", 1)
    };
    let first = report([
        ("10.0.0.1", vec![leak("a", 1)]),
        ("10.0.0.2", vec![leak("a", 1)]),
        ("10.0.0.3", vec![leak("a", 1)]),
        ("10.0.0.4", vec![leak("a", 1)]),
    ]);
    let second = report([
        ("10.0.0.1", vec![leak("a", 1)]),
        ("10.0.0.2", vec![used]),
        ("10.0.0.3", vec![cooling]),
    ]);
    assert_eq!(
        addresses(&[first.clone(), second]),
        (vec!["10.0.0.1".into()], vec![])
    );
    assert_eq!(addresses(std::slice::from_ref(&first)).0.len(), 4);
    assert_eq!(addresses(&[]).0.len(), 0);
}

#[test]
fn address_reallocated_between_reports_is_not_in_the_intersection() {
    let reports = [(1, "a"), (2, "b"), (2, "b")]
        .map(|(n, handle)| report([("10.0.0.1", vec![leak(handle, n)])]));
    assert_eq!(addresses(&reports), (vec![], vec!["10.0.0.1".into()]));
    assert_eq!(addresses(&reports[1..]).0, ["10.0.0.1"]);
}

#[test]
fn address_with_one_allocation_in_use_is_no_leak() {
    let used = ReportedAllocation {
        in_use: true,
        ..leak("a", 1)
    };
    assert_eq!(
        addresses(&[report([("10.0.0.1", vec![leak("a", 1), used])])])
            .0
            .len(),
        0
    );
}

#[test]
fn intersection_compares_the_revision_of_handles() {
    let with = |revision: &str| {
        let mut report = report([]);
        report.leaked_handles = vec![
            LeakedHandle::new("h", "1"),
            LeakedHandle::new("g", revision),
        ];
        report
    };
    assert_eq!(
        intersect(&[with("2"), with("3")]).handles,
        [LeakedHandle::new("h", "1")]
    );
    let on_api_server = LeakedHandle {
        id: "h".into(),
        uid: Some("u-1".into()),
        revision: "5".into(),
    };
    assert_eq!(
        LeakedHandle::new("h", "5@u-1{\"metadata\":{}}"),
        on_api_server
    );
}

#[test]
fn require_lock_refuses_in_upstreams_order() {
    let named = |file: &str, report: IpamReport| NamedReport {
        file: file.into(),
        report,
    };
    let mut information = crate::api::ClusterInformationSpec {
        cluster_guid: "g".into(),
        ..Default::default()
    };
    let rule = |force| LockRule {
        version: "v3.33.0",
        force,
    };
    let (mut other_cluster, mut other_version, mut old) = (report([]), report([]), report([]));
    other_cluster.cluster_guid = "x".into();
    other_version.version = "v3.0.0".into();
    old.cluster_information_revision = "6".into();
    let reports = [
        named("v", other_version.clone()),
        named("c", other_cluster),
        named("o", old.clone()),
    ];
    let refusal = |rule: LockRule<'_>, information: &_, reports: &[NamedReport]| {
        let refusal = rule.check(information, "8", reports).unwrap_err();
        refusal.to_string()
    };
    let version = refusal(rule(false), &information, &reports);
    assert!(
        version.contains("report (v) was produced using a different version (v3.0.0)"),
        "{version}"
    );
    let cluster = refusal(rule(true), &information, &reports);
    assert!(
        cluster.starts_with("cluster does not match the provided report (c): "),
        "{cluster}"
    );
    refuse_other_clusters(&information, &reports[..1]).unwrap();
    let stale = refusal(rule(true), &information, &[named("o", old)]);
    assert!(
        stale.starts_with("the provided reports are all stale"),
        "{stale}"
    );

    let fresh = [named("v", other_version)];
    let warnings = |information: &_| rule(true).check(information, "7", &fresh).unwrap();
    let version = "WARNING: Report was produced using a different version of calicoctl. Ignoring \
                   due to --force option";
    let lock = "WARNING: Data store is not locked. Ignoring due to --force option";
    assert_eq!(warnings(&information), [version, lock]);
    information.datastore_ready = Some(false);
    assert_eq!(warnings(&information), [version]);
    information.datastore_ready = Some(true);
    let current = [named("f", report([]))];
    let refused = rule(false).check(&information, "7", &current).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "data store is not locked. Either lock the data store, or re-run with --force"
    );
}
