//! [`ServiceAccount`]: the service account of the pod in which this process runs, and its access to
//! the API server.

use libcalico::variables::Variables;
use std::path::{Path, PathBuf};
use std::time::Duration;

use datastore::KubernetesConfig;
use datastore::config::Overrides;
use libcalico::failure::Failure;

use crate::layout::Layout;
use os::atomic_file::{AtomicFileError, regular_file};

/// The service account that is mounted into this pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceAccount {
    /// The namespace of the pod.
    pub namespace: String,
    /// The URL of the API server, such as `https://10.96.0.1:443`.
    pub server: String,
    /// The file with the pod's own token. kubelet renews the token, so the file is read for each
    /// use (INST-48).
    pub token_file: PathBuf,
    /// The file with the CA certificates of the API server.
    pub ca_file: PathBuf,
    /// Whether to accept any certificate of the API server (`SKIP_TLS_VERIFY`).
    pub insecure: bool,
    /// `KUBECONFIG`: a file with another access to the API server.
    pub kubeconfig: Option<PathBuf>,
}

impl ServiceAccount {
    /// Returns the mounted service account, or `None` outside of a pod, where the token file is
    /// missing.
    ///
    /// # Errors
    /// Returns an error if the token file exists, but another file or variable is missing.
    pub fn discover(
        layout: &Layout,
        variables: Variables<'_>,
    ) -> Result<Option<ServiceAccount>, Failure> {
        let mount = layout.service_account_dir();
        let token_file = mount.join("token");
        if !token_file.is_file() {
            return Ok(None);
        }
        let ca_file = mount.join("ca.crt");
        let namespace_file = mount.join("namespace");
        read(&ca_file)?;
        let set = |name: &'static str| {
            variables.non_empty(name).ok_or_else(|| {
                Failure::new(format_args!("{name} is not set in this pod")).way_out(
                    "set the variable, or create the ConfigMap kubernetes-services-endpoint",
                )
            })
        };
        let host = set("KUBERNETES_SERVICE_HOST")?;
        let port = set("KUBERNETES_SERVICE_PORT")?;
        let protocol = variables.text("KUBERNETES_SERVICE_PROTOCOL", "");
        Ok(Some(ServiceAccount {
            namespace: read(&namespace_file)?.trim().to_owned(),
            server: server(&protocol, &host, &port),
            token_file,
            ca_file,
            insecure: variables.text("SKIP_TLS_VERIFY", "") == "true",
            kubeconfig: kubeconfig(layout, variables),
        }))
    }

    /// Reads the pod's own token.
    pub fn token(&self) -> Result<String, Failure> {
        Ok(read(&self.token_file)?.trim().to_owned())
    }

    /// Returns the access to the API server. `KUBECONFIG` takes precedence. `deadline` applies to
    /// one request.
    pub fn access(&self, deadline: Duration) -> Result<KubernetesConfig, Failure> {
        if let Some(kubeconfig) = &self.kubeconfig {
            let kubeconfig = vec![kubeconfig.clone()];
            return Ok(KubernetesConfig {
                kubeconfig,
                deadline,
                ..KubernetesConfig::default()
            });
        }
        Ok(self.access_with(self.token()?, deadline))
    }

    /// Returns the access to the API server with this token. `KUBECONFIG` is not used.
    #[must_use]
    pub fn access_with(&self, token: String, deadline: Duration) -> KubernetesConfig {
        let overrides = Overrides {
            server: Some(self.server.clone()),
            token: Some(token),
            ca_certificates: (!self.insecure).then(|| self.ca_file.clone()),
            insecure: self.insecure,
            ..Overrides::default()
        };
        KubernetesConfig {
            overrides,
            deadline,
            ..KubernetesConfig::default()
        }
    }
}

fn read(path: &Path) -> Result<String, Failure> {
    regular_file::utf8(path).map_err(|source| {
        Failure::new(AtomicFileError {
            action: "read",
            path: path.to_owned(),
            source,
        })
        .way_out("check that automountServiceAccountToken is true")
    })
}

/// Returns the path in `KUBECONFIG`, unless it is the plugins' own `calico-kubeconfig`: the token
/// in that file would be used to renew itself, until it expires (INST-48).
fn kubeconfig(layout: &Layout, variables: Variables<'_>) -> Option<PathBuf> {
    let named = PathBuf::from(variables.non_empty("KUBECONFIG")?);
    if named.ends_with("calico-kubeconfig") {
        tracing::warn!(
            "KUBECONFIG names the plugins' own {}; the pod's service account is used",
            named.display()
        );
        return None;
    }
    Some(layout.path(named))
}

/// Returns the API server's URL. The default protocol is `https`.
#[must_use]
pub fn server(protocol: &str, host: &str, port: &str) -> String {
    let protocol = if protocol.is_empty() {
        "https"
    } else {
        protocol
    };
    let is_bare_ipv6 = host.contains(':') && !host.starts_with('[');
    if is_bare_ipv6 {
        format!("{protocol}://[{host}]:{port}")
    } else {
        format!("{protocol}://{host}:{port}")
    }
}

