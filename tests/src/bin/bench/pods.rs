//! ADD and DEL of pods by the shipped binary, on a datastore.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use datastore::DatastoreConfig;
use datastore::config::{DEFAULT_DEADLINE, EtcdConfig, LocalConfig};
use integration_tests::etcd::ENDPOINT;
use integration_tests::namespaces::{Host, NETNS_DIR};
use serde_json::{Value, json};

use crate::process::{self, Took, timed};
use crate::sample::Sample;
use crate::timings::Timings;
use crate::{PODS, fresh};

const NODE: &str = "bench";

/// Pools of the backends: they serve the same host, where no two pods may have one address.
const LOCAL_POOL: &str = "10.64.0.0/16";
const ETCD_POOL: &str = "10.65.0.0/16";

/// A datastore with one pool, and the configuration that leads the plugin to it.
pub(crate) struct Backend {
    /// `local` or `etcd`.
    pub(crate) name: &'static str,
    /// The same datastore for [`crate::stores`].
    pub(crate) datastore: DatastoreConfig,
    plugins: PathBuf,
    work: PathBuf,
    conf: PathBuf,
}

/// One verb, many pods.
pub(crate) struct Series {
    /// Wall-clock time.
    pub(crate) wall: Sample,
    /// CPU time.
    pub(crate) cpu: Sample,
}

/// What [`one_after_another`] measured.
pub(crate) struct OneAfterAnother {
    /// The netlink messages alone.
    pub(crate) floor: Series,
    /// The same and the kernel settings.
    pub(crate) floor_with_sysctls: Series,
    /// ADD and DEL for each backend.
    pub(crate) operations: [(Series, Series); 2],
}

/// What a single ADD and DEL do.
pub(crate) struct Details {
    /// The backend.
    pub(crate) name: &'static str,
    /// System calls of an ADD.
    pub(crate) system_calls: u64,
    /// Write transactions of an ADD, counted by the embedded datastore; on etcd they are the same.
    pub(crate) commits: Option<u64>,
    /// Peak resident memory in KiB of an ADD and of a DEL.
    pub(crate) peak_rss: [u64; 2],
    /// What the plugin says of itself.
    pub(crate) timings: Timings,
}

/// Many ADDs started together.
pub(crate) struct Crowd {
    /// The backend.
    pub(crate) name: &'static str,
    /// Wall-clock time of each.
    pub(crate) each: Sample,
    /// From the first start to the last end.
    pub(crate) all: Duration,
}

impl Backend {
    /// The embedded datastore, in a new file on the disk of the work directory.
    pub(crate) fn local(plugins: &Path, work: &Path) -> Result<Self> {
        let path = fresh(work, "calico.db")?;
        let keys = json!({ "datastore_type": "local", "datastore_path": path });
        let datastore = DatastoreConfig::Local(LocalConfig { path, deadline: DEFAULT_DEADLINE });
        let backend = Self {
            name: "local",
            datastore,
            plugins: plugins.into(),
            work: work.into(),
            conf: work.join("local.json"),
        };
        backend.prepare(keys, LOCAL_POOL)
    }

    /// The running etcd.
    pub(crate) fn etcd(plugins: &Path, work: &Path) -> Result<Self> {
        let keys = json!({ "datastore_type": "etcdv3", "etcd_endpoints": ENDPOINT });
        let endpoints = vec![ENDPOINT.to_owned()];
        let config = EtcdConfig { endpoints, tls: None, credentials: None, deadline: DEFAULT_DEADLINE };
        let datastore = DatastoreConfig::Etcd(config);
        let backend =
            Self { name: "etcd", datastore, plugins: plugins.into(), work: work.into(), conf: work.join("etcd.json") };
        backend.prepare(keys, ETCD_POOL)
    }

    /// Writes the network configuration, `keys` being those of the datastore, and makes node and pool.
    fn prepare(self, keys: Value, cidr: &str) -> Result<Self> {
        let mut conf = json!({
            "cniVersion": "1.0.0",
            "name": "bench",
            "type": "calico",
            "log_level": "error",
            "nodename": NODE,
            "nodename_file_optional": true,
            "ipam": { "type": "calico-ipam" },
        });
        conf.as_object_mut().into_iter().for_each(|conf| conf.extend(keys.as_object().cloned().unwrap_or_default()));
        fs::write(&self.conf, conf.to_string())?;
        let pool = json!({
            "apiVersion": "projectcalico.org/v3",
            "kind": "IPPool",
            "metadata": { "name": self.name },
            "spec": { "cidr": cidr },
        });
        // JSON is YAML.
        let file = self.work.join("pool.yaml");
        fs::write(&file, pool.to_string())?;
        timed(self.manage(&keys).args(["init", "--node", NODE]))?;
        timed(self.manage(&keys).args(["apply", "-f"]).arg(file))?;
        Ok(self)
    }

    /// `calico-ipam` as people call it.
    fn manage(&self, keys: &Value) -> Command {
        let mut command = Command::new(self.plugins.join("calico-ipam"));
        for (key, value) in keys.as_object().into_iter().flatten() {
            command.env(key.to_uppercase(), value.as_str().unwrap_or_default());
        }
        command
    }

