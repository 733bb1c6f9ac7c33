//! Reads the objects that `calico-ipam` as a separate process needs about its pod.

use datastore::{ClusterStore, DatastoreConfig};
use libcalico::api::ObjectKey;
use libcalico::ipam::Labels;
use libcalico::kubernetes::{Namespace, Pod, VmiPod};
use libcalico::store::{ReadBatch, StoreError};
use netconf::{Call, CniError, Code, Command};

use crate::cni::IpamRequest;
use crate::kubernetes_api::{KubernetesApi, may_have_vmi, selects_by_namespace};
use allocation::error::{VmiError, cni_error};
use allocation::vmi;

#[derive(Debug, Clone, Copy)]
pub(crate) struct PodQueries {
    namespace: bool,
    vmi: bool,
}

#[derive(Debug, Default)]
pub(crate) struct PodLookup {
    labels: Option<Labels>,
    vmi: Option<VmiPod>,
}

impl PodQueries {
    pub(crate) fn for_call(call: &Call, datastore: &DatastoreConfig) -> Self {
        let on_container = matches!(call.command, Command::Add | Command::Del | Command::Check);
        let vmi = on_container && may_have_vmi(call, datastore);
        PodQueries {
            namespace: selects_by_namespace(call, datastore),
            vmi,
        }
    }

    pub(crate) fn is_any(self) -> bool {
        self.namespace || self.vmi
    }

    /// A missing namespace is an error; a missing pod has no VMI.
    pub(crate) async fn read<S: ClusterStore>(
        self,
        call: &Call,
        api: &KubernetesApi<S>,
        store: &S,
    ) -> Result<PodLookup, CniError> {
        let mut lookup = PodLookup::default();
        let (Some(api), Some(pod), true) = (api.reached(store), call.args.pod(), self.is_any())
        else {
            return Ok(lookup);
        };
        let mut batch = ReadBatch::new();
        let namespace = self
            .namespace
            .then(|| batch.get::<Namespace>(&ObjectKey::global(pod.namespace)));
        let key = ObjectKey::namespaced(pod.namespace, pod.name);
        let pod_ticket = self.vmi.then(|| batch.get::<Pod>(&key));
        let read_error = |error: StoreError| {
            if self.namespace {
                return namespace_error(
                    pod.namespace,
                    cni_error(&error.clone().into()).code,
                    &error.to_string(),
                );
            }
            VmiError::from(error).into()
        };
        let answers = api.read(&batch).await.map_err(read_error)?;
        if let Some(ticket) = namespace {
            let missing = || {
                let reason = format!("namespaces \"{}\" not found", pod.namespace);
                namespace_error(pod.namespace, Code::TRY_AGAIN, &reason)
            };
            let found = answers
                .get(&ticket)
                .map_err(read_error)?
                .ok_or_else(missing)?;
            lookup.labels = Some(found.value.metadata.labels);
        }
        let pod = pod_ticket
            .map(|ticket| answers.get(&ticket))
            .transpose()
            .map_err(VmiError::from)?
            .flatten();
        // A missing pod has no VMI, so a DEL releases the addresses under the container's handle.
        let pod = pod.map(|entry| entry.value);
        let detected = vmi::detect(Some(api), store, pod.as_ref())
            .await
            .map_err(VmiError::from)?;
        lookup.vmi = match call.command {
            Command::Add => detected
                .map(vmi::DetectedVmi::for_add)
                .transpose()?
                .flatten(),
            _ => detected.and_then(vmi::DetectedVmi::for_del),
        };
        Ok(lookup)
    }
}

impl PodLookup {
    pub(crate) fn apply_to(self, call: &mut IpamRequest) {
        if let (Some(pod), Some(labels)) = (&mut call.pod, self.labels) {
            pod.namespace.labels = labels;
        }
        call.vmi = self.vmi;
    }
}

fn namespace_error(namespace: &str, code: Code, reason: &str) -> CniError {
    CniError::new(
        code,
        format!("failed to get namespace {namespace}: {reason}"),
    )
}
