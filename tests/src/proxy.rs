//! A proxy between our programs and a real server, etcd or kube-apiserver. It injects faults at
//! requests or responses.
//!
//! The proxy reads and counts requests, and can respond in place of the server. A fault at a
//! request happens before the server executes the request. A fault at a response happens after the
//! execution, and before the client receives the result.

use std::net::TcpListener;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::sync::{oneshot, watch};
use tokio_rustls::TlsAcceptor;

mod answer;
mod relay;
mod tls;
mod transaction;

pub use answer::Refusal;
pub use tls::{Protocol, ServerCertificate};

/// Timeout until a request arrives that the test wants to hold, and until the server has executed
/// late requests.
const HELD_WITHIN: Duration = Duration::from_secs(120);

/// A position in the conversation, counted from 0 since the proxy was armed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// Before the n-th request reaches the server.
    Request(usize),
    /// After the server executed the n-th request, before the client receives the response.
    Answer(usize),
    /// Before each request, until the proxy is armed again.
    EveryRequest,
    /// Before each n-th request, until the proxy is armed again.
    EachNth(usize),
    /// Before the first request of this method whose path and query contain this text. An etcd
    /// transaction with conditions has their keys as its query:
    /// `/etcdserverpb.KV/Txn?if=<key>,<key>`.
    First(&'static str, &'static str),
}

/// The fault at a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The connection breaks; a new one works.
    Cut,
    /// The connection breaks after a part of the response. At a response only.
    CutMidAnswer,
    /// The connection breaks, and the server executes the request after this delay. At a request
    /// only.
    Late(Duration),
    /// All connections break, and new ones do too until [`Proxy::arm`] or [`Proxy::cut`].
    Gone,
    /// The request or the response is delayed; others pass.
    Delay(Duration),
    /// The request or the response waits until [`Proxy::resume`], see [`Proxy::await_held`].
    Hold,
    /// The plugin gets SIGKILL, see [`Proxy::plugin`].
    Kill,
    /// The client gets this response in place of the server's.
    Refuse(Refusal),
    /// These faults, in rotation.
    InTurn(&'static [Fault]),
}

impl Fault {
    /// Returns true if the fault can kill the plugin.
    pub(crate) fn includes_kill(self) -> bool {
        match self {
            Fault::Kill => true,
            Fault::InTurn(faults) => faults.iter().any(|fault| fault.includes_kill()),
            _ => false,
        }
    }
}

/// A listening proxy. It stops on drop.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    scheme: &'static str,
    state: Arc<State>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The traffic since the proxy was armed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traffic {
    /// Connections opened.
    pub connections: usize,
    /// Requests begun.
    pub requests: usize,
    /// Responses begun.
    pub answers: usize,
}

struct State {
    plan: Mutex<Plan>,
    /// The acceptor of clients' TLS connections; `None` for plain text.
    acceptor: Mutex<Option<TlsAcceptor>>,
    /// Whether to refuse new connections and break existing ones.
    gone: watch::Sender<bool>,
    /// Process ID for [`Fault::Kill`].
    plugin: watch::Sender<Option<u32>>,
    /// Whether to let held requests continue.
    resumed: watch::Sender<bool>,
    /// Number of requests of [`Fault::Late`] without a response of the server.
    late: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct Plan {
    faults: Vec<(Point, Fault)>,
    /// Number of faults so far.
    fired: usize,
    connections: usize,
    answers: usize,
    /// `METHOD path?query` of each request.
    requests: Vec<String>,
}

impl Proxy {
    /// Listens on a free port of the private host and forwards to `server`, `address:port`, all in
    /// plain text.
    pub fn start(server: &str) -> Result<Proxy> {
        Self::start_on(listener()?, server)
    }

    /// Starts a proxy as [`Proxy::start`] does, on `listener`, which may belong to another private
    /// host.
    pub fn start_on(listener: TcpListener, server: &str) -> Result<Proxy> {
        Self::between("http", None, listener, relay::Server::in_the_clear(server))
    }

    /// Listens on a free port of the private host and forwards to `server`, with TLS on both sides.
    /// `authority` (PEM) has issued the server's certificate, and `own` is the proxy's.
    pub fn start_tls(server: &str, authority: &str, own: &ServerCertificate) -> Result<Proxy> {
        Self::start_tls_on(listener()?, server, authority, own)
    }

    /// Starts a proxy as [`Proxy::start_tls`] does, on `listener`.
    pub fn start_tls_on(
        listener: TcpListener,
        server: &str,
        authority: &str,
        own: &ServerCertificate,
    ) -> Result<Proxy> {
        Self::between(
            "https",
            Some(own.acceptor()?),
            listener,
            relay::Server::inside_tls(server, authority)?,
        )
    }

