//! A TCP proxy between a plugin and a real etcd that knows where a request and an answer begin.
//!
//! It reads just enough of HTTP/2 (RFC 9113, section 4.1) to count: a HEADERS frame of the client opens a request, the
//! first HEADERS frame of the server on that stream begins its answer. When an answer begins, the server has carried out
//! the request: so a fault at a request means "not done", one at an answer "done, but not heard of".

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// What a client sends before its first frame.
const PREFACE: usize = 24;
const FRAME_HEADER: usize = 9;
const HEADERS: u8 = 1;

/// A place in the conversation, counted from 0 since the proxy was armed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// Before the n-th request reaches the server.
    Request(usize),
    /// After the server carried out the n-th answered request, before the client hears of it.
    Answer(usize),
}

/// What happens there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The connection breaks; a new one works.
    Cut,
    /// The connection breaks, and no new one is accepted until the proxy is armed again.
    Gone,
    /// Nothing moves for this long.
    Delay(Duration),
    /// The plugin gets SIGKILL, see [`Proxy::plugin`].
    Kill,
}

/// A listening proxy.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    plan: Mutex<Plan>,
    /// Told when the process id of the plugin is known.
    plugin_known: Condvar,
}

#[derive(Debug, Default)]
struct Plan {
    fault: Option<(Point, Fault)>,
    requests: usize,
    answers: usize,
    connections: usize,
    gone: bool,
    plugin: Option<u32>,
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

impl Proxy {
    /// Listens on a free port of the private host and forwards to `server`, `address:port`.
    pub fn start(server: &str) -> Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen")?;
        let port = listener.local_addr()?.port();
        let state = Arc::new(State::default());
        let (server, shared) = (server.to_owned(), state.clone());
        // Ends with the process; the port is the private host's.
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if shared.accepts() {
                    let _ = forward(client, &server, &shared);
                }
            }
        });
        Ok(Proxy { port, state })
    }

    /// Where plugins find it.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Starts counting anew and plans one fault.
    pub fn arm(&self, fault: Option<(Point, Fault)>) {
        *self.state.plan() = Plan { fault, ..Plan::default() };
    }

    /// Says which process [`Fault::Kill`] is about.
    pub fn plugin(&self, pid: u32) {
        self.state.plan().plugin = Some(pid);
        self.state.plugin_known.notify_all();
    }

    /// What passed since [`Proxy::arm`].
    pub fn traffic(&self) -> Traffic {
        let plan = self.state.plan();
        Traffic { connections: plan.connections, requests: plan.requests, answers: plan.answers }
    }

    /// Whether the planned fault has happened.
    pub fn fired(&self) -> bool {
        self.state.plan().fault.is_none()
    }
}

impl State {
    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accepts(&self) -> bool {
        let mut plan = self.plan();
        plan.connections += usize::from(!plan.gone);
        !plan.gone
    }

    /// Counts a request or answer; an error ends the connection.
    fn reached(&self, kind: fn(usize) -> Point) -> io::Result<()> {
        let mut plan = self.plan();
        let point = match kind(0) {
            Point::Request(_) => {
                plan.requests += 1;
                kind(plan.requests - 1)
            }
            Point::Answer(_) => {
                plan.answers += 1;
                kind(plan.answers - 1)
            }
        };
        let Some((_, fault)) = plan.fault.filter(|(at, _)| *at == point) else { return Ok(()) };
        plan.fault = None;
        match fault {
            Fault::Cut => Err(io::ErrorKind::ConnectionReset.into()),
            Fault::Gone => {
                plan.gone = true;
                Err(io::ErrorKind::ConnectionReset.into())
            }
            Fault::Delay(time) => {
                drop(plan);
                thread::sleep(time);
                Ok(())
            }
            Fault::Kill => {
                let plan = self.plugin_known.wait_while(plan, |plan| plan.plugin.is_none());
                let pid = plan.unwrap_or_else(PoisonError::into_inner).plugin;
                if let Some(pid) = pid.and_then(|pid| i32::try_from(pid).ok()) {
                    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
                }
                Err(io::ErrorKind::ConnectionReset.into())
            }
        }
    }
}

/// Joins one client to the server: a thread for each direction, either end closing both.
fn forward(client: TcpStream, server: &str, state: &Arc<State>) -> io::Result<()> {
    let server = TcpStream::connect(server)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (to_server, from_server) = (server.try_clone()?, server);
    let (to_client, from_client) = (client.try_clone()?, client);
    let (requests, answers) = (state.clone(), state.clone());
    thread::spawn(move || {
        let _ = pump(&from_client, &to_server, true, || requests.reached(Point::Request));
        close(&from_client, &to_server);
    });
    thread::spawn(move || {
        let _ = pump(&from_server, &to_client, false, || answers.reached(Point::Answer));
        close(&from_server, &to_client);
    });
    Ok(())
}

fn close(a: &TcpStream, b: &TcpStream) {
    let _ = a.shutdown(Shutdown::Both);
    let _ = b.shutdown(Shutdown::Both);
}

/// Passes on frame by frame; `on_stream` is called before the first HEADERS frame of each stream goes on.
fn pump(
    mut from: impl Read,
    mut to: impl Write,
    preface: bool,
    mut on_stream: impl FnMut() -> io::Result<()>,
) -> io::Result<()> {
    if preface {
        let mut bytes = [0; PREFACE];
        from.read_exact(&mut bytes)?;
        to.write_all(&bytes)?;
    }
    let mut streams = HashSet::new();
    loop {
        let mut frame = vec![0; FRAME_HEADER];
        from.read_exact(&mut frame)?;
        let length = usize::from(frame[0]) << 16 | usize::from(frame[1]) << 8 | usize::from(frame[2]);
        let stream = [frame[5], frame[6], frame[7], frame[8]];
        let opens = frame[3] == HEADERS && streams.insert(stream);
        frame.resize(FRAME_HEADER + length, 0);
        from.read_exact(&mut frame[FRAME_HEADER..])?;
        if opens {
            on_stream()?;
        }
        to.write_all(&frame)?;
    }
}

#[cfg(test)]
mod tests;
