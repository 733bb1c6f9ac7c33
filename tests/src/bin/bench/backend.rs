//! Datastores, each with the network configuration that selects it and the pods in its network.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use datastore::DatastoreConfig;
use datastore::config::KubernetesConfig;
use datastore::config::{DEFAULT_DEADLINE, EtcdConfig, LocalConfig};
use integration_tests::content::Content;
use integration_tests::etcd::ENDPOINT;
use integration_tests::kubernetes::{ApiServer, Client, Objects};
use integration_tests::namespaces::{Host, NETNS_DIR};
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

use crate::process::{Took, timed};
use crate::{Paths, fresh};

pub(crate) const NODE: &str = "bench";

pub(crate) const NAMESPACE: &str = "bench";

/// Pools of the backends. They differ because the backends share a host.
const LOCAL_POOL: &str = "10.64.0.0/16";
const ETCD_POOL: &str = "10.65.0.0/16";
const KUBERNETES_POOL: &str = "10.66.0.0/16";

/// The API group that nearly every cluster uses for Calico's data.
const GROUP: ApiGroup = ApiGroup::CrdV1;

/// A datastore with one pool, and the configuration that selects it.
pub(crate) struct Backend {
    /// `local`, `etcd` or `kubernetes`.
    pub(crate) name: &'static str,
    /// The configuration with which this benchmark opens the same datastore.
    pub(crate) datastore: DatastoreConfig,
    pub(crate) work: PathBuf,
    /// File with the plugin's stdin.
    pub(crate) conf: PathBuf,
    plugins: PathBuf,
    /// Client that creates Pod objects; absent on etcd and the embedded datastore.
    admin: Option<Client>,
}

/// A pod without a network.
pub(crate) struct Pod {
    /// Name of the network namespace, and container ID.
    pub(crate) name: String,
    args: String,
}

impl Backend {
    /// Creates the embedded datastore in a new file.
    pub(crate) fn local(paths: &Paths) -> Result<Self> {
        let path = fresh(&paths.work, "calico.db")?;
        let keys = json!({ "datastore_type": "local", "datastore_path": path });
        let datastore = DatastoreConfig::Local(LocalConfig {
            path,
            deadline: DEFAULT_DEADLINE,
        });
        let backend = Self::new("local", datastore, paths, &keys)?;
        backend.initialize(&keys, LOCAL_POOL)
    }

    pub(crate) fn etcd(paths: &Paths) -> Result<Self> {
        let keys = json!({ "datastore_type": "etcdv3", "etcd_endpoints": ENDPOINT });
        let endpoints = vec![ENDPOINT.to_owned()];
        let config = EtcdConfig {
            endpoints,
            tls: None,
            credentials: None,
            deadline: DEFAULT_DEADLINE,
        };
        let backend = Self::new(
            "etcd",
            DatastoreConfig::Etcd(Box::new(config)),
            paths,
            &keys,
        )?;
        backend.initialize(&keys, ETCD_POOL)
    }

    /// Returns the backend of the running API server. Its service account may do everything.
    pub(crate) fn kubernetes(paths: &Paths, api: &ApiServer) -> Result<Self> {
        let account = api.service_account("kube-system", "calico-cni-plugin")?;
        api.bind(&account, "cluster-admin")?;
        api.namespace(NAMESPACE)?;
        api.admin().node(NODE)?;
        api.define(GROUP.api_version())?;
        let content = Content::ready().pool("kubernetes", KUBERNETES_POOL, 26);
        Objects::new(api.admin(), GROUP, account.kubeconfig.clone())
            .load(&content.objects(GROUP))?;

        let keys = json!({
            "datastore_type": "kubernetes",
            "calico_api_group": GROUP.api_version(),
            "kubernetes": { "kubeconfig": account.kubeconfig },
            "policy": { "type": "k8s" },
        });
        let config = KubernetesConfig {
            kubeconfig: vec![account.kubeconfig],
            group: Some(GROUP),
            deadline: DEFAULT_DEADLINE,
            ..KubernetesConfig::default()
        };
        let backend = Self::new(
            "kubernetes",
            DatastoreConfig::Kubernetes(Box::new(config)),
            paths,
            &keys,
        )?;
        Ok(Self {
            admin: Some(api.admin().clone()),
            ..backend
        })
    }