    fn between(
        scheme: &'static str,
        acceptor: Option<TlsAcceptor>,
        listener: TcpListener,
        server: relay::Server,
    ) -> Result<Proxy> {
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let state = Arc::new(State {
            plan: Mutex::default(),
            acceptor: Mutex::new(acceptor),
            gone: watch::Sender::new(false),
            plugin: watch::Sender::new(None),
            resumed: watch::Sender::new(false),
            late: watch::Sender::new(0),
        });
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let shared = state.clone();
        let thread = thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = relay::serve(listener, server, shared) => {}
                    _ = stopped => {}
                }
            });
        });
        Ok(Proxy {
            port,
            scheme,
            state,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Returns the endpoint for plugins.
    pub fn endpoint(&self) -> String {
        format!("{}://127.0.0.1:{}", self.scheme, self.port)
    }

    /// Resets the counters, the holds and the process ID of [`Proxy::plugin`], accepts new
    /// connections again, and plans one fault, or none.
    pub fn arm(&self, fault: Option<(Point, Fault)>) {
        self.arm_all(fault.as_slice());
    }

    /// Does the same as [`Proxy::arm`] with several faults. If several apply at a point, the first
    /// one is used.
    pub fn arm_all(&self, faults: &[(Point, Fault)]) {
        *self.state.plan() = Plan {
            faults: faults.to_vec(),
            ..Plan::default()
        };
        self.state.gone.send_replace(false);
        self.state.resumed.send_replace(false);
        self.state.plugin.send_replace(None);
    }

    /// Breaks all connections and refuses new ones until the next call of [`Proxy::arm`] or
    /// [`Proxy::cut`].
    pub fn go_away(&self) {
        self.arm(None);
        self.break_connections();
    }

    /// Breaks all connections but accepts new ones. The plan remains.
    pub fn cut(&self) {
        self.break_connections();
        self.state.gone.send_replace(false);
    }

    /// Breaks all connections and waits until each has ended: a served connection holds a receiver.
    fn break_connections(&self) {
        self.state.gone.send_replace(true);
        while self.state.gone.receiver_count() > 0 {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Presents another certificate to new connections.
    pub fn present(&self, own: &ServerCertificate) -> Result<()> {
        *self.state.acceptor() = Some(own.acceptor()?);
        Ok(())
    }

    /// Sets the process for [`Fault::Kill`].
    pub fn plugin(&self, pid: u32) {
        self.state.plugin.send_replace(Some(pid));
    }

    /// Waits until each planned [`Fault::Hold`] has begun.
    pub fn await_held(&self) -> Result<()> {
        let deadline = Instant::now() + HELD_WITHIN;
        loop {
            let awaited = self.state.plan().awaited();
            if awaited.is_empty() {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "{awaited:?} did not come: {:#?}",
                self.requests()
            );
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until the server has executed each request of [`Fault::Late`] so far.
    pub fn await_late(&self) -> Result<()> {
        let deadline = Instant::now() + HELD_WITHIN;
        while *self.state.late.borrow() > 0 {
            ensure!(
                Instant::now() < deadline,
                "the server does not execute late requests: {:#?}",
                self.requests()
            );
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Lets held requests continue.
    pub fn resume(&self) {
        self.state.resumed.send_replace(true);
    }

    /// Returns the traffic since [`Proxy::arm`].
    pub fn traffic(&self) -> Traffic {
        let plan = self.state.plan();
        Traffic {
            connections: plan.connections,
            requests: plan.requests.len(),
            answers: plan.answers,
        }
    }

    /// Returns the requests since [`Proxy::arm`], each as `METHOD path?query`.
    pub fn requests(&self) -> Vec<String> {
        self.state.plan().requests.clone()
    }

    /// Returns true if a planned fault has happened.
    pub fn fired(&self) -> bool {
        self.faults() > 0
    }

    /// Returns the number of faults since [`Proxy::arm`].
    pub fn faults(&self) -> usize {
        self.state.plan().fired
    }
}

/// Listens on a free port of the calling thread's private host.
pub fn listener() -> Result<TcpListener> {
    TcpListener::bind("127.0.0.1:0").context("cannot listen")
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl State {
    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn acceptor(&self) -> MutexGuard<'_, Option<TlsAcceptor>> {
        self.acceptor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if the connection is accepted, and then counts it.
    fn accepts(&self) -> bool {
        let gone = *self.gone.borrow();
        self.plan().connections += usize::from(!gone);
        !gone
    }

    /// Counts a request. Returns its number, and the fault that is planned for it.
    fn request(&self, method: &str, target: &str) -> (usize, Option<Fault>) {
        let mut plan = self.plan();
        let number = plan.requests.len();
        plan.requests.push(format!("{method} {target}"));
        let fault = plan.take(|point| match point {
            Point::Request(at) => at == number,
            Point::EveryRequest => true,
            Point::EachNth(nth) => number % nth == nth - 1,
            Point::First(of, part) => method == of && target.contains(part),
            Point::Answer(_) => false,
        });
        (number, fault)
    }

    /// Counts the response to the request with this number, and returns the fault that is planned
    /// for it.
    fn answer(&self, number: usize) -> Option<Fault> {
        let mut plan = self.plan();
        plan.answers += 1;
        plan.take(|point| point == Point::Answer(number))
    }
}

impl Plan {
    fn take(&mut self, is_here: impl Fn(Point) -> bool) -> Option<Fault> {
        let place = self.faults.iter().position(|(point, _)| is_here(*point))?;
        let (point, fault) = self.faults[place];
        let turn = self.fired;
        self.fired += 1;
        if !matches!(point, Point::EveryRequest | Point::EachNth(_)) {
            self.faults.remove(place);
        }
        match fault {
            Fault::InTurn(faults) => faults.get(turn % faults.len().max(1)).copied(),
            fault => Some(fault),
        }
    }

    /// Returns the points of planned holds that have not happened yet.
    fn awaited(&self) -> Vec<Point> {
        self.faults
            .iter()
            .filter(|(_, fault)| *fault == Fault::Hold)
            .map(|(point, _)| *point)
            .collect()
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.plan().fmt(f)
    }
}

#[cfg(test)]
mod tests;
