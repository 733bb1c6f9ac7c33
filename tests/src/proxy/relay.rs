//! The proxy at work: connections, requests and responses, and their faults.

use std::future::pending;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper::header::HOST;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, Uri, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, Notify};
use tokio::time::sleep;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::answer::Relayed;
use super::transaction::{Asked, described, whole};
use super::{Fault, State, tls};

#[derive(Clone)]
pub(super) struct Server {
    address: String,
    tls: Option<TlsConnector>,
}

/// The connection of a client, and the connection to the server that serves it.
struct Link {
    server: Server,
    state: Arc<State>,
    to_server: Mutex<Option<SendRequest<Asked>>>,
    cut: Arc<Notify>,
}

/// The remaining action after a fault.
enum Next {
    GoOn,
    Half,
    Answer(super::Refusal),
    Break,
    BreakAndGoOn(Duration),
}

impl Server {
    pub(super) fn in_the_clear(address: &str) -> Server {
        Server {
            address: address.into(),
            tls: None,
        }
    }

    pub(super) fn inside_tls(address: &str, authority: &str) -> Result<Server> {
        Ok(Server {
            address: address.into(),
            tls: Some(tls::connector(authority)?),
        })
    }

    async fn connect(&self) -> io::Result<SendRequest<Asked>> {
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        let Some(connector) = &self.tls else {
            return http2_to(stream).await;
        };
        let host = self
            .address
            .rsplit_once(':')
            .map_or(self.address.as_str(), |(host, _)| host);
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        http2_to(connector.connect(name, stream).await?).await
    }

    fn readdressed(&self, request: Request<Asked>) -> io::Result<Request<Asked>> {
        let (mut head, body) = request.into_parts();
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let target = head
            .uri
            .path_and_query()
            .map_or("/", |target| target.as_str());
        let uri = Uri::builder()
            .scheme(scheme)
            .authority(self.address.as_str())
            .path_and_query(target);
        head.uri = uri.build().map_err(io::Error::other)?;
        head.version = Version::HTTP_2;
        head.headers.remove(HOST);
        Ok(Request::from_parts(head, body))
    }
}

async fn http2_to(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> io::Result<SendRequest<Asked>> {
    let handshake =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (sender, connection) = handshake.map_err(io::Error::other)?;
    tokio::spawn(connection);
    Ok(sender)
}

/// Accepts connections until the listener fails.
pub(super) async fn serve(
    listener: TcpListener,
    server: Server,
    state: Arc<State>,
) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    loop {
        let (stream, _) = listener.accept().await?;
        if state.accepts() {
            let link = Link {
                server: server.clone(),
                state: state.clone(),
                to_server: Mutex::default(),
                cut: Arc::default(),
            };
            // A broken connection is intended, so its error is ignored.
            tokio::spawn(async move { drop(Arc::new(link).run(stream).await) });
        }
    }
}

impl Link {
    async fn run(self: Arc<Self>, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let acceptor = self.state.acceptor().clone();
        match acceptor {
            None => self.serve(stream, true).await,
            Some(acceptor) => {
                let stream = acceptor.accept(stream).await?;
                let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                self.serve(stream, is_http2).await
            }
        }
        Ok(())
    }

    /// Serves requests until either side or a fault ends the connection.
    async fn serve(
        self: Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        is_http2: bool,
    ) {
        let (io, link) = (TokioIo::new(stream), self.clone());
        let service = service_fn(move |request| link.clone().relay(request));
        let mut gone = self.state.gone.subscribe();
        let conversation = async {
            match is_http2 {
                true => drop(
                    http2::Builder::new(TokioExecutor::new())
                        .serve_connection(io, service)
                        .await,
                ),
                false => drop(http1::Builder::new().serve_connection(io, service).await),
            }
        };
        tokio::select! {
            () = conversation => {}
            () = self.cut.notified() => {}
            _ = gone.wait_for(|gone| *gone) => {}
        }
    }

