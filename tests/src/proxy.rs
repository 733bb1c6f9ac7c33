//! A proxy between the plugins and a real server, etcd or kube-apiserver, that puts a fault at one request or answer.
//!
//! It ends HTTP/2 and HTTP/1.1 towards the plugin and speaks HTTP/2 to the server, in the clear or inside TLS on both
//! sides: so it knows what each request asks, can count them, and can answer in the server's place. When an answer begins,
//! the server has carried out the request: a fault at a request means "not done", one at an answer "done, but not heard
//! of".

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

/// How long the test waits for a request that it wants to hold.
const HELD_WITHIN: Duration = Duration::from_secs(30);

/// A place in the conversation, counted from 0 since the proxy was armed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// Before the n-th request reaches the server.
    Request(usize),
    /// After the server carried out the n-th answered request, before the client hears of it.
    Answer(usize),
    /// Before each request, for as long as the proxy is armed so.
    EveryRequest,
    /// Before each n-th request, for as long as the proxy is armed so.
    EachNth(usize),
    /// Before the first request of this method whose path and query contain this text. A transaction of etcd with
    /// conditions, as all that write have them, has their keys as its query: `/etcdserverpb.KV/Txn?if=<key>,<key>`.
    First(&'static str, &'static str),
}

/// What happens there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The connection breaks; a new one works.
    Cut,
    /// The connection breaks when half of the answer is through. At an answer only.
    CutMidAnswer,
    /// The connection breaks, and the server carries the request out after this long. At a request only.
    Late(Duration),
    /// The connection breaks, and no new one is accepted until the proxy is armed again.
    Gone,
    /// The request or the answer waits for this long; others pass.
    Delay(Duration),
    /// The request waits until [`Proxy::resume`], see [`Proxy::await_held`].
    Hold,
    /// The plugin gets SIGKILL, see [`Proxy::plugin`].
    Kill,
    /// The client gets this answer in place of the server's.
    Refuse(Refusal),
    /// These, one after the other, and then from the first again.
    InTurn(&'static [Fault]),
}

/// A listening proxy; it ends when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    scheme: &'static str,
    state: Arc<State>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What passed since the proxy was armed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traffic {
    /// Connections opened.
    pub connections: usize,
    /// Requests begun.
    pub requests: usize,
    /// Answers begun.
    pub answers: usize,
}

/// What the proxy's two ends share.
struct State {
    plan: Mutex<Plan>,
    /// How a client is greeted inside TLS.
    acceptor: Mutex<Option<TlsAcceptor>>,
    /// Whether connections are refused, and those there are broken.
    gone: watch::Sender<bool>,
    /// The process to kill.
    plugin: watch::Sender<Option<u32>>,
    /// Whether held requests may go on.
    resumed: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Plan {
    faults: Vec<(Point, Fault)>,
    /// How many faults there were.
    fired: usize,
    connections: usize,
    answers: usize,
    /// `METHOD path?query` of each request.
    requests: Vec<String>,
}

impl Proxy {
    /// Listens on a free port of the private host and forwards to `server`, `address:port`, all in the clear.
    pub fn start(server: &str) -> Result<Proxy> {
        Self::start_on(listener()?, server)
    }

    /// The same where `listener` listens, which may be another private host.
    pub fn start_on(listener: TcpListener, server: &str) -> Result<Proxy> {
        Self::between("http", None, listener, relay::Server::in_the_clear(server))
    }

    /// Listens on a free port of the private host and forwards to `server` inside TLS on both sides. The server must have
    /// a certificate of `authority`, PEM.
    pub fn start_tls(server: &str, authority: &str, own: &ServerCertificate) -> Result<Proxy> {
        Self::start_tls_on(listener()?, server, authority, own)
    }

