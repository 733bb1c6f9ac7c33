//! The port of probes and metrics.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::Shared;
use super::answers::answer;
use super::clock::Moment;

/// How long a client may take to ask and to listen. Ours are kubelet and Prometheus.
const PATIENCE: Duration = Duration::from_secs(5);

/// The longest head of a request; nothing of it but the first line is read.
const LONGEST_HEAD: usize = 8 * 1024;

/// More connections are left to wait.
const MOST_CONNECTIONS: usize = 16;

/// The port could not be had.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot listen on {address}: {source}; is another agent there? CNI_AGENT_LISTEN names another address, which the probes of the \
     pod have to name too"
)]
pub struct ListenError {
    address: SocketAddr,
    source: io::Error,
}

/// Has the port. What is returned answers there until it is dropped; without an address it waits without end.
pub(super) async fn start(
    address: Option<SocketAddr>,
    status: Shared,
) -> Result<impl Future<Output = ()>, ListenError> {
    let listener = match address {
        None => None,
        Some(address) => Some(TcpListener::bind(address).await.map_err(|source| ListenError { address, source })?),
    };
    Ok(async move {
        match listener {
            None => std::future::pending().await,
            Some(listener) => answer_all(listener, status).await,
        }
    })
}

async fn answer_all(listener: TcpListener, status: Shared) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < MOST_CONNECTIONS => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(timeout(PATIENCE, answer_one(stream, status.clone())));
                }
                // Out of files, or gone before it was taken.
                Err(_) => sleep(Duration::from_millis(100)).await,
            },
        }
    }
}

/// Whoever goes away before its answer need not be told.
async fn answer_one(mut stream: TcpStream, status: Shared) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() < LONGEST_HEAD {
        if stream.read_buf(&mut head).await? == 0 {
            break;
        }
    }
    let answer = answer(&String::from_utf8_lossy(&head), &status.get(), Moment::now().boot);
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await
}
