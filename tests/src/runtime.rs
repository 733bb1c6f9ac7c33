//! Container runtimes, by Kubernetes' Container Runtime Interface: containerd, and [`Runtime`],
//! which lists the sandboxes of a test. containerd lists a sandbox only after it has run an image.

use std::convert::Infallible;
use std::fs;
use std::future::{Future, Ready, ready};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tokio::net::UnixListener;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::server_process::ServerProcess;

/// Time limit for the start of containerd.
const START_LIMIT: Duration = Duration::from_secs(60);

/// The state of a sandbox that has ended.
const NOT_READY: i32 = 1;

/// The runtime. It serves until the end of the test process.
#[derive(Debug, Clone, Default)]
pub struct Runtime(Arc<Mutex<Script>>);

#[derive(Debug, Default)]
struct Script {
    sandboxes: Vec<String>,
    calls: usize,
    is_broken: bool,
}

/// The request, of which nothing is used.
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct ListRequest {}

#[derive(Clone, PartialEq, Eq, prost::Message)]
struct ListResponse {
    #[prost(message, repeated, tag = "1")]
    items: Vec<ListedSandbox>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
struct ListedSandbox {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(int32, tag = "3")]
    state: i32,
}

/// Starts containerd with its files in `directory`. Returns its socket.
pub fn start_containerd(containerd: &mut ServerProcess, directory: &Path) -> Result<PathBuf> {
    let socket = directory.join("containerd.sock");
    let path = |name: &str| directory.join(name).display().to_string();
    let config = format!(
        "version = 3\nroot = '{}'\nstate = '{}'\n[grpc]\n  address = '{}'\n",
        path("root"),
        path("state"),
        socket.display()
    );
    fs::write(path("config.toml"), config)?;
    let log = directory.join("log");
    containerd.start(
        Path::new("containerd"),
        &["--config".into(), path("config.toml")],
        &log,
    )?;
    let begun = Instant::now();
    while !fs::read_to_string(&log).is_ok_and(|log| log.contains("containerd successfully booted"))
    {
        ensure!(
            begun.elapsed() < START_LIMIT,
            "{}",
            fs::read_to_string(&log).unwrap_or_default()
        );
        thread::sleep(Duration::from_millis(50));
    }
    Ok(socket)
}

impl Runtime {
    /// Listens on a socket.
    pub fn listen(socket: &Path) -> Result<Runtime> {
        fs::create_dir_all(socket.parent().context("a socket has a directory")?)?;
        let (runtime, socket) = (Runtime::default(), socket.to_owned());
        let served = runtime.clone();
        let (report, reported) = channel();
        thread::spawn(move || {
            let built = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            let serving = async {
                let listener = UnixListener::bind(&socket)?;
                let _ = report.send(Ok(()));
                let connections = futures::stream::unfold(listener, |listener| async {
                    Some((listener.accept().await.map(|(stream, _)| stream), listener))
                });
                let _ = Server::builder()
                    .serve_with_incoming(served, Box::pin(connections))
                    .await;
                Ok::<(), std::io::Error>(())
            };
            if let Err(error) = built.and_then(|built| built.block_on(serving)) {
                let _ = report.send(Err(error));
            }
        });
        reported.recv()??;
        Ok(runtime)
    }

    /// Sets the sandboxes that the runtime lists. They have ended.
    pub fn set_sandboxes(&self, ids: &[&str]) {
        self.script(|script| script.sandboxes = ids.iter().map(|&id| id.to_owned()).collect());
    }

    /// Makes each call fail, or succeed again.
    pub fn set_broken(&self, is_broken: bool) {
        self.script(|script| script.is_broken = is_broken);
    }

    /// Returns the number of lists so far.
    pub fn calls(&self) -> usize {
        self.script(|script| script.calls)
    }

    fn script<T>(&self, with: impl FnOnce(&mut Script) -> T) -> T {
        with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl UnaryService<ListRequest> for Runtime {
    type Response = ListResponse;
    type Future = Ready<Result<Response<ListResponse>, Status>>;

    fn call(&mut self, _: Request<ListRequest>) -> Self::Future {
        ready(self.script(|script| {
            script.calls += 1;
            if script.is_broken {
                return Err(Status::unavailable("the test breaks the runtime"));
            }
            let sandbox = |id: &String| ListedSandbox {
                id: id.clone(),
                state: NOT_READY,
            };
            Ok(Response::new(ListResponse {
                items: script.sandboxes.iter().map(sandbox).collect(),
            }))
        }))
    }
}

impl Service<http::Request<Body>> for Runtime {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let runtime = self.clone();
        Box::pin(async move {
            let path = request.uri().path().to_owned();
            assert_eq!(path, "/runtime.v1.RuntimeService/ListPodSandbox");
            Ok(
                Grpc::new(ProstCodec::<ListResponse, ListRequest>::default())
                    .unary(runtime, request)
                    .await,
            )
        })
    }
}

impl NamedService for Runtime {
    const NAME: &'static str = "runtime.v1.RuntimeService";
}
