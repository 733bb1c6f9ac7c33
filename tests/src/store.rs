//! The datastores of the suites: etcd, the embedded datastore, and custom resources of Kubernetes.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use libcalico::kubernetes::ApiGroup;
use serde_json::{Map, Value, json};

use crate::accounts::Accounts;
use crate::etcd::{ENDPOINT, Etcd};
use crate::kubernetes::Objects;
use crate::namespaces::Host;
use crate::plugin::{Outcome, Plugins};

/// A datastore of one private host.
#[derive(Debug)]
pub enum Store {
    /// A real etcd.
    Etcd(Etcd),
    /// The SQLite file, which `calico-ipam` loads and dumps.
    Local(Local),
    /// Objects of an API server, which runs independently of the store.
    Kubernetes(Objects),
}

/// The embedded datastore.
#[derive(Debug)]
pub struct Local {
    plugins: Plugins,
    path: PathBuf,
}

impl Store {
    /// Starts an empty etcd.
    pub fn etcd(host: &Host) -> Result<Store> {
        Etcd::start(host).map(Store::Etcd)
    }

    /// Returns an embedded datastore that does not exist yet.
    pub fn local(host: &Host, plugins: &Plugins) -> Store {
        Self::local_in(host.dir("local"), plugins)
    }

    /// Returns an embedded datastore in a given directory.
    pub fn local_in(directory: PathBuf, plugins: &Plugins) -> Store {
        Store::Local(Local {
            plugins: plugins.clone(),
            path: directory.join("calico.db"),
        })
    }

    /// Returns `etcd`, `local`, or the folder of the recordings on an API group: `kdd1`, `kdd3`.
    pub fn name(&self) -> &'static str {
        match self {
            Store::Etcd(_) => "etcd",
            Store::Local(_) => "local",
            Store::Kubernetes(objects) => match objects.group() {
                ApiGroup::CrdV1 => "kdd1",
                ApiGroup::V3 => "kdd3",
            },
        }
    }

    /// Returns the keys of a network configuration that select this datastore.
    pub fn conf(&self) -> Map<String, Value> {
        let keys = match self {
            Store::Etcd(_) => json!({ "datastore_type": "etcdv3", "etcd_endpoints": ENDPOINT }),
            Store::Local(local) => {
                json!({ "datastore_type": "local", "datastore_path": local.path })
            }
            Store::Kubernetes(objects) => json!({
                "datastore_type": "kubernetes",
                "calico_api_group": objects.group().api_version(),
                "kubernetes": { "kubeconfig": objects.kubeconfig() },
            }),
        };
        keys.as_object().cloned().unwrap_or_default()
    }

    /// Returns the keys of a network configuration of a node that select this datastore.
    pub fn conf_of(&self, node: &str) -> Map<String, Value> {
        let mut keys = self.conf();
        if let Store::Kubernetes(objects) = self {
            keys.insert(
                "kubernetes".into(),
                json!({ "kubeconfig": objects.kubeconfig_of(node) }),
            );
        }
        keys
    }

    /// Returns a configuration with the keys of this datastore, for the configuration's node, in
    /// place of the recorded ones, if there are any.
    pub fn reconfigured(&self, conf: &Value) -> Value {
        let mut conf = conf.clone();
        let node = conf["nodename"].as_str().unwrap_or_default().to_owned();
        if let Some(keys) = conf
            .as_object_mut()
            .filter(|keys| keys.contains_key("datastore_type"))
        {
            keys.remove("datastore_type");
            keys.remove("etcd_endpoints");
            keys.extend(self.conf_of(&node));
        }
        conf
    }

    /// Writes every pair.
    pub fn load(&self, content: &BTreeMap<String, Value>) -> Result<()> {
        match self {
            Store::Etcd(etcd) => etcd.load(content),
            Store::Local(local) => local.load(content),
            Store::Kubernetes(objects) => objects.load(content),
        }
    }

    /// Runs `calico-ipam <args>`, the command-line tool, on this datastore.
    pub fn calico_ipam(&self, plugins: &Plugins, args: &[&str]) -> Result<Outcome> {
        let mut call = plugins.call("calico-ipam").args(args.iter().copied());
        for (name, value) in self.conf() {
            let (name, value) = match value.get("kubeconfig") {
                Some(path) => ("KUBECONFIG".to_owned(), path.clone()),
                None => (name.to_uppercase(), value),
            };
            call = call.env(&name, value.as_str().unwrap_or_default());
        }
        call.try_run()
    }

    /// Writes one pair without the plugins.
    pub fn put(&self, key: &str, value: &Value) -> Result<()> {
        match self {
            Store::Etcd(etcd) => etcd.put(key, value.to_string().as_bytes()),
            Store::Local(local) => local.put(key, value),
            Store::Kubernetes(objects) => objects.put(key, value),
        }
    }

    /// Deletes one pair without the plugins.
    pub fn delete(&self, key: &str) -> Result<()> {
        match self {
            Store::Etcd(etcd) => etcd.delete(key),
            Store::Local(local) => local.delete(key),
            Store::Kubernetes(objects) => objects.delete(key),
        }
    }

    /// Deletes everything that [`Store::dump`] reads.
    pub fn clear(&self) -> Result<()> {
        match self {
            Store::Kubernetes(objects) => objects.clear(),
            Store::Etcd(_) | Store::Local(_) => {
                self.dump()?.keys().try_for_each(|key| self.delete(key))
            }
        }
    }

    /// Deletes every pair except pods and those with a key in `content`.
    pub fn keep_only(&self, content: &BTreeMap<String, Value>) -> Result<()> {
        self.dump()?
            .keys()
            .filter(|key| !content.contains_key(*key))
            .try_for_each(|key| {
                match key.strip_prefix("pods/") {
                    // Pods remain: they are not Calico's objects.
                    Some(_) => Ok(()),
                    None => self.delete(key),
                }
            })
    }

    /// Reads the bookkeeping of addresses. May read all content where that takes no more requests.
    pub fn accounts(&self) -> Result<Accounts> {
        let content = match self {
            Store::Kubernetes(objects) => objects.dump_accounts()?,
            Store::Etcd(_) | Store::Local(_) => self.dump()?,
        };
        Ok(Accounts::of(&content))
    }

    /// Reads the content, without the keys of an API server that uses the same etcd.
    pub fn dump(&self) -> Result<BTreeMap<String, Value>> {
        match self {
            Store::Etcd(etcd) => etcd.dump(),
            Store::Local(local) => local.dump(),
            Store::Kubernetes(objects) => objects.dump(),
        }
    }
}

