//! The container runtime of this node, by Kubernetes' Container Runtime Interface: the sandboxes
//! that are ready, and [`all_sandboxes()`].

mod all_sandboxes;
mod wire;

use std::path::{Path, PathBuf};
use std::time::Duration;

use datastore::describe_error_chain;
use tonic::Request;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic_prost::ProstCodec;

pub use self::all_sandboxes::{ListedSandboxes, all_sandboxes};
use self::wire::{
    ListPodSandboxRequest, ListPodSandboxResponse, PodSandbox, PodSandboxFilter,
    PodSandboxStateValue, READY,
};

/// The sockets of the usual runtimes: containerd, K3s, CRI-O, MicroK8s, k0s, Docker with
/// cri-dockerd.
const SOCKETS: [&str; 6] = [
    "/run/containerd/containerd.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
    "/run/k0s/containerd.sock",
    "/run/cri-dockerd.sock",
];
const LIST: &str = "/runtime.v1.RuntimeService/ListPodSandbox";
const DEADLINE: Duration = Duration::from_secs(10);
/// Maximum size of an answer in bytes. It contains all annotations of the node's pods, 256 KiB at
/// most for each.
const MAX_ANSWER: usize = 128 << 20;

/// A sandbox that is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sandbox {
    /// The ID, which is `CNI_CONTAINERID` of its ADD.
    pub(crate) id: String,
    /// The namespace of its pod.
    pub(crate) namespace: String,
    /// The name of its pod.
    pub(crate) pod: String,
    /// The UID of its pod. For a static pod it is not the UID in the API.
    pub(crate) uid: String,
}

/// The reason why a container runtime does not list its sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CriError {
    /// No usual socket exists.
    #[error("no socket of a container runtime exists; name it with --runtime-socket")]
    NoSocket,
    /// The call failed.
    #[error("container runtime {socket}: {reason}")]
    Call {
        /// The socket.
        socket: String,
        /// The cause.
        reason: String,
    },
}

/// Lists the sandboxes that are ready, from the runtime at `socket`, or from every usual socket
/// that exists. A runtime that fails does not matter if another one answers.
///
/// # Errors
/// Returns an error if no runtime answers.
pub(crate) async fn ready_sandboxes(socket: Option<&Path>) -> Result<Vec<Sandbox>, CriError> {
    let state = Some(PodSandboxStateValue { state: READY });
    let (mut found, mut first_error, mut has_answer) = (Vec::new(), None, false);
    for socket in &sockets(socket) {
        match list(socket, Some(PodSandboxFilter { state }), MAX_ANSWER).await {
            Ok(sandboxes) => {
                has_answer = true;
                let ready = sandboxes
                    .into_iter()
                    .filter(|sandbox| sandbox.state == READY);
                found.extend(ready.filter_map(|sandbox| {
                    let metadata = sandbox.metadata?;
                    let (namespace, pod, uid) = (metadata.namespace, metadata.name, metadata.uid);
                    Some(Sandbox {
                        id: sandbox.id,
                        namespace,
                        pod,
                        uid,
                    })
                }));
            }
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    match first_error {
        Some(error) if !has_answer => Err(error),
        None if !has_answer => Err(CriError::NoSocket),
        _ => Ok(found),
    }
}

/// Returns the given socket, or the usual ones that exist.
fn sockets(given: Option<&Path>) -> Vec<PathBuf> {
    match given {
        Some(socket) => vec![socket.to_owned()],
        None => SOCKETS
            .iter()
            .map(PathBuf::from)
            .filter(|path| path.exists())
            .collect(),
    }
}

/// Lists the sandboxes that `filter` selects, or all. An answer of more than `max_answer` bytes is
/// an error.
async fn list(
    socket: &Path,
    filter: Option<PodSandboxFilter>,
    max_answer: usize,
) -> Result<Vec<PodSandbox>, CriError> {
    let name = socket.display().to_string();
    let uri = if name.starts_with("unix:") {
        name.clone()
    } else {
        format!("unix://{name}")
    };
    let failed = |reason| CriError::Call {
        socket: name.clone(),
        reason,
    };
    let endpoint =
        Endpoint::from_shared(uri).map_err(|error| failed(describe_error_chain(&error)))?;
    let request = Request::new(ListPodSandboxRequest { filter });
    let mut client = Grpc::new(endpoint.connect_lazy()).max_decoding_message_size(max_answer);
    let exchange = async {
        client
            .ready()
            .await
            .map_err(|error| describe_error_chain(&error))?;
        let codec = ProstCodec::<ListPodSandboxRequest, ListPodSandboxResponse>::default();
        let answer = client
            .unary(request, PathAndQuery::from_static(LIST), codec)
            .await;
        answer.map_err(|status| format!("{}: {}", status.code(), describe_error_chain(&status)))
    };
    match tokio::time::timeout(DEADLINE, exchange).await {
        Ok(answer) => Ok(answer.map_err(failed)?.into_inner().items),
        Err(_) => Err(failed(format!("no answer within {} s", DEADLINE.as_secs()))),
    }
}

#[cfg(test)]
mod tests {
    use node_process::process::block_on;

    use super::*;

    #[test]
    fn runtime_without_a_listener_is_named_in_the_error() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("none.sock");
        let error = block_on(ready_sandboxes(Some(&socket))).unwrap_err();
        assert!(matches!(error, CriError::Call { .. }), "{error:?}");
        assert!(
            error
                .to_string()
                .starts_with(&format!("container runtime {}: ", socket.display())),
            "{error}"
        );
    }
}
