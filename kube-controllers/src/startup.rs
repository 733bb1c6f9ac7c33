//! Builds the clients from the environment. Unreachable servers are retried; invalid settings end
//! the process.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use datastore::config::{ClientPlace, ProxyVariables};
use datastore::kubernetes::AccessError;
use datastore::{ConfigError, Datastore, DatastoreConfig, KubernetesConfig, Observer};
use libcalico::variables::Variables;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::context::Clients;
use crate::http::ListenError;
use crate::settings::{Mode, SettingsError};

const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Requests per second to an API server, and the burst above that, if the environment does not set
/// them (KC-111).
const RATE: [(&str, i32); 2] = [("K8S_CLIENT_QPS", 500), ("K8S_CLIENT_BURST", 1000)];

#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error("datastore: {0}")]
    Datastore(#[from] ConfigError),
    #[error("no datastore is configured; set KUBECONFIG, or run in a pod, or set ETCD_ENDPOINTS")]
    Nothing,
    #[error(
        "DATASTORE_TYPE: `local` is one node's own file; kube-controllers needs kubernetes or \
         etcdv3"
    )]
    Local,
    #[error("API server: {0}")]
    Access(#[from] AccessError),
    /// `configured` is the group that the environment names.
    #[error(
        "Calico's objects are in the API group {now} and no longer in {was}; {}",
        after_move(.now, .configured)
    )]
    Moved {
        was: &'static str,
        now: &'static str,
        configured: Option<&'static str>,
    },
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error("cannot {action}: {reason}")]
    Process {
        action: &'static str,
        reason: std::io::Error,
    },
}

/// Returns a text about the group that a restarted process uses after Calico's objects moved to the
/// group `now`. The environment may have changed by the restart, because a ConfigMap may set the
/// variable.
fn after_move(now: &str, configured: &Option<&str>) -> String {
    match configured.filter(|configured| *configured != now) {
        None => format!("a restarted process uses {now}"),
        Some(configured) => {
            format!(
                "set CALICO_API_GROUP to {now}; with the present value a restarted process uses \
                 {configured}"
            )
        }
    }
}

/// Addresses of the datastore and the API server. Both the clients and the set of controllers
/// depend on this one source, so they always agree on the type of the datastore.
#[derive(Debug)]
pub(crate) struct Servers {
    datastore: DatastoreConfig,
    api_server: KubernetesConfig,
}

impl Servers {
    /// Builds the configuration from the environment, and logs settings without effect. Reads no
    /// file and sends no request.
    pub(crate) fn from_environment(variables: Variables<'_>) -> Result<Self, StartError> {
        // An empty variable counts as unset.
        let lookup = |name: &str| variables.non_empty(name);
        let variables = Variables::new(&lookup);
        let is_set = |name: &str| {
            [name.to_owned(), format!("CALICO_{name}")]
                .iter()
                .any(|name| variables.get(name).is_some())
        };
        let [qps, burst] = RATE.map(|(name, rate)| if is_set(name) { 0 } else { rate });
        let settings = datastore::DatastoreSettings {
            qps,
            burst,
            ..datastore::DatastoreSettings::default()
        };
        let datastore =
            DatastoreConfig::new(&settings, variables).map_err(|error| match error {
                ConfigError::NotConfigured => StartError::Nothing,
                other => StartError::Datastore(other),
            })?;
        for warning in datastore.warnings() {
            tracing::warn!("{warning}");
        }
        let mut api_server = match &datastore {
            DatastoreConfig::Kubernetes(config) => (**config).clone(),
            DatastoreConfig::Etcd(_) => KubernetesConfig::for_pods(&settings, variables)?,
            DatastoreConfig::Local(_) => return Err(StartError::Local),
        };
        // Without a kubeconfig, a process in a pod uses the API server of its own cluster.
        let is_in_cluster =
            api_server.kubeconfig.is_empty() && variables.get("KUBERNETES_SERVICE_HOST").is_some();
        if !is_in_cluster {
            api_server.place = ClientPlace::OutsideCluster(ProxyVariables::read(variables));
        }
        let datastore = datastore.placed(api_server.place.clone());
        Ok(Servers {
            datastore,
            api_server,
        })
    }

