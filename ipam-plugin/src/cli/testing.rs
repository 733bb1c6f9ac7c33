//! A command line with its own embedded datastore, which captures all output.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;

use clap::Parser;
use datastore::Datastore;
use datastore::config::{DEFAULT_DEADLINE, DatastoreConfig, LocalConfig};
use libcalico::api::{ObjectKey, WorkloadEndpoint, WorkloadEndpointSpec};
use libcalico::ipam::{Block, HandleId};
use libcalico::net::Cidr;
use libcalico::store::{Kind, Store, Write, WriteOp};
use serde_json::Value;
use tempfile::TempDir;
use time::{Duration, OffsetDateTime};

use super::app::{App, CommandOutcome};
use super::documents::Terminal;
use super::services_api::ServicesApi;
use super::{Arguments, execute};
use allocation::alloc::assign;
use allocation::alloc::inputs::{AllocationInputs, InputsQuery};
use allocation::alloc::request::{AssignRequest, workload_attributes};
use dataplane::host_link::NoHostLinks;
use node_process::process::block_on;
use os::clock::SystemClock;

pub(super) struct Shell {
    pub(super) dir: TempDir,
    pub(super) store: Datastore,
}

#[derive(Debug)]
pub(super) struct Ran {
    pub(super) outcome: Result<CommandOutcome, String>,
    pub(super) out: String,
    pub(super) notices: String,
}

impl Shell {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let local = LocalConfig {
            path: dir.path().join("calico.db"),
            deadline: DEFAULT_DEADLINE,
        };
        Shell {
            store: Datastore::open(&DatastoreConfig::Local(local)).unwrap(),
            dir,
        }
    }

    /// Creates a shell with node1 and the pool `default-ipv4-ippool`, 10.0.0.0/24 in blocks of 8.
    pub(super) fn with_pool() -> Self {
        let shell = Shell::new();
        shell.ok(&[
            "init",
            "--node",
            "node1",
            "--pool",
            "10.0.0.0/24",
            "--block-size",
            "29",
        ]);
        shell
    }

    pub(super) fn run(&self, line: &[&str]) -> Ran {
        self.run_with(line, |_| ())
    }

    pub(super) fn run_with(&self, line: &[&str], change: impl FnOnce(&mut App<'_>)) -> Ran {
        let arguments = match Arguments::try_parse_from(std::iter::once(&"calico-ipam").chain(line))
        {
            Ok(arguments) => arguments,
            Err(error) => panic!("{line:?}: {error}"),
        };
        let (mut out, mut notices) = (Vec::new(), Vec::new());
        let mut terminal = Terminal::new(&mut out);
        let mut app = App {
            store: &self.store,
            services: &ServicesApi::NotConfigured,
            datastore: "the test's".into(),
            journal_name: "local /x.db".into(),
            links: &NoHostLinks,
            is_new: false,
            format: arguments.output,
            out: &mut terminal,
            notices: &mut notices,
        };
        change(&mut app);
        let outcome =
            block_on(execute(arguments.command, &mut app)).map_err(|error| error.to_string());
        terminal.flush().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Ran {
            outcome,
            out: text(out),
            notices: text(notices),
        }
    }

    /// Runs a command that must end without findings, and returns its output.
    #[track_caller]
    pub(super) fn ok(&self, line: &[&str]) -> String {
        let ran = self.run(line);
        assert_eq!(
            ran.outcome,
            Ok(CommandOutcome::Success),
            "{line:?}: {}",
            ran.out
        );
        ran.out
    }

    /// Runs a command that must end with findings, and returns its output.
    #[track_caller]
    pub(super) fn wrong(&self, line: &[&str]) -> String {
        let ran = self.run(line);
        assert_eq!(
            ran.outcome,
            Ok(CommandOutcome::Findings),
            "{line:?}: {}",
            ran.out
        );
        ran.out
    }

    /// Runs a command that must fail, and returns its error.
    #[track_caller]
    pub(super) fn error(&self, line: &[&str]) -> String {
        self.run(line).outcome.expect_err("the command should fail")
    }

    #[track_caller]
    pub(super) fn json(&self, line: &[&str]) -> Value {
        let out = self.run(&[line, &["-o", "json"]].concat()).out;
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{line:?}: {error}: {out}"))
    }

    pub(super) fn apply(&self, manifest: &Value) -> Ran {
        self.run(&[
            "apply",
            "-f",
            &self.file("manifest.json", &manifest.to_string()),
        ])
    }

    pub(super) fn file(&self, name: &str, text: &str) -> String {
        let path: PathBuf = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Allocates one IPv4 address on node1, dated a minute ago.
    pub(super) fn allocate(&self, handle: &str) -> String {
        self.allocate_at(handle, OffsetDateTime::now_utc() - Duration::minutes(1))
    }

    pub(super) fn allocate_at(&self, handle: &str, at: OffsetDateTime) -> String {
        self.allocate_with(
            handle,
            workload_attributes("node1", Some(("default", handle)), at),
        )
    }

    pub(super) fn allocate_tunnel(&self, handle: &str) -> String {
        let attributes = [("node", "node1"), ("type", "ipipTunnelAddress")];
        self.allocate_with(
            handle,
            attributes
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
        )
    }

    fn allocate_with(&self, handle: &str, attributes: BTreeMap<String, String>) -> String {
        let request = AssignRequest {
            attributes,
            ..AssignRequest::workload(HandleId::new(handle), "node1")
        };
        let query = InputsQuery::workload("node1", request.handle.clone());
        let assigned = block_on(async {
            let inputs = AllocationInputs::read(&self.store, &query).await.unwrap();
            assign(&self.store, &SystemClock::start(), &request, inputs)
                .await
                .unwrap()
        });
        assigned.addresses[0].ip.to_string()
    }

    pub(super) fn endpoint(&self, pod: &str, address: &str) {
        let spec = WorkloadEndpointSpec {
            orchestrator: "k8s".into(),
            node: "node1".into(),
            pod: pod.into(),
            endpoint: "eth0".into(),
            ip_networks: vec![format!("{address}/32")],
            ..WorkloadEndpointSpec::default()
        };
        let key = ObjectKey::namespaced("default", format!("node1-k8s-{pod}-eth0"));
        let mut endpoint = WorkloadEndpoint::new(&key.name, spec);
        endpoint.metadata.namespace = "default".into();
        block_on(self.store.create(&key, &endpoint)).unwrap();
    }

    /// Stores bytes directly, without validation.
    pub(super) fn put(&self, path: &str, value: &str) {
        let op = WriteOp::Create(value.into());
        let write = Write {
            kind: "",
            path: path.into(),
            key: path.into(),
            op,
        };
        block_on(self.store.write(&[write])).unwrap();
    }

    pub(super) fn remove(&self, path: &str) {
        let write = Write {
            kind: "",
            path: path.into(),
            key: path.into(),
            op: WriteOp::Delete(None),
        };
        block_on(self.store.write(&[write])).unwrap();
    }

    pub(super) fn blocks(&self) -> Vec<(Cidr, Block)> {
        let blocks = block_on(self.store.list::<Block>(&None)).unwrap();
        blocks
            .into_iter()
            .map(|entry| (entry.key, entry.value))
            .collect()
    }

    pub(super) fn stored<K: Kind>(&self, key: &K::Key) -> Option<K> {
        block_on(self.store.get::<K>(key))
            .ok()
            .map(|entry| entry.value)
    }
}
