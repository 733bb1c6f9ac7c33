//! A TCP proxy that can lose responses.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::spawn;

/// A proxy that forwards bytes until a test makes it lose responses. It then closes a connection
/// when the server responds, so the request has taken effect but the client gets no response.
pub struct Proxy {
    pub url: String,
    lose_answers: Arc<AtomicBool>,
}

impl Proxy {
    pub fn to(url: &str) -> Self {
        let target = url.trim_start_matches("http://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let lose_answers = Arc::new(AtomicBool::new(false));
        let losing = lose_answers.clone();
        spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(&target)) else {
                    return;
                };
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                spawn(move || pass(from, to, &AtomicBool::new(false)));
                let losing = losing.clone();
                spawn(move || pass(server, client, &losing));
            }
        });
        Proxy { url, lose_answers }
    }

    pub fn lose_answers(&self, yes: bool) {
        self.lose_answers.store(yes, Ordering::SeqCst);
    }
}

/// The type of HTTP/2 HEADERS frames, with which a response begins.
const HEADERS_FRAME: u8 = 1;

fn pass(mut from: TcpStream, mut to: TcpStream, lose: &AtomicBool) {
    let mut buffer = [0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let answered = lose.load(Ordering::SeqCst)
            && frames(&buffer[..count]).any(|kind| kind == HEADERS_FRAME);
        if answered || to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// In these tests, the frames of one read are whole.
fn frames(mut bytes: &[u8]) -> impl Iterator<Item = u8> {
    std::iter::from_fn(move || {
        let [a, b, c, kind, ..] = *bytes else {
            return None;
        };
        let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        bytes = bytes.get(9 + length..).unwrap_or_default();
        Some(kind)
    })
}