    /// Returns the longest time that a write to either server may take.
    pub(crate) fn write_deadline(&self) -> Duration {
        let of_api_server = self.api_server.deadline;
        match &self.datastore {
            DatastoreConfig::Etcd(config) => config.deadline.max(of_api_server),
            DatastoreConfig::Kubernetes(_) | DatastoreConfig::Local(_) => of_api_server,
        }
    }

    /// Creates the clients, which pass the outcome of each request to an API server to `observer`.
    /// If the API server is the datastore, waits until it has answered which group holds Calico's
    /// objects, and returns `None` if `stop` is canceled before.
    pub(crate) async fn connect(
        &self,
        observer: &Observer,
        stop: &CancellationToken,
    ) -> Result<Option<Clients>, StartError> {
        let observed = |config: &KubernetesConfig| KubernetesConfig {
            observer: observer.clone(),
            ..config.clone()
        };
        let kubernetes = datastore::kubernetes::client(&observed(&self.api_server)).await?;
        let (calico, mode) = match &self.datastore {
            DatastoreConfig::Kubernetes(config) => {
                let calico = datastore::Kubernetes::long_running(&observed(config));
                let read_group = async || calico.group().await;
                let group = retry_until_ok(
                    "discover the API group of Calico's objects",
                    stop,
                    read_group,
                )
                .await;
                let Some(group) = group else { return Ok(None) };
                (
                    Datastore::Kubernetes(Arc::new(calico)),
                    Mode::Kubernetes(group),
                )
            }
            other @ (DatastoreConfig::Etcd(_) | DatastoreConfig::Local(_)) => {
                (Datastore::open(other)?, Mode::Etcd)
            }
        };
        Ok(Some(Clients {
            kubernetes,
            calico: Arc::new(calico),
            mode,
        }))
    }
}

impl std::fmt::Display for Servers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.datastore {
            DatastoreConfig::Etcd(config) => {
                write!(
                    f,
                    "datastore etcd {}, API server {}",
                    config.endpoints.join(","),
                    self.api_server
                )
            }
            DatastoreConfig::Kubernetes(_) | DatastoreConfig::Local(_) => {
                write!(f, "datastore and API server {}", self.api_server)
            }
        }
    }
}

