//! Reads the objects that `calico-ipam` as a separate process needs about its pod. `calico` has read these objects
//! itself.

use datastore::{Datastore, DatastoreConfig};
use libcalico::api::ObjectKey;
use libcalico::ipam::Labels;
use libcalico::kubernetes::{MachinePod, Namespace, Pod};
use libcalico::store::{ReadBatch, Store, StoreError};
use netconf::{Call, CniError, Code, Command};

use crate::cni::{IpamRequest, cni_error};
use crate::kubernetes_api::{Api, knows_machine, selects_by_namespace};
use crate::vmi::{self, MachineError};

/// The objects that a call has to read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Questions {
    namespace: bool,
    machine: bool,
}

/// The objects read.
#[derive(Debug, Default)]
pub(crate) struct Workload {
    labels: Option<Labels>,
    machine: Option<MachinePod>,
}

impl Questions {
    /// Determines the reads of a call: an ADD reads the labels of the namespace, which the namespace selectors of pools
    /// match. ADD, DEL and CHECK read the VMI of a pod that may have one.
    pub(crate) fn of(call: &Call, datastore: &DatastoreConfig) -> Self {
        let on_container = matches!(call.command, Command::Add | Command::Del | Command::Check);
        Questions {
            namespace: selects_by_namespace(call, datastore),
            machine: on_container && knows_machine(call, datastore),
        }
    }

    /// Returns true if the call has to read any object.
    pub(crate) fn is_any(self) -> bool {
        self.namespace || self.machine
    }

    /// Reads the objects.
    pub(crate) async fn ask(self, call: &Call, api: &Api, store: &Datastore) -> Result<Workload, CniError> {
        let mut workload = Workload::default();
        let (Some(api), Some(pod)) = (api.reached(store), call.args.pod()) else { return Ok(workload) };
        if !self.is_any() {
            return Ok(workload);
        }
        let mut batch = ReadBatch::new();
        let namespace = self.namespace.then(|| batch.get::<Namespace>(&ObjectKey::global(pod.namespace)));
        let key = ObjectKey::namespaced(pod.namespace, pod.name);
        let machine = self.machine.then(|| batch.get::<Pod>(&key));
        let unanswered = |error: StoreError| match self.namespace {
            true => no_namespace(pod.namespace, cni_error(&error.clone().into()).code, &error.to_string()),
            false => MachineError::from(error).into(),
        };
        let answers = api.read(&batch).await.map_err(unanswered)?;
        if let Some(ticket) = namespace {
            let missing = || {
                let reason = format!("namespaces \"{}\" not found", pod.namespace);
                no_namespace(pod.namespace, Code::TRY_AGAIN, &reason)
            };
            let found = answers.get(&ticket).map_err(unanswered)?.ok_or_else(missing)?;
            workload.labels = Some(found.value.metadata.labels);
        }
        let pod = machine.map(|ticket| answers.get(&ticket)).transpose().map_err(MachineError::from)?.flatten();
        // A DEL of a pod that is deleted already releases the addresses under the container's own handle.
        if let Some(pod) = pod {
            let detected = vmi::detect(api, store, &pod.value).await.map_err(MachineError::from)?;
            workload.machine = match call.command {
                Command::Add => detected.map(vmi::Detected::arriving).transpose()?.flatten(),
                _ => detected.and_then(vmi::Detected::leaving),
            };
        }
        Ok(workload)
    }
}

impl Workload {
    /// Copies the objects read into the call.
    pub(crate) fn tell(self, call: &mut IpamRequest) {
        if let (Some(pod), Some(labels)) = (&mut call.pod, self.labels) {
            pod.namespace.labels = labels;
        }
        call.machine = self.machine;
    }
}

fn no_namespace(namespace: &str, code: Code, reason: &str) -> CniError {
    CniError::new(code, format!("failed to get namespace {namespace}: {reason}"))
}
