//! The scenarios, each from an empty private host to its part of the table.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use integration_tests::kubernetes::{
    ApiServer, Kubernetes, Request, ServiceAccount, on_kubernetes,
};
use integration_tests::namespaces::isolated;
use serde_json::json;

use crate::changes::Changes;
use crate::cluster::{Cluster, Size};
use crate::filling::{self, CALICO};
use crate::outcome::{self, Reclaimed};
use crate::program::Program;
use crate::server::{self, Objects};
use crate::{migration, table, texts};

const REAL: Size = Size {
    nodes: 500,
    pods: 20_000,
    blocks: None,
    leaked: 2_000,
    leaking_blocks: 46,
    leaking_size: 64,
};
const SERVED: Size = Size {
    nodes: 5_000,
    pods: 150_000,
    blocks: Some(40_000),
    leaked: 10_000,
    leaking_blocks: 400,
    leaking_size: 32,
};
/// Pod changes per second.
const RATE: u32 = 50;
/// Pod changes per second at which the cost of one change can be distinguished from the fixed cost.
const HIGH_RATE: u32 = 500;
/// The default grace period; the interval between lists of handles depends on it.
pub(crate) const GRACE: &str = "15m0s";
/// Time until the end of the grace period that is set once everything else is measured.
const SHORTLY: Duration = Duration::from_secs(5);
const NEVER: &str = "0s";
const STEADY: Duration = Duration::from_secs(30);
/// Time after the grace period within which the addresses must be released; then the bench stops
/// waiting.
const RECLAIMED_WITHIN: Duration = Duration::from_secs(180);

pub(crate) fn run(name: &str, program: &Path, work: &Path) -> Result<String> {
    let work = work.join(name);
    std::fs::create_dir_all(&work)?;
    let measure: fn(&Path, &Path) -> Result<String> = match name {
        "served" => served,
        "growth" => growth,
        "real" => return on_real_server(program, &work, real),
        "migration" => return on_real_server(program, &work, migration::measure),
        _ => bail!("there is no scenario `{name}`"),
    };
    let result = Mutex::new(None);
    isolated(|_| *result.lock().expect("one thread") = Some(measure(program, &work)));
    result
        .into_inner()
        .expect("one thread")
        .context("no private host")?
}

struct Served {
    cluster: Arc<Cluster>,
    objects: Arc<Objects>,
    kubeconfig: PathBuf,
}

impl Served {
    fn new(size: Size, grace: &str, work: &Path) -> Result<Served> {
        eprintln!("{} pods: filling", size.pods);
        let cluster = Arc::new(Cluster::generate(size));
        let objects = Arc::new(Objects::default());
        filling::fill(&objects, &cluster, grace);
        let kubeconfig = server::serve(objects.clone(), work)?;
        Ok(Served {
            cluster,
            objects,
            kubeconfig,
        })
    }

    fn changes(&self, rate: u32) -> Changes {
        let (cluster, objects) = (self.cluster.clone(), self.objects.clone());
        Changes::start(rate, 1, move |tick| {
            let pod = (tick.wrapping_mul(7_919) % cluster.size.pods as u64) as usize;
            objects.put("v1", "pods", texts::pod(&cluster, pod, tick + 1));
        })
    }
}

fn served(program: &Path, work: &Path) -> Result<String> {
    let served = Served::new(SERVED, GRACE, work)?;
    let changes = served.changes(RATE);
    let mut program = Program::start(program, &served.kubeconfig, work, &[])?;
    let running = outcome::run(&mut program, &changes, STEADY)?;
    eprintln!("{running:?}");
    let (cpu, left) = (
        program.cpu()?,
        served.objects.count(CALICO, "ipamhandles") - filling::leaked(&served.cluster),
    );
    let grace = shortly(&program);
    let [.., (plural, configuration)] = texts::single_objects(&go_seconds(grace));
    served.objects.put(CALICO, plural, configuration);
    await_reclaimed(&program, grace, || {
        Ok(served.objects.count(CALICO, "ipamhandles") <= left)
    })?;
    let reclaimed = match (
        served.objects.written("PUT ipamblocks"),
        served.objects.written("DELETE ipamhandles"),
    ) {
        (Some(blocks), Some(handles)) => Some(Reclaimed {
            blocks_written: blocks.count,
            handles_deleted: handles.count,
            freed: blocks.last - program.started,
            done: blocks.last.max(handles.last) - program.started,
            cpu: program.cpu()? - cpu,
            peak: program.memory()?.1,
        }),
        _ => None,
    };
    Ok(table::large(
        &served.cluster,
        &running,
        reclaimed.as_ref(),
        grace,
    ))
}

fn growth(program: &Path, work: &Path) -> Result<String> {
    let mut rows = Vec::new();
    for pods in [10_000, 50_000, 150_000] {
        let size = Size {
            nodes: pods / 30,
            pods,
            blocks: None,
            leaked: 0,
            leaking_blocks: 0,
            leaking_size: 0,
        };
        let served = Served::new(size, NEVER, work)?;
        let changes = served.changes(HIGH_RATE);
        let mut program = Program::start(program, &served.kubeconfig, work, &[])?;
        let running = outcome::run(&mut program, &changes, STEADY)?;
        eprintln!("{pods} pods: {running:?}");
        rows.push((pods, running));
    }
    Ok(table::growth(&rows))
}