    /// Writes the network configuration; `keys` select the datastore.
    fn new(
        name: &'static str,
        datastore: DatastoreConfig,
        paths: &Paths,
        keys: &Value,
    ) -> Result<Self> {
        let mut conf = json!({
            "cniVersion": "1.0.0",
            "name": "bench",
            "type": "calico",
            "log_level": "error",
            "nodename": NODE,
            "nodename_file_optional": true,
            "ipam": { "type": "calico-ipam" },
        });
        conf.as_object_mut()
            .into_iter()
            .for_each(|conf| conf.extend(keys.as_object().cloned().unwrap_or_default()));
        let file = paths.work.join(format!("{name}.json"));
        fs::write(&file, conf.to_string())?;
        Ok(Self {
            name,
            datastore,
            work: paths.work.clone(),
            conf: file,
            plugins: paths.plugins.clone(),
            admin: None,
        })
    }

    /// Creates node and pool with `calico-ipam`, as an operator does.
    fn initialize(self, keys: &Value, cidr: &str) -> Result<Self> {
        let pool = json!({
            "apiVersion": "projectcalico.org/v3",
            "kind": "IPPool",
            "metadata": { "name": self.name },
            "spec": { "cidr": cidr },
        });
        // `calico-ipam apply` reads YAML, and JSON is YAML.
        let file = self.work.join("pool.yaml");
        fs::write(&file, pool.to_string())?;
        timed(self.manage(keys).args(["init", "--node", NODE]))?;
        timed(self.manage(keys).args(["apply", "-f"]).arg(file))?;
        Ok(self)
    }

    fn manage(&self, keys: &Value) -> Command {
        let mut command = Command::new(self.plugins.join("calico-ipam"));
        for (key, value) in keys.as_object().into_iter().flatten() {
            command.env(key.to_uppercase(), value.as_str().unwrap_or_default());
        }
        command
    }

    /// Creates the network namespace of a pod and, on an API server, the Pod object.
    pub(crate) fn add_pod(&self, host: &Host, name: &str) -> Result<Pod> {
        host.add_pod(name)?;
        let args = self
            .admin
            .as_ref()
            .map(|admin| args_of_object(admin, name))
            .transpose()?;
        Ok(Pod {
            name: name.to_owned(),
            args: args.unwrap_or_default(),
        })
    }

    /// Creates `count` pods, named `prefix` followed by 0, 1 and so on.
    pub(crate) fn add_pods(&self, host: &Host, prefix: &str, count: usize) -> Result<Vec<Pod>> {
        (0..count)
            .map(|number| self.add_pod(host, &format!("{prefix}{number}")))
            .collect()
    }

    /// Prepares a call of the plugin as a runtime makes it. The caller sets [`Backend::stdin`] as
    /// its stdin.
    pub(crate) fn call(&self, verb: &str, pod: &Pod) -> Command {
        let mut command = Command::new(self.plugins.join("calico"));
        command
            .env_clear()
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", &pod.name)
            .env("CNI_NETNS", Path::new(NETNS_DIR).join(&pod.name))
            .env("CNI_IFNAME", "eth0")
            .env("CNI_ARGS", &pod.args)
            .env("CNI_PATH", &self.plugins);
        command
    }

    pub(crate) fn stdin(&self) -> Result<File> {
        File::open(&self.conf).context("the configuration")
    }

    pub(crate) fn timed_call(&self, verb: &str, pod: &Pod) -> Result<Took> {
        timed(self.call(verb, pod).stdin(self.stdin()?))
    }

    /// Returns the number of write transactions of the embedded datastore so far; `None` for
    /// another datastore.
    pub(crate) fn commits(&self) -> Result<Option<u64>> {
        let DatastoreConfig::Local(config) = &self.datastore else {
            return Ok(None);
        };
        let file = rusqlite::Connection::open(&config.path)?;
        Ok(Some(
            file.query_row("SELECT revision FROM counter", [], |row| {
                row.get::<_, i64>(0)
            })?
            .try_into()?,
        ))
    }
}

/// Creates a Pod object and returns the `CNI_ARGS` that a runtime passes for it.
fn args_of_object(admin: &Client, name: &str) -> Result<String> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": { "nodeName": NODE, "containers": [{ "name": "c", "image": "none" }] },
    });
    let made = admin
        .create(&format!("/api/v1/namespaces/{NAMESPACE}/pods"), &pod)?
        .checked()?;
    let uid = made["metadata"]["uid"]
        .as_str()
        .context("a pod has no uid")?;
    Ok(format!(
        "K8S_POD_INFRA_CONTAINER_ID={name};K8S_POD_UID={uid};IgnoreUnknown=1;K8S_POD_NAMESPACE={NAMESPACE};K8S_POD_NAME={name}"
    ))
}
