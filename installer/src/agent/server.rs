//! The HTTP listener for probes and metrics.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::refresh_delay::Moment;
use super::routes::answer;
use super::status::SharedStatus;

/// Time limit for a client to send its request and to read the response. The clients are kubelet and Prometheus.
const PATIENCE: Duration = Duration::from_secs(5);

/// Maximum length of a request's head. Only its first line is used.
const LONGEST_HEAD: usize = 8 * 1024;

/// Maximum number of open connections. Further connections wait in the backlog.
const MOST_CONNECTIONS: usize = 16;

/// The error if the port cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot listen on {address}: {source}; is another agent there? CNI_AGENT_LISTEN names another address, which the \
     probes of the pod have to name too"
)]
pub struct ListenError {
    address: SocketAddr,
    source: io::Error,
}

/// Binds the port. The returned future answers requests until it is dropped; without an address it waits forever.
pub(super) async fn start(
    address: Option<SocketAddr>,
    status: SharedStatus,
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

async fn answer_all(listener: TcpListener, status: SharedStatus) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < MOST_CONNECTIONS => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(timeout(PATIENCE, answer_one(stream, status.clone())));
                }
                // The process is out of file descriptors, or the client disconnected early.
                Err(_) => sleep(Duration::from_millis(100)).await,
            },
        }
    }
}

/// Answers one request. The error of a client that disconnects early is ignored.
async fn answer_one(mut stream: TcpStream, status: SharedStatus) -> io::Result<()> {
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
