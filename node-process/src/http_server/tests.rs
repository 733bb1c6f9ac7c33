//! The limits, over real connections from several addresses of the loopback interface.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::task::JoinHandle;

use super::*;

/// Longer than a test. A slow connection ends only because the server closes it for another one.
const PATIENT: TimeLimits = TimeLimits {
    head: Duration::from_secs(600),
    connection: Duration::from_secs(600),
};
/// Longer than a response takes, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
const KUBELET: [u8; 4] = [127, 0, 0, 1];

struct Served {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn served(limits: TimeLimits) -> Served {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let respond = |request: Request<Incoming>| async move {
        let text = HeaderValue::from_static("text/plain");
        reject_method(request.method())
            .unwrap_or_else(|| page(StatusCode::OK, text, request.uri().to_string()))
    };
    Served {
        address,
        task: tokio::spawn(serve(listener, limits, respond)),
    }
}

/// Opens a connection from an address and sends `bytes`.
async fn connect(served: &Served, source: [u8; 4], bytes: &[u8]) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((source, 0))).unwrap();
    let mut stream = socket.connect(served.address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    stream
}

/// Returns all bytes that the server sends before it closes the connection.
async fn read(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    // A reset is an end, too.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut answer))
        .await
        .expect("the server closes the connection");
    String::from_utf8(answer).unwrap()
}

async fn probe(served: &Served, source: [u8; 4]) -> String {
    read(connect(served, source, b"GET /live?x HTTP/1.1\r\nhost: x\r\n\r\n").await).await
}

#[tokio::test]
async fn hundreds_of_slow_connections_of_an_address_do_not_stop_probes_of_any_address() {
    let served = served(PATIENT).await;
    let early = connect(&served, KUBELET, b"GET /ear").await;
    let mut slow = Vec::new();
    for _ in 0..700 {
        slow.push(connect(&served, [127, 0, 0, 2], b"GET /slo").await);
    }
    for source in [KUBELET, [127, 0, 0, 2], [127, 0, 0, 3]] {
        let answer = probe(&served, source).await;
        assert!(
            answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\n/live?x"),
            "{answer}"
        );
    }
    // The oldest connection of the busy address is closed without a response, and that of the other
    // address is open.
    assert_eq!(read(slow.remove(0)).await, "");
    let mut early = early;
    early.write_all(b"ly HTTP/1.1\r\n\r\n").await.unwrap();
    let answer = read(early).await;
    assert!(answer.ends_with("\r\n\r\n/early"), "{answer}");
}

#[test]
fn oldest_connection_of_the_busiest_address_is_closed_beyond_the_limits() {
    let open = |counts: &[usize]| -> Vec<IpAddr> {
        let of = |(address, count): (u8, &usize)| vec![IpAddr::from([10, 0, 0, address]); *count];
        (1..).zip(counts).flat_map(of).collect()
    };
    assert_eq!(to_close(&[]), None);
    assert_eq!(to_close(&open(&[1, MAX_CONNECTIONS_OF_ADDRESS])), None);
    assert_eq!(
        to_close(&open(&[1, MAX_CONNECTIONS_OF_ADDRESS + 1])),
        Some(1)
    );
    assert_eq!(
        to_close(&open(&[
            MAX_CONNECTIONS - MAX_CONNECTIONS_OF_ADDRESS,
            MAX_CONNECTIONS_OF_ADDRESS
        ])),
        None
    );
    assert_eq!(to_close(&open(&[20, 24, 21])), Some(20));
    assert_eq!(to_close(&open(&[1; MAX_CONNECTIONS])), None);
    assert_eq!(to_close(&open(&[1; MAX_CONNECTIONS + 1])), Some(0));
    assert_eq!(
        to_close(&open(&[&[1, 2][..], &[1; MAX_CONNECTIONS - 2]].concat())),
        Some(1)
    );
}

#[tokio::test]
async fn silent_and_endless_requests_are_closed_at_their_limits() {
    let quick = served(TimeLimits {
        head: Duration::from_millis(50),
        ..PATIENT
    })
    .await;
    read(connect(&quick, KUBELET, b"GET /").await).await;
    let quick = served(TimeLimits {
        connection: Duration::from_millis(50),
        ..PATIENT
    })
    .await;
    assert_eq!(read(connect(&quick, KUBELET, b"GET /").await).await, "");
    let patient = served(PATIENT).await;
    let mut endless = b"GET / HTTP/1.1\r\nx: ".to_vec();
    endless.resize(2 * MAX_HEAD_BYTES, b'x');
    let answer = read(connect(&patient, KUBELET, &endless).await).await;
    assert!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 431 "),
        "{answer}"
    );
}

#[tokio::test]
async fn other_methods_and_nonsense_are_answered_with_an_error() {
    let served = served(PATIENT).await;
    for (request, code) in [
        ("POST / HTTP/1.1\r\n\r\n", "405"),
        ("\u{7f}\r\n\r\n", "400"),
        ("GET\r\n\r\n", "400"),
    ] {
        let answer = read(connect(&served, KUBELET, request.as_bytes()).await).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {code} ")),
            "{request}: {answer}"
        );
    }
    let answer = read(connect(&served, KUBELET, b"HEAD /x HTTP/1.1\r\n\r\n").await).await;
    assert!(
        answer.contains("content-length: 2\r\n") && answer.ends_with("\r\n\r\n"),
        "{answer}"
    );
    let answer = read(connect(&served, KUBELET, b"GET /x HTTP/1.0\r\n\r\n").await).await;
    assert!(
        answer.starts_with("HTTP/1.0 200 ") && answer.ends_with("/x"),
        "{answer}"
    );
}

#[tokio::test]
async fn connection_ends_after_one_request() {
    let served = served(PATIENT).await;
    let request = b"GET /x HTTP/1.1\r\nhost: x\r\nconnection: keep-alive\r\n\r\n";
    let answer = read(connect(&served, KUBELET, request).await).await;
    assert!(answer.contains("connection: close\r\n"), "{answer}");
}