    async fn relay(self: Arc<Self>, request: Request<Incoming>) -> io::Result<Response<Relayed>> {
        let method = request.method().clone();
        let (head, body) = request.into_parts();
        let (body, more) = described(&head, body).await;
        let target = head
            .uri
            .path_and_query()
            .map_or("/", |target| target.as_str());
        let (number, fault) = self
            .state
            .request(method.as_str(), &format!("{target}{more}"));
        match self.carry_out(fault).await {
            Next::GoOn | Next::Half => {}
            Next::Break => return self.broken().await,
            Next::BreakAndGoOn(after) => {
                let body = match body {
                    Asked::Streamed(body) => Some(whole(body).await),
                    Asked::Read(bytes) => bytes,
                };
                let (link, request) = (self.clone(), Request::from_parts(head, Asked::Read(body)));
                self.state.late.send_modify(|late| *late += 1);
                tokio::spawn(async move {
                    sleep(after).await;
                    drop(link.ask(request).await);
                    link.state.late.send_modify(|late| *late -= 1);
                });
                return self.broken().await;
            }
            Next::Answer(refusal) => {
                // The body of a refused request is read too: an unread body would break the
                // connection.
                if let Asked::Streamed(body) = body {
                    whole(body).await;
                }
                return Ok(refusal.response(&method));
            }
        }
        let request = Request::from_parts(head, body);
        let answer = self
            .ask(request)
            .await
            .inspect_err(|_| self.cut.notify_one())?;
        self.answered(number, answer, &method).await
    }

    async fn answered(
        &self,
        number: usize,
        answer: Response<Incoming>,
        method: &Method,
    ) -> io::Result<Response<Relayed>> {
        match self.carry_out(self.state.answer(number)).await {
            Next::GoOn | Next::BreakAndGoOn(_) => Ok(answer.map(Relayed::Whole)),
            Next::Half => Ok(answer.map(|body| Relayed::Half {
                body,
                cut: self.cut.clone(),
                sent: false,
            })),
            Next::Answer(refusal) => Ok(refusal.response(method)),
            Next::Break => self.broken().await,
        }
    }

    async fn ask(&self, request: Request<Asked>) -> io::Result<Response<Incoming>> {
        let mut sender = {
            let mut slot = self.to_server.lock().await;
            match &*slot {
                Some(sender) if !sender.is_closed() => sender.clone(),
                _ => slot.insert(self.server.connect().await?).clone(),
            }
        };
        sender
            .send_request(self.server.readdressed(request)?)
            .await
            .map_err(io::Error::other)
    }

    async fn carry_out(&self, fault: Option<Fault>) -> Next {
        match fault {
            // The current fault of [`Fault::InTurn`] has been selected before.
            None | Some(Fault::InTurn(_)) => Next::GoOn,
            Some(Fault::CutMidAnswer) => Next::Half,
            Some(Fault::Refuse(refusal)) => Next::Answer(refusal),
            Some(Fault::Cut) => Next::Break,
            Some(Fault::Late(after)) => Next::BreakAndGoOn(after),
            Some(Fault::Delay(time)) => {
                sleep(time).await;
                Next::GoOn
            }
            Some(Fault::Hold) => {
                let _ = self
                    .state
                    .resumed
                    .subscribe()
                    .wait_for(|resumed| *resumed)
                    .await;
                Next::GoOn
            }
            Some(Fault::Gone) => {
                self.state.gone.send_replace(true);
                Next::Break
            }
            Some(Fault::Kill) => {
                let mut plugin = self.state.plugin.subscribe();
                let known = plugin
                    .wait_for(Option::is_some)
                    .await
                    .ok()
                    .and_then(|pid| *pid);
                if let Some(pid) = known.and_then(|pid| i32::try_from(pid).ok()) {
                    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
                }
                Next::Break
            }
        }
    }

    async fn broken<T>(&self) -> T {
        self.cut.notify_one();
        pending().await
    }
}
