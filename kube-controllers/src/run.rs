//! The life of the process, from reading the environment to the exit code.

mod lifecycle;
mod rule_sets;
mod stop;

use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use datastore::Observer;
use datastore::kubernetes::ObjectRequest;
use futures::FutureExt;
use futures::future::BoxFuture;
use libcalico::failure::Failure;
use libcalico::variables::Variables;
use tokio::runtime::Builder;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::cli::Options;
use crate::compaction;
use crate::configuration::Configuration;
use crate::context::{Clients, Context};
use crate::datastore_lock::{self, DatastoreCheck};
use crate::http::{self, Ports};
use crate::leader::{self, Leadership};
use crate::logging::{self, Severity};
use crate::same_cluster::SameCluster;
use crate::settings::{Environment, LeaderElection, Lease, LogSeverity, Settings, StatusLiveness};
use crate::startup::{Servers, StartError};
use crate::status::{self, Component, Status, Watchdog};
use crate::telemetry::Metrics;
use lifecycle::{LifecycleEnd, run_until_changed};
use stop::{stop_on_signal, wait_for_move};

pub use stop::{MigrationContext, MigrationTask};

/// Pause before controllers that ended unexpectedly are started again.
const RESTART_PAUSE: Duration = Duration::from_secs(1);
/// Time limit for the tasks that serve the controllers to end after the controllers, and again for
/// the release of the Lease.
const STOP_DEADLINE: Duration = Duration::from_secs(5);