impl Local {
    /// Returns the path of the file.
    pub fn path(&self) -> &PathBuf {
        &self.path
    }

    /// Runs SQLite's integrity check. Keeps the write-ahead log as a killed plugin left it.
    pub fn integrity(&self) -> Result<String> {
        let connection = rusqlite::Connection::open(&self.path)?;
        connection.set_db_config(
            rusqlite::config::DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE,
            true,
        )?;
        Ok(connection.query_row("PRAGMA integrity_check", [], |row| row.get(0))?)
    }

    /// Moves all content from the write-ahead log into the file.
    pub fn checkpoint(&self) -> Result<()> {
        let connection = rusqlite::Connection::open(&self.path)?;
        Ok(connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?)
    }

    fn load(&self, content: &BTreeMap<String, Value>) -> Result<()> {
        let header = json!({ "format": "calico-export", "version": 1, "pairs": content.len() });
        let mut lines = format!("{header}\n");
        for (key, value) in content {
            lines += &format!("{}\n", json!({ "key": key, "value": value }));
        }
        let file = self.path.with_extension("import.jsonl");
        std::fs::write(&file, lines)?;
        self.calico_ipam(&["import", &file.display().to_string(), "--overwrite"])
            .map(|_| ())
    }

    fn put(&self, key: &str, value: &Value) -> Result<()> {
        self.change(
            "INSERT INTO kv (path, value, revision) VALUES (?1, ?2, (SELECT revision FROM \
             counter)) ON CONFLICT (path) DO UPDATE SET value = excluded.value, revision = \
             excluded.revision",
            &[key, &value.to_string()],
        )
    }

    fn delete(&self, key: &str) -> Result<()> {
        self.change("DELETE FROM kv WHERE path = ?1", &[key])
    }

    /// Executes one statement with a new revision.
    fn change(&self, statement: &str, parameters: &[&str]) -> Result<()> {
        let mut connection = rusqlite::Connection::open(&self.path)?;
        let transaction = connection.transaction()?;
        transaction.execute("UPDATE counter SET revision = revision + 1", [])?;
        transaction.execute(statement, rusqlite::params_from_iter(parameters))?;
        Ok(transaction.commit()?)
    }

    fn dump(&self) -> Result<BTreeMap<String, Value>> {
        let outcome = self.calico_ipam(&["export"])?;
        let pair = |line: &str| -> Result<(String, Value)> {
            let pair: Value = serde_json::from_str(line)
                .with_context(|| format!("calico-ipam export: {line}"))?;
            let key = pair["key"]
                .as_str()
                .with_context(|| format!("an export line has no key: {line}"))?;
            let value = pair
                .get("value")
                .with_context(|| format!("{key} holds no JSON"))?;
            Ok((key.to_owned(), value.clone()))
        };
        // The first line describes the format.
        outcome.stdout.lines().skip(1).map(pair).collect()
    }

    /// Runs `calico-ipam <args>` on this file.
    fn calico_ipam(&self, args: &[&str]) -> Result<Outcome> {
        let call = self
            .plugins
            .call("calico-ipam")
            .args(args.iter().copied())
            .env("DATASTORE_TYPE", "local")
            .env("DATASTORE_PATH", &self.path);
        let outcome = call.try_run()?;
        ensure!(
            outcome.exit == Some(0),
            "calico-ipam {args:?}: {}{}",
            outcome.stdout,
            outcome.stderr
        );
        Ok(outcome)
    }
}
