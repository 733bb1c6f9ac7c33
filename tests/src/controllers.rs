//! The kube-controllers process ([`Controllers`]), its controllers in a thread of a test
//! ([`RunningControllers`]), and their cluster ([`ControllersCluster`]).

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::etcd;
use crate::kubernetes::ApiServer;
use crate::namespaces::Host;
use crate::plugin::Plugins;
use crate::server_process::ServerProcess;

mod cluster;
pub mod garbage_collector;
mod proxied;
mod running;
mod typed_objects;

pub use crate::on;
pub(crate) use cluster::create_replicas;
pub use cluster::{
    ControllersCluster, NAMESPACE, REPLICAS, beside_plugins, deletion_mark, handle_of, merge, on,
    on_both_groups, on_prepared, service_path,
};
pub use proxied::Proxied;
pub use running::{
    CALM, Connection, RunningControllers, Work, becomes, controller, default_settings, mode, stays,
    within,
};
pub use typed_objects::TypedObjects;

/// URL path of the Leases in the namespace of kube-controllers.
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";

/// Default port of the metrics.
pub const METRICS_PORT: u16 = 9094;

/// Timeout of an expected effect.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The environment and the arguments of a process.
#[derive(Debug, Clone)]
pub struct Setup {
    environment: BTreeMap<String, String>,
    args: Vec<String>,
    program: PathBuf,
}

/// A replica, running or ended. Killed on drop.
#[derive(Debug)]
pub struct Controllers {
    directory: PathBuf,
    setup: Setup,
    process: ServerProcess,
}

impl Setup {
    /// Returns a setup with Calico's objects in the API server, and the rights of its
    /// administrator.
    pub fn kubernetes(api: &ApiServer) -> Result<Setup> {
        leave_lease(api)?;
        Self::new(&[
            ("DATASTORE_TYPE", "kubernetes"),
            ("KUBECONFIG", &api.admin_kubeconfig().display().to_string()),
        ])
    }

    /// Returns a setup with Calico's objects in the etcd of the host.
    pub fn etcd(api: &ApiServer) -> Result<Setup> {
        leave_lease(api)?;
        let kubeconfig = api.admin_kubeconfig().display().to_string();
        Self::new(&[
            ("ETCD_ENDPOINTS", etcd::ENDPOINT),
            ("KUBECONFIG", &kubeconfig),
        ])
    }

    fn new(environment: &[(&str, &str)]) -> Result<Setup> {
        let program = Plugins::locate()?.dir().join("kube-controllers");
        ensure!(
            program.is_file(),
            "{} is not there: run `make build`",
            program.display()
        );
        let environment = environment
            .iter()
            .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
            .collect();
        Ok(Setup {
            environment,
            args: Vec::new(),
            program,
        })
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Setup {
        self.environment.insert(name.to_owned(), value.into());
        self
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, argument: impl Into<String>) -> Setup {
        self.args.push(argument.into());
        self
    }

    /// Starts a replica called `name`, whose log and status are in a directory of that name.
    pub fn start(self, host: &Host, name: &str) -> Result<Controllers> {
        let directory = host.dir(name);
        fs::create_dir_all(&directory)?;
        let mut controllers = Controllers {
            directory,
            setup: self,
            process: ServerProcess::default(),
        };
        controllers.restart()?;
        Ok(controllers)
    }
}

impl Controllers {
    /// Starts the process, or starts it again.
    pub fn restart(&mut self) -> Result<()> {
        let Setup {
            environment,
            args,
            program,
        } = &self.setup;
        // `env -i` gives the process no other variables.
        let mut words = vec!["-i".to_owned()];
        words.extend(
            environment
                .iter()
                .map(|(name, text)| format!("{name}={text}")),
        );
        words.push(program.display().to_string());
        words.push(format!("--status-file={}", self.status_file().display()));
        words.extend(args.iter().cloned());
        self.process
            .start(Path::new("/usr/bin/env"), &words, &self.log_file())
    }

    /// Reads the log, over all runs of the process.
    pub fn log(&self) -> Result<String> {
        let file = self.log_file();
        fs::read_to_string(&file).with_context(|| file.display().to_string())
    }

    /// Waits until the log contains `text` at least `times` times.
    pub fn await_log(&self, text: &str, times: usize) -> Result<()> {
        let seen = await_that(PATIENCE, || Ok(self.log()?.matches(text).count() >= times));
        seen.with_context(|| {
            format!(
                "no `{text}` in the log:\n{}",
                self.log().unwrap_or_default()
            )
        })
    }

    /// Returns the path of the status file, which `check-status` reads.
    pub fn status_file(&self) -> PathBuf {
        self.directory.join("status.json")
    }

    /// Returns the process ID while the process runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// Sends SIGTERM and waits for the exit.
    pub fn terminate(&mut self) -> Result<ExitStatus> {
        self.process.terminate()?;
        self.ended()
    }

    /// Ends the process as [`Controllers::terminate`] does, expects success, and starts the process
    /// again. A new leader looks for a migration at once, and a present one may look only after a
    /// minute.
    #[track_caller]
    pub fn end_and_restart(&mut self) {
        assert!(
            self.terminate().unwrap().success(),
            "{}",
            self.log().unwrap()
        );
        self.restart().unwrap();
    }

    /// Waits until the process exits by itself.
    pub fn ended(&mut self) -> Result<ExitStatus> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.process.ended() {
                return Ok(status);
            }
            ensure!(Instant::now() < deadline, "it still runs:\n{}", self.log()?);
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills the process.
    pub fn kill(&mut self) {
        self.process.stop();
    }

    /// Stops the process with SIGSTOP.
    pub fn freeze(&self) -> Result<()> {
        self.process.freeze()
    }

    /// Continues the process after [`Controllers::freeze`].
    pub fn thaw(&self) -> Result<()> {
        self.process.thaw()
    }

    fn log_file(&self) -> PathBuf {
        self.directory.join("log")
    }
}

/// Creates the Lease, unless it exists, as a replica releases it. Without a Lease, or with one that
/// was released long ago, a new replica waits before it writes.
fn leave_lease(api: &ApiServer) -> Result<()> {
    let metadata = json!({ "name": "calico-kube-controllers", "namespace": "kube-system" });
    // The API server accepts only six fractional digits.
    let given_back = OffsetDateTime::now_utc()
        .truncate_to_second()
        .format(&Rfc3339)?
        .replace('Z', ".000000Z");
    let spec = json!({
        "holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 0,
        "renewTime": given_back,
    });
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec,
    });
    // The server creates the namespace only some time after it is ready. An error of the connection
    // is ignored: no replica can read a Lease then.
    await_that(PATIENCE, || {
        Ok(api
            .admin()
            .create(LEASES, &lease)
            .map_or(true, |answer| matches!(answer.code, 201 | 409)))
    })
}

/// Reads the metrics of the replica that serves them on this port of the private host.
pub fn metrics(port: u16) -> Result<String> {
    let agent = ureq::Agent::config_builder()
        .timeout_global(Some(PATIENCE))
        .proxy(None)
        .build();
    let mut answer = ureq::Agent::from(agent)
        .get(format!("http://127.0.0.1:{port}/metrics"))
        .call()?;
    Ok(answer.body_mut().read_to_string()?)
}

/// Returns the exit status of a process, or the signal that killed it, as text.
pub fn exit_text(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => code.to_string(),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "?".into(),
    }
}

/// Returns an error if the condition does not hold within `patience`.
pub fn await_that(patience: Duration, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + patience;
    while !is_so()? {
        if Instant::now() >= deadline {
            bail!("it is not so after {patience:?}");
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
