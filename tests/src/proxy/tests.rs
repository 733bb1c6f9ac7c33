//! The proxy before a server that answers as gRPC does.

use super::*;

fn frame(kind: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0, 0, payload.len() as u8, kind, 0, 0, 0, 0, stream];
    frame.extend(payload);
    frame
}

/// A server that answers each HEADERS frame with two (headers and trailers), as gRPC does.
fn grpc_like_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let mut out = client.try_clone().unwrap();
            thread::spawn(move || {
                client.read_exact(&mut [0; PREFACE]).unwrap();
                let mut header = [0; FRAME_HEADER];
                while client.read_exact(&mut header).is_ok() {
                    client.read_exact(&mut vec![0; usize::from(header[2])]).unwrap();
                    if header[3] == HEADERS {
                        out.write_all(&frame(HEADERS, header[8], b"h")).unwrap();
                        out.write_all(&frame(HEADERS, header[8], b"t")).unwrap();
                    }
                }
            });
        }
    });
    address
}

fn connect(proxy: &Proxy) -> TcpStream {
    let mut client = TcpStream::connect(proxy.endpoint().trim_start_matches("http://")).unwrap();
    client.write_all(&[b'P'; PREFACE]).unwrap();
    client
}

/// One request with a body; the bytes of the answer, or `None` when the connection broke.
fn request(client: &mut TcpStream, stream: u8) -> Option<[u8; 2]> {
    client.write_all(&frame(HEADERS, stream, b"head")).ok()?;
    client.write_all(&frame(0, stream, b"body")).ok()?;
    let mut answer = [0; 20];
    client.read_exact(&mut answer).ok()?;
    Some([answer[9], answer[19]])
}

#[test]
fn without_a_fault_everything_passes_and_is_counted() {
    let proxy = Proxy::start(&grpc_like_server()).unwrap();
    proxy.arm(None);
    let mut client = connect(&proxy);
    assert_eq!(request(&mut client, 1), Some(*b"ht"));
    assert_eq!(request(&mut client, 3), Some(*b"ht"));
    assert_eq!(proxy.traffic(), Traffic { connections: 1, requests: 2, answers: 2 });
}

#[test]
fn a_cut_request_does_not_reach_the_server_and_a_cut_answer_does() {
    for (point, reaches) in [(Point::Request(1), 1), (Point::Answer(1), 2)] {
        let proxy = Proxy::start(&grpc_like_server()).unwrap();
        proxy.arm(Some((point, Fault::Cut)));
        let mut client = connect(&proxy);
        assert_eq!(request(&mut client, 1), Some(*b"ht"));
        assert!(!proxy.fired());
        assert_eq!(request(&mut client, 3), None);
        assert!(proxy.fired());
        assert_eq!(proxy.traffic().answers, reaches);
        assert_eq!(request(&mut connect(&proxy), 1), Some(*b"ht"), "a new connection works");
    }
}

#[test]
fn gone_lasts_until_the_proxy_is_armed_again() {
    let proxy = Proxy::start(&grpc_like_server()).unwrap();
    proxy.arm(Some((Point::Request(0), Fault::Gone)));
    assert_eq!(request(&mut connect(&proxy), 1), None);
    assert_eq!(request(&mut connect(&proxy), 1), None);
    proxy.arm(None);
    assert_eq!(request(&mut connect(&proxy), 1), Some(*b"ht"));
}

#[test]
fn a_plugin_is_killed_at_its_request() {
    let proxy = Proxy::start(&grpc_like_server()).unwrap();
    proxy.arm(Some((Point::Request(0), Fault::Kill)));
    let mut plugin = std::process::Command::new("sleep").arg("100").spawn().unwrap();
    let mut client = connect(&proxy);
    let asked = thread::spawn(move || request(&mut client, 1));
    proxy.plugin(plugin.id());
    assert_eq!(asked.join().unwrap(), None);
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&plugin.wait().unwrap()), Some(9));
}
