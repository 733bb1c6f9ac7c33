//! ADD and DEL of pods by the release binary, on a datastore.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use integration_tests::namespaces::{Host, NETNS_DIR};

use crate::backend::Backend;
use crate::process::{self, Took, timed};
use crate::sample::Sample;
use crate::timings::Timings;
use crate::{PODS, fresh};

/// Measurements of one CNI command on many pods.
pub(crate) struct Series {
    pub(crate) wall: Sample,
    pub(crate) cpu: Sample,
}

/// The measurements of [`one_after_another`] on `N` backends.
pub(crate) struct OneAfterAnother<const N: usize> {
    /// The netlink messages alone.
    pub(crate) floor: Series,
    /// The netlink messages and the kernel settings.
    pub(crate) floor_with_sysctls: Series,
    pub(crate) operations: [(Series, Series); N],
}

/// Details of a single ADD and DEL.
pub(crate) struct Details {
    pub(crate) name: &'static str,
    pub(crate) system_calls: u64,
    /// Write transactions of an ADD on the embedded datastore; `None` on other datastores.
    pub(crate) commits: Option<u64>,
    /// Peak resident memory in KiB of an ADD and of a DEL.
    pub(crate) peak_rss: [u64; 2],
    /// The plugin's own timings.
    pub(crate) timings: Timings,
}

pub(crate) struct Crowd {
    pub(crate) name: &'static str,
    /// Wall-clock time of each ADD.
    pub(crate) each: Sample,
    /// Time from the first start to the last end.
    pub(crate) all: Duration,
}

impl FromIterator<Took> for Series {
    fn from_iter<I: IntoIterator<Item = Took>>(runs: I) -> Self {
        let (wall, cpu): (Vec<_>, Vec<_>) =
            runs.into_iter().map(|took| (took.wall, took.cpu)).unzip();
        Self {
            wall: wall.into_iter().collect(),
            cpu: cpu.into_iter().collect(),
        }
    }
}

/// Measures the floor, the floor with sysctls and an ADD on each backend for one pod after another,
/// and calls `alone`; then measures all DELs. The network namespaces are created beforehand,
/// because the kernel continues to initialize a namespace after the call that created it.
pub(crate) fn one_after_another<const N: usize>(
    host: &Host,
    floor: &Path,
    backends: [&Backend; N],
    mut alone: impl FnMut() -> Result<()>,
) -> Result<OneAfterAnother<N>> {
    let floor_pod = |variant: usize, number: usize| format!("floor{variant}-{number}");
    for variant in 0..2 {
        (0..PODS).try_for_each(|number| host.add_pod(&floor_pod(variant, number)).map(drop))?;
    }
    let mut pods = Vec::new();
    for backend in backends {
        pods.push(backend.add_pods(host, backend.name, PODS)?);
    }
    let (mut floors, mut operations) = ([vec![], vec![]], [const { (vec![], vec![]) }; N]);
    for number in 0..PODS {
        for (variant, runs) in floors.iter_mut().enumerate() {
            let pod = floor_pod(variant, number);
            let mut command = Command::new(floor);
            if variant == 1 {
                command.arg("--sysctls");
            }
            let address = format!("10.{}.0.{number}", 8 + variant);
            runs.push(timed(
                command
                    .arg(Path::new(NETNS_DIR).join(&pod))
                    .args([pod, address]),
            )?);
        }
        for ((backend, pods), (adds, _)) in backends.iter().zip(&pods).zip(&mut operations) {
            adds.push(backend.timed_call("ADD", &pods[number])?);
        }
        alone()?;
    }
    for number in 0..PODS {
        for ((backend, pods), (_, dels)) in backends.iter().zip(&pods).zip(&mut operations) {
            dels.push(backend.timed_call("DEL", &pods[number])?);
        }
    }
    let [floor, floor_with_sysctls] = floors.map(Series::from_iter);
    let operations =
        operations.map(|(adds, dels)| (adds.into_iter().collect(), dels.into_iter().collect()));
    Ok(OneAfterAnother {
        floor,
        floor_with_sysctls,
        operations,
    })
}

/// Measures single calls. The node has one block then, as any node has until that block is full.
pub(crate) fn details(host: &Host, backend: &Backend) -> Result<Details> {
    let pod = backend.add_pod(host, &format!("{}seen", backend.name))?;
    // The first ADD claims the block.
    ["ADD", "DEL"]
        .into_iter()
        .try_for_each(|verb| backend.timed_call(verb, &pod).map(drop))?;
    let counts = backend.work.join("strace");
    let before = backend.commits()?;
    let calls = process::system_calls(&backend.call("ADD", &pod), &backend.conf, &counts)?;
    let after = backend.commits()?;
    backend.timed_call("DEL", &pod)?;
    let add_rss = process::peak_rss(&backend.call("ADD", &pod), &backend.conf)?;
    let del_rss = process::peak_rss(&backend.call("DEL", &pod), &backend.conf)?;

    let timings = fresh(&backend.work, "timings")?;
    let pods = backend.add_pods(host, &format!("{}t", backend.name), 20)?;
    for verb in ["ADD", "DEL"] {
        for pod in &pods {
            timed(
                backend
                    .call(verb, pod)
                    .env("CALICO_TIMINGS", &timings)
                    .stdin(backend.stdin()?),
            )?;
        }
    }
    Ok(Details {
        name: backend.name,
        system_calls: calls.values().sum(),
        commits: before.zip(after).map(|(before, after)| after - before),
        peak_rss: [add_rss, del_rss],
        timings: Timings::parse(&fs::read_to_string(&timings)?)?,
    })
}

/// Starts the ADDs of [`PODS`] pods together.
pub(crate) fn at_once(host: &Host, backend: &Backend) -> Result<Crowd> {
    let pods = backend.add_pods(host, &format!("{}c", backend.name), PODS)?;
    let start = Barrier::new(pods.len() + 1);
    let (each, all) = thread::scope(|scope| -> Result<_> {
        let calls: Vec<_> = pods
            .iter()
            .map(|pod| {
                let start = &start;
                scope.spawn(move || -> Result<Duration> {
                    let stdin = backend.stdin()?;
                    start.wait();
                    let begin = Instant::now();
                    let output = backend.call("ADD", pod).stdin(stdin).output()?;
                    ensure!(
                        output.status.success(),
                        "{}: {}",
                        pod.name,
                        String::from_utf8_lossy(&output.stdout)
                    );
                    Ok(begin.elapsed())
                })
            })
            .collect();
        start.wait();
        let begin = Instant::now();
        let mut each = Vec::new();
        for call in calls {
            each.push(
                call.join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?,
            );
        }
        Ok((each, begin.elapsed()))
    })?;
    pods.iter()
        .try_for_each(|pod| backend.timed_call("DEL", pod).map(drop))?;
    Ok(Crowd {
        name: backend.name,
        each: each.into_iter().collect(),
        all,
    })
}
