//! [`ServiceAccount`]: whether this process is in a pod, and as whom it talks to the API server.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use datastore::KubernetesConfig;
use datastore::kubernetes::config::Overrides;

use crate::layout::Layout;

/// Why the pod that this process is in cannot be used (INST-6).
#[derive(Debug, thiserror::Error)]
pub enum ServiceAccountError {
    /// A file of the mount.
    #[error("cannot read {}: {source}; is automountServiceAccountToken on?", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Kubernetes sets these in every pod.
    #[error("{0} is not set although this is a pod: set it, or the ConfigMap kubernetes-services-endpoint")]
    Variable(&'static str),
}

/// The service account that is mounted into this pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceAccount {
    /// The namespace of the pod.
    pub namespace: String,
    /// The API server, `https://10.96.0.1:443` (INST-23).
    pub server: String,
    /// The file with the pod's own token. It is renewed by kubelet: read it anew for each use (INST-48).
    pub token_file: PathBuf,
    /// The file with the authorities of the API server.
    pub ca_file: PathBuf,
    /// `SKIP_TLS_VERIFY`: whether any certificate of the API server will do.
    pub insecure: bool,
    /// `KUBECONFIG`: how the API server is reached instead, as somebody else (INST-8).
    pub kubeconfig: Option<PathBuf>,
}

impl ServiceAccount {
    /// The mounted service account; `None` outside of a pod, where there is no token (INST-6).
    ///
    /// # Errors
    /// There is a token, and something else is missing.
    pub fn discover(
        layout: &Layout,
        lookup: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Option<ServiceAccount>, ServiceAccountError> {
        let mount = layout.service_account_dir();
        let token_file = mount.join("token");
        if !token_file.is_file() {
            return Ok(None);
        }
        let ca_file = mount.join("ca.crt");
        let namespace_file = mount.join("namespace");
        let read = |path: &PathBuf| {
            fs::read_to_string(path).map_err(|source| ServiceAccountError::File { path: path.clone(), source })
        };
        read(&ca_file)?;
        let set = |name: &'static str| {
            lookup(name).filter(|value| !value.is_empty()).ok_or(ServiceAccountError::Variable(name))
        };
        let host = set("KUBERNETES_SERVICE_HOST")?;
        let port = set("KUBERNETES_SERVICE_PORT")?;
        let protocol = lookup("KUBERNETES_SERVICE_PROTOCOL").unwrap_or_default();
        Ok(Some(ServiceAccount {
            namespace: read(&namespace_file)?.trim().to_owned(),
            server: server(&protocol, &host, &port),
            token_file,
            ca_file,
            insecure: lookup("SKIP_TLS_VERIFY").is_some_and(|value| value == "true"),
            kubeconfig: kubeconfig(layout, lookup),
        }))
    }

    /// The pod's own token as it is now.
    ///
    /// # Errors
    /// The file is gone.
    pub fn token(&self) -> Result<String, ServiceAccountError> {
        let read = fs::read_to_string(&self.token_file);
        let token = read.map_err(|source| ServiceAccountError::File { path: self.token_file.clone(), source })?;
        Ok(token.trim().to_owned())
    }

    /// How the API server is reached: as the pod, with the token as it is now, unless `KUBECONFIG` says otherwise. `deadline`
    /// is for one request.
    ///
    /// # Errors
    /// The token is gone.
    pub fn access(&self, deadline: Duration) -> Result<KubernetesConfig, ServiceAccountError> {
        if let Some(kubeconfig) = &self.kubeconfig {
            return Ok(KubernetesConfig {
                kubeconfig: vec![kubeconfig.clone()],
                deadline,
                ..KubernetesConfig::default()
            });
        }
        Ok(self.access_with(self.token()?, deadline))
    }

    /// How the API server is reached with nothing but this token.
    #[must_use]
    pub fn access_with(&self, token: String, deadline: Duration) -> KubernetesConfig {
        let overrides = Overrides {
            server: Some(self.server.clone()),
            token: Some(token),
            authorities: (!self.insecure).then(|| self.ca_file.clone()),
            insecure: self.insecure,
            ..Overrides::default()
        };
        KubernetesConfig { overrides, deadline, ..KubernetesConfig::default() }
    }
}