    /// The same where `listener` listens.
    pub fn start_tls_on(
        listener: TcpListener,
        server: &str,
        authority: &str,
        own: &ServerCertificate,
    ) -> Result<Proxy> {
        Self::between("https", Some(own.acceptor()?), listener, relay::Server::inside_tls(server, authority)?)
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
        });
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let shared = state.clone();
        let thread = thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = relay::serve(listener, server, shared) => {}
                    _ = stopped => {}
                }
            });
        });
        Ok(Proxy { port, scheme, state, stop: Some(stop), thread: Some(thread) })
    }

    /// Where plugins find it.
    pub fn endpoint(&self) -> String {
        format!("{}://127.0.0.1:{}", self.scheme, self.port)
    }

    /// Starts counting anew and plans one fault.
    pub fn arm(&self, fault: Option<(Point, Fault)>) {
        self.arm_all(fault.as_slice());
    }

    /// The same with several. At a place that several are for, the first comes first.
    pub fn arm_all(&self, faults: &[(Point, Fault)]) {
        *self.state.plan() = Plan { faults: faults.to_vec(), ..Plan::default() };
        self.state.gone.send_replace(false);
        self.state.resumed.send_replace(false);
        self.state.plugin.send_replace(None);
    }

    /// Breaks all connections and refuses new ones, until the proxy is armed again. Nothing passes any more when this returns.
    pub fn go_away(&self) {
        self.arm(None);
        self.break_connections();
    }

    /// Breaks all connections; new ones work, and the plan stays.
    pub fn cut(&self) {
        self.break_connections();
        self.state.gone.send_replace(false);
    }

    /// Returns when each connection has ended: it listens to this for as long as it is served.
    fn break_connections(&self) {
        self.state.gone.send_replace(true);
        while self.state.gone.receiver_count() > 0 {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Proves itself to new connections with another certificate.
    pub fn present(&self, own: &ServerCertificate) -> Result<()> {
        *self.state.acceptor() = Some(own.acceptor()?);
        Ok(())
    }

    /// Says which process [`Fault::Kill`] is about.
    pub fn plugin(&self, pid: u32) {
        self.state.plugin.send_replace(Some(pid));
    }

    /// Waits until each planned [`Fault::Hold`] holds its request.
    pub fn await_held(&self) -> Result<()> {
        let deadline = Instant::now() + HELD_WITHIN;
        loop {
            let awaited = self.state.plan().awaited();
            if awaited.is_empty() {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "{awaited:?} did not come: {:#?}", self.requests());
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Lets held requests go on.
    pub fn resume(&self) {
        self.state.resumed.send_replace(true);
    }

    /// What passed since [`Proxy::arm`].
    pub fn traffic(&self) -> Traffic {
        let plan = self.state.plan();
        Traffic { connections: plan.connections, requests: plan.requests.len(), answers: plan.answers }
    }

    /// The requests since [`Proxy::arm`], each as `METHOD path?query`.
    pub fn requests(&self) -> Vec<String> {
        self.state.plan().requests.clone()
    }

    /// Whether a planned fault has happened.
    pub fn fired(&self) -> bool {
        self.faults() > 0
    }

    /// How many faults there were since [`Proxy::arm`].
    pub fn faults(&self) -> usize {
        self.state.plan().fired
    }
}

/// A free port of the private host that the calling thread is on.
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

    /// Counts a connection; whether it may go on.
    fn accepts(&self) -> bool {
        let gone = *self.gone.borrow();
        self.plan().connections += usize::from(!gone);
        !gone
    }

    /// Counts a request; the fault that is planned for it.
    fn request(&self, method: &str, target: &str) -> Option<Fault> {
        let mut plan = self.plan();
        let number = plan.requests.len();
        plan.requests.push(format!("{method} {target}"));
        plan.take(|point| match point {
            Point::Request(at) => at == number,
            Point::EveryRequest => true,
            Point::EachNth(nth) => number % nth == nth - 1,
            Point::First(of, part) => method == of && target.contains(part),
            Point::Answer(_) => false,
        })
    }

    /// Counts an answer; the fault that is planned for it.
    fn answer(&self) -> Option<Fault> {
        let mut plan = self.plan();
        plan.answers += 1;
        let number = plan.answers - 1;
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

    /// Where requests are to be held that did not come yet.
    fn awaited(&self) -> Vec<Point> {
        self.faults.iter().filter(|(_, fault)| *fault == Fault::Hold).map(|(point, _)| *point).collect()
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.plan().fmt(f)
    }
}

#[cfg(test)]
mod tests;