    /// The plugin as a runtime calls it; its stdin is [`Backend::stdin`]. The pod's name is the container id too, of which
    /// eleven characters go into the name of its interface.
    fn call(&self, verb: &str, pod: &str) -> Command {
        let mut command = Command::new(self.plugins.join("calico"));
        command
            .env_clear()
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", pod)
            .env("CNI_NETNS", Path::new(NETNS_DIR).join(pod))
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", &self.plugins);
        command
    }

    fn stdin(&self) -> Result<File> {
        File::open(&self.conf).context("the configuration")
    }

    /// How many transactions have written to the embedded datastore so far.
    fn commits(&self) -> Result<Option<u64>> {
        let DatastoreConfig::Local(config) = &self.datastore else { return Ok(None) };
        let file = rusqlite::Connection::open(&config.path)?;
        Ok(Some(file.query_row("SELECT revision FROM counter", [], |row| row.get::<_, i64>(0))?.try_into()?))
    }

    fn timed_call(&self, verb: &str, pod: &str) -> Result<Took> {
        timed(self.call(verb, pod).stdin(self.stdin()?))
    }
}

impl FromIterator<Took> for Series {
    fn from_iter<I: IntoIterator<Item = Took>>(runs: I) -> Self {
        let (wall, cpu): (Vec<_>, Vec<_>) = runs.into_iter().map(|took| (took.wall, took.cpu)).unzip();
        Self { wall: wall.into_iter().collect(), cpu: cpu.into_iter().collect() }
    }
}

/// Floor, floor with sysctls, ADD on each backend, in turn for each number; then all DELs. All pods stay until then. Their
/// namespaces are made beforehand: the kernel goes on with a new one after the call that made it, which is not ADD's work.
pub(crate) fn one_after_another(host: &Host, floor: &Path, backends: [&Backend; 2]) -> Result<OneAfterAnother> {
    let (mut floors, mut adds, mut dels) = ([vec![], vec![]], [vec![], vec![]], [vec![], vec![]]);
    let names = |number| {
        let floors = (0..2).map(move |variant| format!("floor{variant}-{number}"));
        floors.chain(backends.map(|backend| format!("{}{number}", backend.name)))
    };
    (0..PODS).flat_map(names).try_for_each(|pod| host.add_pod(&pod).map(|_| ()))?;
    for number in 0..PODS {
        for (variant, runs) in floors.iter_mut().enumerate() {
            let netns = Path::new(NETNS_DIR).join(format!("floor{variant}-{number}"));
            let mut command = Command::new(floor);
            if variant == 1 {
                command.arg("--sysctls");
            }
            let address = format!("10.{}.0.{number}", 8 + variant);
            runs.push(timed(command.arg(netns).args([format!("floor{variant}-{number}"), address]))?);
        }
        for (backend, runs) in backends.iter().zip(&mut adds) {
            runs.push(backend.timed_call("ADD", &format!("{}{number}", backend.name))?);
        }
    }
    for number in 0..PODS {
        for (backend, runs) in backends.iter().zip(&mut dels) {
            runs.push(backend.timed_call("DEL", &format!("{}{number}", backend.name))?);
        }
    }
    let [floor, floor_with_sysctls] = floors.map(Series::from_iter);
    let [local, etcd] = adds.map(Series::from_iter);
    let [local_del, etcd_del] = dels.map(Series::from_iter);
    Ok(OneAfterAnother { floor, floor_with_sysctls, operations: [(local, local_del), (etcd, etcd_del)] })
}

/// Looks into single calls: what they ask of kernel and datastore, and where their time goes.
pub(crate) fn details(host: &Host, backend: &Backend) -> Result<Details> {
    let pod = format!("{}seen", backend.name);
    host.add_pod(&pod)?;
    let counts = backend.work.join("strace");
    let before = backend.commits()?;
    let calls = process::system_calls(&backend.call("ADD", &pod), &backend.conf, &counts)?;
    let after = backend.commits()?;
    backend.timed_call("DEL", &pod)?;
    let add_rss = process::peak_rss(&backend.call("ADD", &pod), &backend.conf)?;
    let del_rss = process::peak_rss(&backend.call("DEL", &pod), &backend.conf)?;

    let timings = fresh(&backend.work, "timings")?;
    let pods: Vec<_> = (0..20).map(|number| format!("{}t{number}", backend.name)).collect();
    pods.iter().try_for_each(|pod| host.add_pod(pod).map(|_| ()))?;
    for verb in ["ADD", "DEL"] {
        for pod in &pods {
            timed(backend.call(verb, pod).env("CALICO_TIMINGS", &timings).stdin(backend.stdin()?))?;
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

/// Starts one ADD for each of the pods together, then deletes them.
pub(crate) fn at_once(host: &Host, backend: &Backend) -> Result<Crowd> {
    let pods: Vec<_> = (0..PODS).map(|number| format!("{}c{number}", backend.name)).collect();
    pods.iter().try_for_each(|pod| host.add_pod(pod).map(|_| ()))?;
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
                    ensure!(output.status.success(), "{pod}: {}", String::from_utf8_lossy(&output.stdout));
                    Ok(begin.elapsed())
                })
            })
            .collect();
        start.wait();
        let begin = Instant::now();
        let mut each = Vec::new();
        for call in calls {
            each.push(call.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok((each, begin.elapsed()))
    })?;
    pods.iter().try_for_each(|pod| backend.timed_call("DEL", pod).map(|_| ()))?;
    Ok(Crowd { name: backend.name, each: each.into_iter().collect(), all })
}