fn on_real_server(
    program: &Path,
    work: &Path,
    measure: fn(&Kubernetes, &Path, &Path) -> Result<String>,
) -> Result<String> {
    if let Err(missing) = integration_tests::kubernetes::program("kube-apiserver") {
        return Ok(format!(
            "Nothing is measured on a real API server: {missing}\n"
        ));
    }
    let result = Mutex::new(None);
    on_kubernetes(|_, kubernetes| {
        *result.lock().expect("one thread") = Some(measure(&kubernetes, program, work));
    });
    result
        .into_inner()
        .expect("one thread")
        .context("there is no API server here")?
}

fn real(kubernetes: &Kubernetes, program: &Path, work: &Path) -> Result<String> {
    let (api, cluster) = (&kubernetes.api, Arc::new(Cluster::generate(REAL)));
    eprintln!("{} pods: filling a real API server", REAL.pods);
    let begin = Instant::now();
    filling::fill_real(api, &cluster, GRACE)?;
    eprintln!("filled in {:?}", begin.elapsed());
    let account = account(api)?;
    let audit = api.audit()?;

    let (client, changed) = (api.admin().clone(), cluster.clone());
    let changes = Changes::start(RATE, 4, move |tick| {
        let pod = (tick.wrapping_mul(7_919) % REAL.pods as u64) as usize;
        if let Err(error) = filling::report(&client, &changed, pod, tick + 1) {
            eprintln!("a pod did not change: {error:#}");
        }
    });
    let started = time::OffsetDateTime::now_utc();
    let mut program = Program::start(program, &account.kubeconfig, work, &[])?;
    let running = outcome::run(&mut program, &changes, STEADY)?;
    eprintln!("{running:?}");
    let cpu = program.cpu()?;
    let grace = shortly(&program);
    let spec = json!({"spec": {"controllers": {"node": {"leakGracePeriod": go_seconds(grace)}}}});
    api.admin()
        .patch(
            &format!("/apis/{CALICO}/kubecontrollersconfigurations/default"),
            &spec,
        )?
        .checked()?;
    await_reclaimed(&program, grace, || {
        let list = api
            .admin()
            .get(&format!("/apis/{CALICO}/ipamhandles?limit=1"))?
            .checked()?;
        Ok(list["metadata"]["remainingItemCount"]
            .as_u64()
            .is_some_and(|rest| rest < REAL.pods as u64))
    })?;
    let cpu = program.cpu()? - cpu;
    drop(changes);
    let requests = audit.of(&account.user)?;
    let done = |verb: &str, resource: &str| -> Vec<&Request> {
        let is = |request: &&Request| {
            request.verb == verb && request.resource == resource && request.code == Some(200)
        };
        requests.iter().filter(is).collect()
    };
    let (blocks, handles) = (done("update", "ipamblocks"), done("delete", "ipamhandles"));
    let between = |from: time::OffsetDateTime, to: time::OffsetDateTime| {
        Duration::try_from(to - from).unwrap_or_default()
    };
    let last = |of: &[&Request]| of.iter().map(|request| request.answered).max();
    let reclaimed = match (last(&blocks), last(&handles)) {
        (Some(freed), Some(done)) => Some(Reclaimed {
            blocks_written: blocks.len(),
            handles_deleted: handles.len(),
            freed: between(started, freed),
            done: between(started, done.max(freed)),
            cpu,
            peak: program.memory()?.1,
        }),
        _ => None,
    };
    Ok(table::medium(&cluster, &running, reclaimed.as_ref(), grace))
}

/// Returns an account that may do everything.
pub(crate) fn account(api: &ApiServer) -> Result<ServiceAccount> {
    let account = api.service_account("kube-system", "calico-kube-controllers")?;
    let everything = json!([
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
        {"nonResourceURLs": ["*"], "verbs": ["*"]},
    ]);
    api.cluster_role("everything", &everything)?;
    api.bind(&account, "everything")?;
    Ok(account)
}

/// Waits until the leaked addresses are released. At the deadline it prints a message instead of
/// returning an error.
fn await_reclaimed(
    program: &Program,
    grace: Duration,
    is_done: impl Fn() -> Result<bool>,
) -> Result<()> {
    let deadline = program.started + grace + RECLAIMED_WITHIN;
    while !is_done()? {
        if Instant::now() > deadline {
            eprintln!("the leaked addresses are still there");
            break;
        }
        thread::sleep(Duration::from_millis(200));
    }
    // Leaves time for superfluous writes, which the table counts.
    thread::sleep(Duration::from_secs(2));
    Ok(())
}

/// Returns a grace period that ends [`SHORTLY`] from now for addresses that were leaked at the
/// program's start.
fn shortly(program: &Program) -> Duration {
    Duration::from_secs((program.started.elapsed() + SHORTLY).as_secs())
}

fn go_seconds(duration: Duration) -> String {
    format!("{}s", duration.as_secs())
}
