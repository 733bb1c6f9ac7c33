//! [`ApiServer`]: an API server in the process of the test, which lives by the clock of the test.

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::advance;

/// The answer to a request.
pub(super) struct Reply {
    /// The time that passes on the clock before it.
    pub(super) after: Duration,
    /// The status.
    pub(super) status: u16,
    /// The object.
    pub(super) body: Value,
}

/// Gives the answer to `METHOD PATH`; `None` for silence.
type Script = fn(&str) -> Option<Reply>;

/// A server that takes one request after the other from each connection.
pub(super) struct ApiServer {
    /// Its URL.
    pub(super) url: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl ApiServer {
    pub(super) async fn start(script: Script) -> ApiServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = ApiServer { url, requests: Arc::default() };
        let requests = Arc::clone(&server.requests);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, script, Arc::clone(&requests)));
            }
        });
        server
    }

    /// Returns `METHOD PATH` of all requests so far.
    pub(super) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

/// Answers until the client closes the connection.
async fn serve(stream: TcpStream, script: Script, requests: Arc<Mutex<Vec<String>>>) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    while let Some(request) = read(&mut stream).await? {
        requests.lock().unwrap().push(request.clone());
        let Some(Reply { after, status, body }) = script(&request) else { return pending().await };
        // By the second, so that whoever waits is woken at its time.
        for _ in 0..after.as_secs() {
            advance(Duration::from_secs(1)).await;
        }
        let body = body.to_string();
        let head = format!("HTTP/1.1 {status} Scripted\r\ncontent-type: application/json\r\n");
        stream.write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes()).await?;
    }
    Ok(())
}

/// Reads a request, and returns `METHOD PATH`.
async fn read(stream: &mut BufReader<TcpStream>) -> std::io::Result<Option<String>> {
    let (mut request, mut length) = (None, 0);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        if line.trim_end().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        request.get_or_insert_with(|| line.split(' ').take(2).collect::<Vec<_>>().join(" "));
    }
    stream.read_exact(&mut vec![0; length]).await?;
    Ok(request)
}