/// Repeats `attempt` until it succeeds, and logs each failure. Returns `None` if `stop` is canceled
/// before.
pub(crate) async fn retry_until_ok<T, E: Display>(
    action: &str,
    stop: &CancellationToken,
    attempt: impl AsyncFn() -> Result<T, E>,
) -> Option<T> {
    let mut pause = PAUSE;
    let trying = async {
        loop {
            match attempt().await {
                Ok(value) => return value,
                Err(error) => tracing::warn!("cannot {action}, trying again in {pause:?}: {error}"),
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    };
    stop.run_until_cancelled(trying).await
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::time::Instant;

    use super::*;

    fn servers(variables: &[(&str, &str)]) -> Result<Servers, StartError> {
        let found = |name: &str| {
            variables
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, text)| (*text).to_owned())
        };
        Servers::from_environment(Variables::new(&found))
    }

    #[test]
    fn datastore_type_is_inferred_from_etcd_endpoints() {
        for variables in [
            &[("ETCD_ENDPOINTS", "http://a:2379")][..],
            &[
                ("DATASTORE_TYPE", "etcdv3"),
                ("ETCD_ENDPOINTS", "http://a:2379"),
                ("KUBECONFIG", "/k"),
            ],
        ] {
            assert!(
                matches!(
                    servers(variables).unwrap().datastore,
                    DatastoreConfig::Etcd(_)
                ),
                "{variables:?}"
            );
        }
        for variables in [
            &[("KUBERNETES_SERVICE_HOST", "10.0.0.1")][..],
            &[("KUBECONFIG", "/k"), ("ETCD_ENDPOINTS", "")],
            &[
                ("DATASTORE_TYPE", "kubernetes"),
                ("ETCD_ENDPOINTS", "http://a:2379"),
                ("KUBECONFIG", "/k"),
            ],
        ] {
            assert!(
                matches!(
                    servers(variables).unwrap().datastore,
                    DatastoreConfig::Kubernetes(_)
                ),
                "{variables:?}"
            );
        }
    }

    #[test]
    fn incomplete_datastore_settings_are_rejected() {
        for (variables, expected) in [
            (&[][..], "no datastore is configured"),
            (&[("DATASTORE_TYPE", "local")], "one node's own file"),
            (&[("DATASTORE_TYPE", "etcdv3")], "no etcd endpoints"),
            (&[("DATASTORE_TYPE", "sqlite")], "unknown datastore type"),
        ] {
            let error = servers(variables).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn request_rate_defaults_to_upstreams_limits_and_follows_the_environment() {
        let rate = |variables: &[(&str, &str)]| {
            let rate = servers(variables).unwrap().api_server.rate.unwrap();
            (rate.per_second, rate.burst)
        };
        assert_eq!(rate(&[("KUBECONFIG", "/k")]), (500, 1000));
        let empty = [
            ("KUBECONFIG", "/k"),
            ("K8S_CLIENT_QPS", ""),
            ("CALICO_K8S_CLIENT_BURST", ""),
        ];
        assert_eq!(rate(&empty), (500, 1000));
        assert_eq!(
            rate(&[
                ("KUBECONFIG", "/k"),
                ("K8S_CLIENT_QPS", "50"),
                ("CALICO_K8S_CLIENT_BURST", "60")
            ]),
            (50, 60)
        );
    }

    /// Operators may set variables of proxies for all pods.
    #[test]
    fn proxies_are_followed_only_outside_of_the_cluster() {
        let proxy = ("HTTPS_PROXY", "http://proxy:3128");
        let pod = ("KUBERNETES_SERVICE_HOST", "10.0.0.1");
        let etcd = ("ETCD_ENDPOINTS", "http://a:2379");
        for (variables, is_followed) in [
            (&[pod, proxy][..], false),
            (&[pod, etcd, proxy], false),
            (&[("KUBECONFIG", "/k"), proxy], true),
            (&[("KUBECONFIG", "/k"), pod, proxy], true),
            (&[("KUBECONFIG", "/k"), etcd, proxy], true),
            (&[("K8S_API_ENDPOINT", "https://api"), proxy], true),
        ] {
            let servers = servers(variables).unwrap();
            let place = if is_followed {
                let lookup = |name: &str| (name == proxy.0).then(|| proxy.1.to_owned());
                ClientPlace::OutsideCluster(ProxyVariables::read(Variables::new(&lookup)))
            } else {
                ClientPlace::Node
            };
            assert_eq!(servers.api_server.place, place, "{variables:?}");
            if let DatastoreConfig::Kubernetes(config) = &servers.datastore {
                assert_eq!(config.place, place, "{variables:?}");
            }
        }
    }

    /// A configured group takes precedence over the group that has the objects.
    #[test]
    fn error_about_moved_objects_names_the_group_of_a_restarted_process() {
        let (v1, v3) = ("crd.projectcalico.org/v1", "projectcalico.org/v3");
        for (configured, expected) in [
            (None, format!("; a restarted process uses {v3}")),
            (Some(v3), format!("; a restarted process uses {v3}")),
            (
                Some(v1),
                format!(
                    "; set CALICO_API_GROUP to {v3}; with the present value a restarted process \
                     uses {v1}"
                ),
            ),
        ] {
            let error = StartError::Moved {
                was: v1,
                now: v3,
                configured,
            }
            .to_string();
            assert!(error.ends_with(&expected), "{error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn failed_attempts_are_retried_with_growing_pauses() {
        let (begin, attempts) = (Instant::now(), Cell::new(0));
        let attempt = async || {
            attempts.set(attempts.get() + 1);
            if attempts.get() < 7 {
                Err("away")
            } else {
                Ok(5)
            }
        };
        assert_eq!(
            retry_until_ok("try", &CancellationToken::new(), attempt).await,
            Some(5)
        );
        assert_eq!(begin.elapsed().as_secs(), 1 + 2 + 4 + 8 + 10 + 10);
    }

    #[tokio::test(start_paused = true)]
    async fn cancellation_ends_the_retries() {
        let stop = CancellationToken::new();
        let stopping = async {
            sleep(PAUSE * 3).await;
            stop.cancel();
        };
        let (found, ()) = tokio::join!(
            retry_until_ok("try", &stop, async || Err::<(), _>("away")),
            stopping
        );
        assert_eq!(found, None);
    }
}
