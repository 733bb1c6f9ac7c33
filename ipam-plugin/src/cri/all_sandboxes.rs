//! [`all_sandboxes`]: the sandboxes of this node in any state, as evidence that a container does
//! not exist.

use std::collections::BTreeSet;
use std::path::Path;

use datastore::describe_error_chain;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::{CriError, DEADLINE, list, sockets};

/// Maximum size of an answer in bytes. The annotations of pods are in it, and the agent, which asks
/// each minute, has little memory: an answer that is too large must not end it.
const MAX_ANSWER: usize = 16 << 20;

/// The sandboxes that the container runtimes of this node list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListedSandboxes {
    /// The IDs of the sandboxes, each of which is `CNI_CONTAINERID` of its ADD.
    pub ids: BTreeSet<String>,
    /// The process that listens on each socket; 0 for a process outside of this process's PID
    /// namespace.
    pub listeners: Vec<i32>,
}

/// Lists the sandboxes in any state, from the runtime at `socket`, or from every usual socket that
/// exists.
///
/// # Errors
/// Returns an error if no socket exists, or if one of the runtimes does not answer or its answer is
/// too large: the sandbox may be of that runtime.
pub async fn all_sandboxes(socket: Option<&Path>) -> Result<ListedSandboxes, CriError> {
    let sockets = sockets(socket);
    if sockets.is_empty() {
        return Err(CriError::NoSocket);
    }
    let mut listed = ListedSandboxes::default();
    for socket in &sockets {
        listed.listeners.push(listener(socket).await?);
        listed.ids.extend(
            list(socket, None, MAX_ANSWER)
                .await?
                .into_iter()
                .map(|sandbox| sandbox.id),
        );
    }
    Ok(listed)
}

/// Returns the process that listens on a socket, in the PID namespace of this process.
async fn listener(socket: &Path) -> Result<i32, CriError> {
    let failed = |reason| CriError::Call {
        socket: socket.display().to_string(),
        reason,
    };
    let path = socket
        .to_str()
        .and_then(|text| text.strip_prefix("unix://"))
        .map_or(socket, Path::new);
    let connected = async { UnixStream::connect(path).await?.peer_cred() };
    match timeout(DEADLINE, connected).await {
        Ok(Ok(credentials)) => Ok(credentials.pid().unwrap_or_default()),
        Ok(Err(error)) => Err(failed(describe_error_chain(&error))),
        Err(_) => Err(failed(format!(
            "no connection within {} s",
            DEADLINE.as_secs()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn listener_of_a_socket_is_its_process() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cri.sock");
        let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        assert_eq!(listener(&path).await.unwrap(), own);
        let uri = format!("unix://{}", path.display());
        assert_eq!(listener(Path::new(&uri)).await.unwrap(), own);
    }

    #[tokio::test]
    async fn runtime_that_does_not_answer_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("none.sock");
        let error = all_sandboxes(Some(&path)).await.unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("container runtime {}: ", path.display())),
            "{error}"
        );
    }
}