/// Runs until SIGTERM or SIGINT, and then returns success. Returns failure on an error that ends
/// the process. `migrate` runs beside the controllers if the datastore is an API server.
pub fn main(options: &Options, variables: Variables<'_>, migrate: MigrationTask) -> ExitCode {
    let environment = Environment::read(variables);
    let severity = logging::init(
        environment
            .as_ref()
            .map_or(LogSeverity::default(), Environment::first_log_severity),
    );
    let outcome = environment
        .map_err(StartError::from)
        .and_then(|environment| {
            let servers = Servers::from_environment(variables)?;
            // At least two threads, also on a machine with one processor: while work blocks one
            // thread, the other serves the probes and the watchdog.
            let threads = std::thread::available_parallelism()
                .map_or(2, |processors| processors.get().max(2));
            let runtime = Builder::new_multi_thread()
                .worker_threads(threads)
                .enable_all()
                .build();
            let runtime = runtime.map_err(|reason| StartError::Process {
                action: "start threads",
                reason,
            })?;
            let (options, watchdog) = (options.clone(), Watchdog::default());
            let outcome = runtime.block_on(
                Process {
                    options,
                    environment,
                    servers,
                    severity,
                    watchdog,
                    migrate,
                }
                .run(),
            );
            // Does not wait for tasks that do not end by themselves.
            runtime.shutdown_background();
            outcome
        });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("the process ends with a failure: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Process {
    options: Options,
    environment: Environment,
    servers: Servers,
    severity: Severity,
    watchdog: Watchdog,
    migrate: MigrationTask,
}

impl Process {
    async fn run(self) -> Result<(), StartError> {
        let reason = |reason| StartError::Process {
            action: "listen for signals",
            reason,
        };
        let stop = stop_on_signal().map_err(reason)?;
        let status = Status::new(&self.options.status_file);
        status.require([
            Component::Startup,
            Component::Configuration,
            Component::Lists,
        ]);
        if self.environment.status_liveness == StatusLiveness::Heartbeat {
            tokio::spawn(status::write_heartbeats(status.clone(), stop.clone()));
        }
        tracing::info!("version {}, {}", env!("CARGO_PKG_VERSION"), self.servers);

        let metrics = Metrics::new();
        tokio::spawn(self.watchdog.clone().watch(status.clone(), stop.clone()));
        // Serves the probes from the start. The ports for metrics and profiling come later, from
        // the settings.
        let health = (self.options.health_port != 0).then_some(self.options.health_port);
        let (ports, port_changes) = watch::channel(Ports {
            health,
            ..Ports::default()
        });
        let _serving = http::start(
            port_changes,
            status.clone(),
            metrics.clone(),
            CancellationToken::new(),
        )
        .await?;

        let observer = Observer::new(metrics.request_observer());
        let Some(clients) = self.servers.connect(&observer, &stop).await? else {
            return Ok(());
        };
        // The Lease is released after every task that writes has ended or was canceled.
        let election_stop = CancellationToken::new();
        let (leadership, election) = self.join_election(&clients, &metrics, election_stop.clone());
        let migrate = self.migrate;
        let group_move = async {
            let moving = wait_for_move(&clients, &leadership, &metrics, &stop, migrate);
            let moved = stop.run_until_cancelled(moving).await;
            stop.cancel();
            moved.map_or(Ok(()), Err)
        };
        let serving = async {
            // On the heap, because the stack of a test's thread is too small for the future and
            // those of its callers.
            Box::pin(self.serve(
                clients.clone(),
                metrics.clone(),
                leadership.clone(),
                status,
                ports,
                stop.clone(),
            ))
            .await;
            stop.cancel();
        };
        let (ended, ()) = futures::future::join(group_move, serving).await;
        election_stop.cancel();
        if timeout(STOP_DEADLINE, election).await.is_err() {
            tracing::warn!("the Lease was not released in time; it expires");
        }
        tracing::info!("all controllers have ended; the process ends");
        ended
    }

    /// Joins the leader election. Returns the right to write, and a future that ends after the
    /// attempt to release the Lease.
    fn join_election(
        &self,
        clients: &Clients,
        metrics: &Metrics,
        stop: CancellationToken,
    ) -> (Leadership, BoxFuture<'static, ()>) {
        let required = match self.environment.leader_election {
            LeaderElection::Off => return (Leadership::always(), std::future::ready(()).boxed()),
            LeaderElection::Required => true,
            LeaderElection::IfAllowed => false,
        };
        let Lease { namespace, name } = self.environment.lease.clone();
        let identity = leader::identity();
        let timing = leader::Timing::for_writes_of(self.servers.write_deadline());
        let config = leader::LeaderElectionConfig {
            namespace,
            name,
            identity,
            required,
            timing,
        };
        let (leadership, task) =
            leader::start(clients.kubernetes.clone(), config, metrics.clone(), stop);
        (leadership, task.map(|_| ()).boxed())
    }

    /// Runs from the first request until every task that writes has ended or was canceled.
    async fn serve(
        self,
        clients: Clients,
        metrics: Metrics,
        elected: Leadership,
        status: Status,
        ports: watch::Sender<Ports>,
        stop: CancellationToken,
    ) {
        let Clients {
            kubernetes,
            calico,
            mode,
        } = clients.clone();
        // The tasks that serve the controllers end after the controllers.
        let serving = CancellationToken::new();
        let (health_checks, health_enabled) =
            watch::channel(self.environment.first_health_checks());
        let health = follow_health(
            status.clone(),
            clients.clone(),
            elected.clone(),
            health_enabled,
            serving.clone(),
        );
        let on_found = || status.ready(Component::Startup);
        let (leadership, lock) =
            datastore_lock::guard(elected.clone(), calico.clone(), on_found, serving.clone());
        let mut watching = pin!(futures::future::join(health, lock));
        let configuration = Configuration::new(
            clients,
            self.environment,
            elected.clone(),
            leadership.clone(),
        );
        let settings = tokio::select! {
            biased;
            _ = &mut watching => None,
            settings = configuration.read_first(&status, &stop) => settings,
        };
        let Some(settings) = settings else { return };

        let (sender, settings) = watch::channel(Arc::new(settings));
        let mut background = pin!(futures::future::join4(
            watching,
            configuration.follow(sender, serving.clone()),
            apply_in_place(
                settings.clone(),
                self.severity,
                ports,
                health_checks,
                serving.clone()
            ),
            compaction::run(calico.clone(), elected, settings.clone(), serving.clone()),
        ));
        let watchdog = self.watchdog;
        let same_cluster = SameCluster::default();
        let context = Context {
            kubernetes,
            calico,
            mode,
            settings,
            leadership,
            same_cluster,
            metrics,
            watchdog,
            stop,
        };
        tokio::select! {
            _ = &mut background => {}
            () = Box::pin(run_controllers(&context, &status)) => {
                serving.cancel();
                if timeout(STOP_DEADLINE, background).await.is_err() {
                    tracing::warn!("some tasks did not end within {STOP_DEADLINE:?} and are canceled");
                }
            }
        }
    }
}

/// Runs the controllers again and again, each time with the settings then in force, until
/// `context.stop`.
async fn run_controllers(context: &Context, status: &Status) {
    loop {
        match run_until_changed(context, status).await {
            LifecycleEnd::Stopped => return,
            // Upstream's text (KC-101). In upstream a parent process logs it and starts the
            // controllers' process again. Here the controllers restart within the process.
            LifecycleEnd::Changed => tracing::info!("Received exit status 129, restarting"),
            LifecycleEnd::Failed => {
                tracing::warn!("Received exit status 129, restarting");
                sleep(RESTART_PAUSE).await;
            }
        }
    }
}

/// Applies the severity, the ports and the health checks of the settings in force, until `stop`.
async fn apply_in_place(
    mut settings: watch::Receiver<Arc<Settings>>,
    severity: Severity,
    ports: watch::Sender<Ports>,
    health_checks: watch::Sender<bool>,
    stop: CancellationToken,
) {
    loop {
        let current = settings.borrow_and_update().clone();
        severity.set(current.log_severity);
        ports.send_modify(|ports| {
            ports.metrics = current.metrics_port;
            ports.profiling = current.debug_profile_port;
        });
        health_checks.send_replace(current.health_checks);
        tokio::select! {
            () = stop.cancelled() => return,
            Ok(()) = settings.changed() => {}
        }
    }
}

async fn follow_health(
    status: Status,
    clients: Clients,
    elected: Leadership,
    mut enabled: watch::Receiver<bool>,
    stop: CancellationToken,
) {
    while !stop.is_cancelled() {
        let checks_stop = stop.child_token();
        let current = *enabled.borrow_and_update();
        let mut watch = pin!(async {
            if !current {
                return checks_stop.cancelled().await;
            }
            let check = DatastoreCheck::default();
            let datastore = async || check.initialize_or_check(&clients.calico, &elected).await;
            let api_server = async || check_healthz(&clients.kubernetes).await;
            status::watch_health(status.clone(), datastore, api_server, checks_stop.clone()).await;
        });
        let changed = async {
            enabled
                .wait_for(|enabled| *enabled != current)
                .await
                .is_ok()
        };
        tokio::select! {
            () = &mut watch => {}
            true = changed => {
                checks_stop.cancel();
                watch.await;
            }
        }
    }
}

async fn check_healthz(kubernetes: &kube::Client) -> Result<(), Failure> {
    let request = ObjectRequest::path("/healthz");
    let Err(error) = request.send_text(kubernetes).await else {
        return Ok(());
    };
    Err(match error.status() {
        Some(status) => Failure::new(format_args!(
            "{} with http status code: {}",
            status.message, status.code
        )),
        None => error.into(),
    })
}

#[cfg(test)]
mod tests;