#[cfg(test)]
mod tests {
    use libcalico::variables::Variables;
    use std::fs;

    use datastore::config::ClientPlace;

    use super::*;

    fn discover(
        files: &[(&str, &str)],
        environment: &[(&str, &str)],
    ) -> Result<Option<ServiceAccount>, Failure> {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::below(root.path());
        fs::create_dir_all(layout.service_account_dir()).unwrap();
        for (name, text) in files {
            fs::write(layout.service_account_dir().join(name), text).unwrap();
        }
        let lookup = |name: &str| {
            environment
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        };
        let found = ServiceAccount::discover(&layout, Variables::new(&lookup))?;
        if let Some(account) = &found {
            assert_eq!(account.token().unwrap(), "TOKEN");
            assert!(
                !format!("{account:?} {:?}", account.access(Duration::from_secs(1)))
                    .contains("TOKEN")
            );
        }
        Ok(found)
    }

    const MOUNT: [(&str, &str); 3] = [
        ("token", "TOKEN\n"),
        ("ca.crt", "PEM"),
        ("namespace", "kube-system\n"),
    ];

    #[test]
    fn missing_token_means_no_service_account() {
        assert_eq!(discover(&[], &[]).unwrap(), None);
        assert_eq!(
            discover(
                &[("namespace", "x")],
                &[("KUBERNETES_SERVICE_HOST", "10.0.0.1")]
            )
            .unwrap(),
            None
        );
    }

    #[test]
    fn pod_service_account_takes_the_server_from_the_environment() {
        let environment = [
            ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
            ("KUBERNETES_SERVICE_PORT", "443"),
        ];
        let account = discover(&MOUNT, &environment).unwrap().unwrap();
        assert_eq!(
            (account.namespace.as_str(), account.server.as_str()),
            ("kube-system", "https://10.96.0.1:443")
        );
        assert!(!account.insecure);
    }

    #[test]
    fn kubeconfig_replaces_the_pod_token_unless_written_for_the_plugin() {
        let with = |kubeconfig| {
            let environment = [
                ("KUBERNETES_SERVICE_HOST", "h"),
                ("KUBERNETES_SERVICE_PORT", "1"),
                ("KUBECONFIG", kubeconfig),
            ];
            discover(&MOUNT, &environment).unwrap().unwrap()
        };
        let access = with("/certs/kubeconfig")
            .access(Duration::from_secs(1))
            .unwrap();
        assert!(
            access.kubeconfig[0].ends_with("certs/kubeconfig") && access.overrides.server.is_none()
        );
        assert_eq!(
            with("/host/etc/cni/net.d/calico-kubeconfig").kubeconfig,
            None
        );
        assert_eq!(with("").kubeconfig, None);
    }

    /// Shows SEC-75.
    #[test]
    fn access_of_the_agent_follows_no_proxy_and_runs_no_credential_plugin() {
        let environment = [
            ("KUBERNETES_SERVICE_HOST", "h"),
            ("KUBERNETES_SERVICE_PORT", "1"),
            ("KUBECONFIG", "/certs/kubeconfig"),
            ("HTTPS_PROXY", "http://p"),
        ];
        let account = discover(&MOUNT, &environment).unwrap().unwrap();
        let deadline = Duration::from_secs(1);
        let (of_kubeconfig, of_pod) = (
            account.access(deadline).unwrap(),
            account.access_with("t".into(), deadline),
        );
        assert_eq!(
            [of_kubeconfig.place, of_pod.place],
            [ClientPlace::Node, ClientPlace::Node]
        );
    }

    #[test]
    fn incomplete_service_account_is_reported_with_the_missing_part() {
        let environment = [
            ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
            ("KUBERNETES_SERVICE_PORT", "443"),
        ];
        for (files, environment, expected) in [
            (
                &MOUNT[..],
                &environment[..1],
                "KUBERNETES_SERVICE_PORT is not set",
            ),
            (
                &MOUNT[..],
                &[("KUBERNETES_SERVICE_HOST", "")],
                "KUBERNETES_SERVICE_HOST is not set",
            ),
            (&MOUNT[..1], &environment[..], "ca.crt: "),
            (&MOUNT[..2], &environment[..], "namespace: "),
        ] {
            let error = discover(files, environment).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn server_url_brackets_ipv6_and_defaults_to_https() {
        assert_eq!(server("", "127.0.0.1", "6443"), "https://127.0.0.1:6443");
        assert_eq!(
            server("", "2001:db8::1", "6443"),
            "https://[2001:db8::1]:6443"
        );
        assert_eq!(server("http", "[::1]", "80"), "http://[::1]:80");
    }
}
