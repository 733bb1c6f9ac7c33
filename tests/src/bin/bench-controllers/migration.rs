//! The scenario `migration`: kube-controllers copy Calico's objects from `crd.projectcalico.org/v1`
//! to `projectcalico.org/v3`, as the leader of a cluster with pods.

use std::collections::BTreeMap;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use integration_tests::kubernetes::{ApiServer, Kubernetes, Request};
use integration_tests::migration::Migration;
use libcalico::kubernetes::ApiGroup;
use libcalico::migration::DRY_RUN;
use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::cluster::{Cluster, Size};
use crate::filling::{self, CALICO};
use crate::program::Program;
use crate::{scenario, table, texts};

const SIZE: Size = Size {
    nodes: 500,
    pods: 18_000,
    blocks: None,
    leaked: 0,
    leaking_blocks: 0,
    leaking_size: 0,
};
/// Number of Calico's objects, without those that kube-controllers create.
const OBJECTS: usize = 20_000;
/// Greatest memory of each process of kube-controllers, MiB.
const MOST_MEMORY: f64 = 64.0;
/// Interval between two looks at the memory of a process that ends by itself. The last look before
/// the end counts.
const GLANCE: Duration = Duration::from_millis(20);
/// Interval between two looks at the migration.
const PAUSE: Duration = Duration::from_secs(1);
/// Time after which the bench stops waiting.
const WITHIN: Duration = Duration::from_secs(900);

/// Measurements of a migration.
#[derive(Debug)]
pub(crate) struct Migrated {
    /// Peak memory of the process that makes a dry run, MiB.
    pub(crate) dry_run_peak: f64,
    /// Peak memory of the process that copies, MiB.
    pub(crate) peak: f64,
    /// Peak memory of its successor up to `Complete`, MiB.
    pub(crate) successor_peak: f64,
    /// Processor seconds of the process that copies.
    pub(crate) cpu: f64,
    /// Time from the lock of v1 to the opening of v3.
    pub(crate) locked: Duration,
    /// Numbers of requests in that time, by verb.
    pub(crate) requests: BTreeMap<String, usize>,
}

pub(crate) fn measure(kubernetes: &Kubernetes, program: &Path, work: &Path) -> Result<String> {
    let (api, cluster) = (&kubernetes.api, Cluster::generate(SIZE));
    eprintln!("{OBJECTS} objects: filling a real API server");
    let begin = Instant::now();
    filling::fill_real(api, &cluster, scenario::GRACE)?;
    let migration = Migration::new(api);
    fill_policies(api, &cluster)?;
    eprintln!("filled in {:?}", begin.elapsed());
    let account = scenario::account(api)?;
    let environment = migration.pod("bench");
    let start = || Program::start(program, &account.kubeconfig, work, &environment);
    migration.create(Some("bench"));
    let dry_run = start()?;
    let is_made = || migration.condition("DryRun")["message"] == "bench";
    let dry_run_peak = peak_until(&dry_run, migration, is_made)?;
    drop(dry_run);
    let audit = api.audit()?;
    migration.annotate(DRY_RUN, None);

    let mut process = start()?;
    let (mut peak, mut cpu) = (0.0, 0.0);
    while !process.has_ended()? {
        ensure!(
            process.started.elapsed() < WITHIN,
            "not in time: {:#}",
            migration.object()
        );
        // The process may end between two looks.
        if let (Ok((_, highest)), Ok(used)) = (process.memory(), process.cpu()) {
            (peak, cpu) = (highest, used);
        }
        thread::sleep(GLANCE);
    }
    ensure!(
        migration.phase() == "Converged",
        "kube-controllers ended: {:#}; see their log",
        migration.object()
    );
    let successor_peak = peak_until(&start()?, migration, || migration.phase() == "Complete")?;
    let mut requests = audit.of(&account.user)?;
    // The checks before the lock send dry runs of the lock and of each copy.
    requests.retain(|request| !request.uri.contains("dryRun="));
    let (begin, end) = time_of_the_lock(&requests).context("no lock in the audit log")?;
    let mut under_the_lock = BTreeMap::new();
    for request in requests
        .iter()
        .filter(|request| (begin..=end).contains(&request.received))
    {
        *under_the_lock.entry(request.verb.clone()).or_insert(0) += 1;
    }
    let locked = Duration::try_from(end - begin)?;
    let copied = migration.object()["status"]["progress"]["total"]
        .as_u64()
        .unwrap_or(0);
    ensure!(copied >= OBJECTS as u64, "{copied} objects were copied");
    let migrated = Migrated {
        dry_run_peak,
        peak,
        successor_peak,
        cpu,
        locked,
        requests: under_the_lock,
    };
    let text = table::migration(OBJECTS, &migrated);
    let is_small = [dry_run_peak, peak, successor_peak]
        .into_iter()
        .all(|peak| peak <= MOST_MEMORY);
    ensure!(is_small, "{text}\nthe memory is over {MOST_MEMORY} MiB");
    Ok(text)
}

/// Waits until a condition holds. Returns the peak memory of the process until then, MiB.
fn peak_until(
    process: &Program,
    migration: Migration<'_>,
    is_so: impl Fn() -> bool,
) -> Result<f64> {
    while !is_so() {
        ensure!(
            process.started.elapsed() < WITHIN,
            "not in time: {:#}",
            migration.object()
        );
        thread::sleep(PAUSE);
    }
    Ok(process.memory()?.1)
}

/// Creates as many policies as are missing to [`OBJECTS`].
fn fill_policies(api: &ApiServer, cluster: &Cluster) -> Result<()> {
    // The singletons are a pool and settings; a migration does not copy the ClusterInformation.
    let existing = 2 + 2 * cluster.blocks.len() + cluster.size.pods;
    let client = api.admin();
    filling::for_each(OBJECTS - existing, |number| {
        let namespace = texts::namespace(number);
        let path = format!("/apis/{CALICO}/namespaces/{namespace}/networkpolicies");
        client
            .create(&path, &policy(&namespace, number))?
            .checked()
            .map(drop)
    })
}

fn policy(namespace: &str, number: usize) -> Value {
    let rule = |port: usize| {
        json!({"action": "Allow", "protocol": "TCP",
                "source": {"selector": format!("app == 'service-{number:04}'")},
            "destination": {"ports": [port]}})
    };
    json!({
        "apiVersion": ApiGroup::CrdV1.api_version(), "kind": "NetworkPolicy",
        "metadata": {"name": format!("service-{number:04}"), "namespace": namespace},
        "spec": {"tier": "default", "order": number,
            "selector": format!("app == 'service-{number:04}'"),
            "types": ["Ingress"], "ingress": (0..8).map(|n| rule(8080 + n)).collect::<Vec<_>>()},
    })
}

/// Returns the time at which v1 was locked, and the time at which v3 was open.
fn time_of_the_lock(requests: &[Request]) -> Option<(OffsetDateTime, OffsetDateTime)> {
    let is_write = |request: &&Request| {
        request.verb == "update"
            && request.resource == "clusterinformations"
            && request.code == Some(200)
    };
    let of_group = |group: ApiGroup| {
        requests
            .iter()
            .filter(is_write)
            .filter(move |one| one.group == group.name())
    };
    Some((
        of_group(ApiGroup::CrdV1).next()?.received,
        of_group(ApiGroup::V3).next_back()?.answered,
    ))
}
