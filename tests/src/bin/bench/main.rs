//! `make bench`: the cost of an ADD and a DEL against the floor of this machine, in one run.
//!
//! `bench PLUGIN-DIR FLOOR WORK-DIR` prints the tables of docs/performance.md. There are two
//! private hosts, one after the other: one with the embedded datastore and etcd ([`pairs`]), and
//! one with a Kubernetes API server ([`api_server`]). On each host the floor and the ADDs on each
//! datastore alternate, pod by pod, so that a machine that changes its speed affects all of them.

mod api_server;
mod backend;
mod budget;
mod machine;
mod pairs;
mod pods;
mod process;
mod requests;
mod sample;
mod stores;
mod table;
mod timings;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use integration_tests::namespaces::{Host, isolated};
use nix::mount::{MsFlags, mount};

use crate::sample::Sample;
use crate::table::Table;

const PODS: usize = 100;

pub(crate) struct Paths {
    pub(crate) plugins: PathBuf,
    pub(crate) floor: PathBuf,
    /// The work directory, on a disk.
    pub(crate) work: PathBuf,
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, command @ ..] = args.as_slice()
        && flag == process::PEAK_RSS
    {
        return process::print_peak_rss(command);
    }
    let [plugins, floor, work] = args.as_slice() else {
        bail!("usage: bench PLUGIN-DIR FLOOR WORK-DIR")
    };
    let absolute = |path: &str| {
        Path::new(path)
            .canonicalize()
            .with_context(|| path.to_owned())
    };
    std::fs::create_dir_all(work)?;
    measure(&Paths {
        plugins: absolute(plugins)?,
        floor: absolute(floor)?,
        work: absolute(work)?,
    })
}

fn measure(paths: &Paths) -> Result<()> {
    let machine = machine::describe()?;
    let pairs = on_private_host(|host| pairs::measure(host, paths))?;
    let api_server = match api_server::missing() {
        Some(reason) => Err(reason),
        None => Ok(on_private_host(|host| api_server::measure(host, paths))?),
    };
    eprintln!("the program itself");
    let plugin = paths.plugins.join("calico");
    let start = start_times(&plugin)?;

    let mut table = Table::default();
    table.pairs(&pairs);
    table.api_server(&api_server);
    let on_kubernetes = api_server.as_ref().ok();
    table.crowds(
        pairs
            .crowds
            .iter()
            .chain(on_kubernetes.map(|measured| &measured.crowd)),
    );
    table.program(&start, std::fs::metadata(&plugin)?.len());
    table.stages(
        pairs
            .details
            .iter()
            .chain(on_kubernetes.map(|measured| &measured.details)),
    );
    Ok(write!(std::io::stdout(), "{machine}\n{table}")?)
}

/// Runs `measure` on a private host with an uplink.
fn on_private_host<T: Send>(measure: impl FnOnce(&Host) -> Result<T> + Send) -> Result<T> {
    let mut outcome = None;
    isolated(|host| outcome = Some(host.add_uplink().and_then(|()| measure(host))));
    outcome.context("nothing was measured")?
}

/// Mounts a directory on the disk as the data directory of the host's etcd.
fn etcd_on_disk(host: &Host, data: &Path) -> Result<()> {
    std::fs::create_dir_all(data)?;
    let nothing = None::<&str>;
    Ok(mount(
        Some(data),
        &host.dir("etcd"),
        nothing,
        MsFlags::MS_BIND,
        nothing,
    )?)
}

fn start_times(plugin: &Path) -> Result<Sample> {
    (0..200)
        .map(|_| Ok(process::timed(std::process::Command::new(plugin).arg("-v"))?.wall))
        .collect()
}

/// Returns the path of a file in the work directory, after removing files of an earlier run.
fn fresh(work: &Path, name: &str) -> Result<PathBuf> {
    let path = work.join(name);
    for suffix in ["", "-wal", "-shm"] {
        let mut stale = path.clone().into_os_string();
        stale.push(suffix);
        if Path::new(&stale).exists() {
            std::fs::remove_file(stale)?;
        }
    }
    Ok(path)
}
