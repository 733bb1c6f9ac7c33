//! [`Relay`]: carries bytes between clients and a server until its connections freeze.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::Result;

/// A relay of TCP connections. Unlike a proxy of requests, it answers no pings. Its threads end
/// with the connections.
pub(crate) struct Relay {
    port: u16,
    /// Number of freezes so far. A connection works until the first freeze after its begin.
    freezes: Arc<AtomicUsize>,
}

impl Relay {
    /// Listens on a free port of the private host and connects each client to `server`,
    /// `address:port`.
    pub(crate) fn start(server: &'static str) -> Result<Relay> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let relay = Relay {
            port: listener.local_addr()?.port(),
            freezes: Arc::default(),
        };
        let freezes = relay.freezes.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // Without a server, the client's connection ends here.
                if let Ok(server) = TcpStream::connect(server) {
                    _ = connect(client, server, &freezes);
                }
            }
        });
        Ok(relay)
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Freezes the present connections: they stay open and carry no more bytes. New connections
    /// work.
    pub(crate) fn freeze(&self) {
        self.freezes.fetch_add(1, Ordering::Relaxed);
    }
}

fn connect(client: TcpStream, server: TcpStream, freezes: &Arc<AtomicUsize>) -> Result<()> {
    let begin = freezes.load(Ordering::Relaxed);
    for (from, to) in [(client.try_clone()?, server.try_clone()?), (server, client)] {
        let freezes = freezes.clone();
        thread::spawn(move || carry(from, to, || freezes.load(Ordering::Relaxed) != begin));
    }
    Ok(())
}

/// Carries bytes until one end closes the connection. Drops the bytes of a frozen connection.
fn carry(mut from: TcpStream, mut to: TcpStream, is_frozen: impl Fn() -> bool) {
    let mut buffer = [0; 1 << 14];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if !is_frozen() && to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    _ = to.shutdown(Shutdown::Both);
}
