//! [`Recorder`]: a store that writes down the requests.

use std::collections::BTreeMap;
use std::sync::Mutex;

use libcalico::store::{
    Answers, EndpointForm, ProfileOrigin, ReadBatch, Revision, Sharing, Store, StoreError, Write,
    WriteError, WriteModel, WriteOp,
};
use memory_store::MemoryStore;
use serde_json::Value;

const ROOTS: [&str; 3] = [
    "/calico/ipam/v2/",
    "/calico/resources/v3/projectcalico.org/",
    "/kubernetes/",
];

/// A store that writes down the requests of one client.
#[derive(Debug)]
pub(super) struct Recorder {
    pub(super) store: MemoryStore,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    requests: Vec<String>,
    /// The last revision of each object that the client has read or written.
    revisions: BTreeMap<String, Revision>,
}

impl Recorder {
    pub(super) fn on(store: MemoryStore) -> Self {
        Recorder {
            store,
            seen: Mutex::default(),
        }
    }

    /// Returns the requests since the last call. Each is a verb, a path and a remark: the state of
    /// an affinity, `marked` before a deletion, `of cache` for a revision that the client did not
    /// just read or write, or the error.
    pub(super) fn take(&self) -> Vec<String> {
        let mut seen = self.seen.lock().unwrap();
        seen.revisions.clear();
        std::mem::take(&mut seen.requests)
    }
}

fn short(path: &str) -> &str {
    let stripped = ROOTS.iter().find_map(|root| path.strip_prefix(root));
    stripped.unwrap_or(path)
}

fn remark(value: &[u8]) -> String {
    let value: Value = serde_json::from_slice(value).unwrap();
    if value["deleted"] == true {
        return " marked".into();
    }
    let state = value["state"].as_str();
    state.map_or_else(String::new, |state| format!(" {state}"))
}

impl Seen {
    fn describe(&self, write: &Write) -> String {
        let path = short(&write.path);
        let of = |revision: &Revision| {
            if self.revisions.get(&write.path) == Some(revision) {
                ""
            } else {
                " of cache"
            }
        };
        match &write.op {
            WriteOp::Create(value) => format!("create {path}{}", remark(value)),
            WriteOp::Update(value, revision) => {
                format!("update {path}{}{}", remark(value), of(revision))
            }
            WriteOp::Delete(Some(revision)) => format!("delete {path}{}", of(revision)),
            op => panic!("upstream sends no {op:?}"),
        }
    }
}

impl Store for Recorder {
    async fn read(&self, batch: &ReadBatch) -> Result<Answers, StoreError> {
        let [range] = batch.ranges() else {
            panic!("a request has one range: {batch:?}");
        };
        let verb = if range.is_prefix { "list" } else { "get" };
        let mut request = format!("{verb} {}", short(&range.path));
        let answers = self.store.read(batch).await;
        let mut seen = self.seen.lock().unwrap();
        match &answers {
            Ok(answers) => {
                let mut again = ReadBatch::new();
                let ticket = again.list_pairs(range.kind, range.path.clone());
                let found = answers.pairs(&ticket);
                if !range.is_prefix && found.is_empty() {
                    request.push_str(" missing");
                }
                for entry in found {
                    let (path, revision) = (entry.path.clone(), entry.revision.clone());
                    seen.revisions.insert(path, revision);
                }
            }
            Err(_) => request.push_str(" failed"),
        }
        seen.requests.push(request);
        answers
    }

    async fn write(&self, writes: &[Write]) -> Result<Vec<Revision>, WriteError> {
        let [write] = writes else {
            panic!("a request has one write: {writes:?}");
        };
        let mut request = self.seen.lock().unwrap().describe(write);
        let written = self.store.write(writes).await;
        let mut seen = self.seen.lock().unwrap();
        match &written {
            Ok(revisions) => {
                let revision = revisions[0].clone();
                seen.revisions.insert(write.path.clone(), revision);
            }
            Err(error) => request.push_str(match error.cause {
                StoreError::AlreadyExists { .. } => " exists",
                StoreError::Conflict { .. } => " conflict",
                StoreError::NotFound { .. } => " missing",
                _ => " failed",
            }),
        }
        seen.requests.push(request);
        written
    }

    fn write_model(&self) -> WriteModel {
        self.store.write_model()
    }

    fn endpoint_form(&self) -> EndpointForm {
        self.store.endpoint_form()
    }

    fn profile_origin(&self) -> ProfileOrigin {
        self.store.profile_origin()
    }

    fn sharing(&self) -> Sharing {
        self.store.sharing()
    }
}
