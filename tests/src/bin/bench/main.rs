//! `make bench`: what an ADD and a DEL cost, against the floor of this machine, in one run.
//!
//! `bench PLUGIN-DIR FLOOR WORK-DIR` prints the table of the README. Everything runs on a private host; the datastores
//! are on the disk of the work directory. The floor, ADD on the embedded datastore and ADD on etcd take turns, pod by
//! pod, so that a machine that changes its speed changes it for all of them.

mod machine;
mod pods;
mod process;
mod sample;
mod stores;
mod table;
mod timings;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use integration_tests::etcd::Etcd;
use integration_tests::namespaces::{Host, isolated};
use nix::mount::{MsFlags, mount};

use crate::pods::Backend;
use crate::sample::Sample;
use crate::table::Table;

/// Pods per measured series.
const PODS: usize = 100;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, command @ ..] = args.as_slice()
        && flag == process::PEAK_RSS
    {
        return process::print_peak_rss(command);
    }
    let [plugins, floor, work] = args.as_slice() else { bail!("usage: bench PLUGIN-DIR FLOOR WORK-DIR") };
    let absolute = |path: &str| Path::new(path).canonicalize().with_context(|| path.to_owned());
    let (plugins, floor) = (absolute(plugins)?, absolute(floor)?);
    std::fs::create_dir_all(work)?;
    let work = absolute(work)?;

    let mut outcome = Ok(());
    isolated(|host| outcome = measure(host, &plugins, &floor, &work));
    outcome
}

fn measure(host: &Host, plugins: &Path, floor: &Path, work: &Path) -> Result<()> {
    let machine = machine::describe()?;
    host.add_uplink()?;
    let etcd_data = work.join("etcd");
    std::fs::create_dir_all(&etcd_data)?;
    let nothing = None::<&str>;
    mount(Some(&etcd_data), &host.dir("etcd"), nothing, MsFlags::MS_BIND, nothing)?;
    let _etcd = Etcd::start(host)?;

    let local = Backend::local(plugins, work)?;
    let etcd = Backend::etcd(plugins, work)?;
    let mut table = Table::default();

    eprintln!("datastores alone");
    let costs = [stores::measure(&local)?, stores::measure(&etcd)?];
    eprintln!("{PODS} pods one after another");
    let series = pods::one_after_another(host, floor, [&local, &etcd])?;
    eprintln!("what one ADD does");
    let details = [pods::details(host, &local)?, pods::details(host, &etcd)?];
    eprintln!("{PODS} pods at once");
    let crowds = [pods::at_once(host, &local)?, pods::at_once(host, &etcd)?];
    eprintln!("the program itself");
    let start = start_times(&plugins.join("calico"))?;

    table.floor(&series);
    table.stores(&costs);
    table.operations(&series, &costs, &details);
    table.crowds(&crowds);
    table.program(&start, std::fs::metadata(plugins.join("calico"))?.len());
    table.stages(&details);
    Ok(write!(std::io::stdout(), "{machine}\n{table}")?)
}

/// `calico -v`, from exec to exit.
fn start_times(plugin: &Path) -> Result<Sample> {
    (0..200).map(|_| Ok(process::timed(std::process::Command::new(plugin).arg("-v"))?.wall)).collect()
}

/// A file in the work directory, emptied of what an earlier run left.
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