/// `KUBECONFIG`, unless it is the plugins' own one: a token cannot be renewed with itself for ever (INST-48).
fn kubeconfig(layout: &Layout, lookup: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let named = PathBuf::from(lookup("KUBECONFIG").filter(|value| !value.is_empty())?);
    if named.ends_with("calico-kubeconfig") {
        tracing::warn!("KUBECONFIG names the plugins' own {}; the pod's service account is used", named.display());
        return None;
    }
    Some(layout.path(named))
}

/// The API server's URL. An IPv6 host gets brackets, no protocol means `https` (INST-23).
#[must_use]
pub fn server(protocol: &str, host: &str, port: &str) -> String {
    let protocol = if protocol.is_empty() { "https" } else { protocol };
    let is_bare_ipv6 = host.contains(':') && !host.starts_with('[');
    if is_bare_ipv6 { format!("{protocol}://[{host}]:{port}") } else { format!("{protocol}://{host}:{port}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn discover(
        files: &[(&str, &str)],
        environment: &[(&str, &str)],
    ) -> Result<Option<ServiceAccount>, ServiceAccountError> {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::below(root.path());
        fs::create_dir_all(layout.service_account_dir()).unwrap();
        for (name, text) in files {
            fs::write(layout.service_account_dir().join(name), text).unwrap();
        }
        let lookup =
            |name: &str| environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let found = ServiceAccount::discover(&layout, &lookup)?;
        if let Some(account) = &found {
            assert_eq!(account.token().unwrap(), "TOKEN");
            assert!(!format!("{account:?} {:?}", account.access(Duration::from_secs(1))).contains("TOKEN"));
        }
        Ok(found)
    }

    const MOUNT: [(&str, &str); 3] = [("token", "TOKEN\n"), ("ca.crt", "PEM"), ("namespace", "kube-system\n")];

    #[test]
    fn without_a_token_this_is_no_pod() {
        assert_eq!(discover(&[], &[]).unwrap(), None);
        assert_eq!(discover(&[("namespace", "x")], &[("KUBERNETES_SERVICE_HOST", "10.0.0.1")]).unwrap(), None);
    }

    #[test]
    fn a_pod_has_its_server_from_the_environment() {
        let environment = [("KUBERNETES_SERVICE_HOST", "10.96.0.1"), ("KUBERNETES_SERVICE_PORT", "443")];
        let account = discover(&MOUNT, &environment).unwrap().unwrap();
        assert_eq!((account.namespace.as_str(), account.server.as_str()), ("kube-system", "https://10.96.0.1:443"));
        assert!(!account.insecure);
    }

    #[test]
    fn a_kubeconfig_is_used_instead_of_the_pods_token_unless_it_is_the_plugins() {
        let with = |kubeconfig| {
            let environment =
                [("KUBERNETES_SERVICE_HOST", "h"), ("KUBERNETES_SERVICE_PORT", "1"), ("KUBECONFIG", kubeconfig)];
            discover(&MOUNT, &environment).unwrap().unwrap()
        };
        let access = with("/certs/kubeconfig").access(Duration::from_secs(1)).unwrap();
        assert!(access.kubeconfig[0].ends_with("certs/kubeconfig") && access.overrides.server.is_none());
        assert_eq!(with("/host/etc/cni/net.d/calico-kubeconfig").kubeconfig, None);
        assert_eq!(with("").kubeconfig, None);
    }

    #[test]
    fn what_a_pod_lacks_is_named() {
        let environment = [("KUBERNETES_SERVICE_HOST", "10.96.0.1"), ("KUBERNETES_SERVICE_PORT", "443")];
        for (files, environment, expected) in [
            (&MOUNT[..], &environment[..1], "KUBERNETES_SERVICE_PORT is not set"),
            (&MOUNT[..], &[("KUBERNETES_SERVICE_HOST", "")], "KUBERNETES_SERVICE_HOST is not set"),
            (&MOUNT[..1], &environment[..], "ca.crt: "),
            (&MOUNT[..2], &environment[..], "namespace: "),
        ] {
            let error = discover(files, environment).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn ipv6_hosts_get_brackets_and_https_is_understood() {
        assert_eq!(server("", "127.0.0.1", "6443"), "https://127.0.0.1:6443");
        assert_eq!(server("", "2001:db8::1", "6443"), "https://[2001:db8::1]:6443");
        assert_eq!(server("http", "[::1]", "80"), "http://[::1]:80");
    }
}
