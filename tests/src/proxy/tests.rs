//! Tests of the proxy before a server that records its requests.

use std::pin::Pin;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio_rustls::rustls::pki_types::ServerName;

use super::*;

type Asked = Arc<Mutex<Vec<String>>>;

/// Starts a server that responds to each request with `abcdefghij`. Returns its address and its
/// requests.
fn server(tls: Option<TlsAcceptor>) -> (String, Asked) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let asked = Asked::default();
    let shared = asked.clone();
    thread::spawn(move || {
        block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (asked, tls) = (shared.clone(), tls.clone());
                let service = service_fn(move |request: Request<Incoming>| {
                    asked.lock().unwrap().push(request.uri().path().to_owned());
                    async { Ok::<_, hyper::Error>(Response::new("abcdefghij".to_owned())) }
                });
                let http2 = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(async move {
                    match tls {
                        None => http2.serve_connection(TokioIo::new(stream), service).await,
                        Some(tls) => {
                            http2
                                .serve_connection(
                                    TokioIo::new(tls.accept(stream).await.unwrap()),
                                    service,
                                )
                                .await
                        }
                    }
                });
            }
        });
    });
    (address, asked)
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

type Client = SendRequest<String>;

async fn connect(proxy: &Proxy) -> Option<Client> {
    let stream = tokio::net::TcpStream::connect(("127.0.0.1", proxy.port))
        .await
        .ok()?;
    let (client, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .ok()?;
    tokio::spawn(connection);
    Some(client)
}

/// Returns status and body; `None` if the connection broke first.
async fn ask(client: Option<Client>, path: &str) -> Option<(u16, String)> {
    let request = Request::post(format!("http://proxy{path}"))
        .body("question".to_owned())
        .unwrap();
    let answer = client?.send_request(request).await.ok()?;
    let code = answer.status().as_u16();
    let mut body = answer.into_body();
    let mut text = Vec::new();
    while let Some(frame) =
        std::future::poll_fn(|context| std::pin::Pin::new(&mut body).poll_frame(context)).await
    {
        text.extend(frame.map(Frame::into_data).ok()?.unwrap_or(Bytes::new()));
    }
    Some((code, String::from_utf8(text).unwrap()))
}

fn answer() -> Option<(u16, String)> {
    Some((200, "abcdefghij".to_owned()))
}

#[test]
fn proxy_without_a_fault_forwards_and_counts_all_requests() {
    let (address, asked) = server(None);
    let proxy = Proxy::start(&address).unwrap();
    block_on(async {
        let client = connect(&proxy).await;
        assert_eq!(ask(client.clone(), "/a").await, answer());
        assert_eq!(ask(client, "/b?c").await, answer());
    });
    assert_eq!(
        proxy.traffic(),
        Traffic {
            connections: 1,
            requests: 2,
            answers: 2
        }
    );
    assert_eq!(proxy.requests(), ["POST /a", "POST /b?c"]);
    assert_eq!(*asked.lock().unwrap(), ["/a", "/b"]);
}

#[test]
fn cut_request_misses_the_server_and_cut_response_reaches_the_server() {
    let cut = [
        (Point::Request(1), Fault::Cut, 1),
        (Point::Answer(1), Fault::Cut, 2),
    ];
    for (point, fault, reaches) in
        cut.into_iter()
            .chain([(Point::Answer(1), Fault::CutMidAnswer, 2)])
    {
        let (address, asked) = server(None);
        let proxy = Proxy::start(&address).unwrap();
        proxy.arm(Some((point, fault)));
        block_on(async {
            let client = connect(&proxy).await;
            assert_eq!(ask(client.clone(), "/a").await, answer());
            assert!(!proxy.fired());
            assert_eq!(ask(client, "/b").await, None, "{point:?} {fault:?}");
            assert!(proxy.fired());
            assert_eq!(asked.lock().unwrap().len(), reaches);
            assert_eq!(
                ask(connect(&proxy).await, "/c").await,
                answer(),
                "a new connection works"
            );
        });
    }
}

#[test]
fn late_request_reaches_the_server_after_its_connection_is_cut() {
    let (address, asked) = server(None);
    let proxy = Proxy::start(&address).unwrap();
    proxy.arm(Some((
        Point::Request(0),
        Fault::Late(Duration::from_millis(20)),
    )));
    assert_eq!(
        block_on(async { ask(connect(&proxy).await, "/a").await }),
        None
    );
    proxy.await_late().unwrap();
    assert_eq!(*asked.lock().unwrap(), ["/a"]);
}

#[test]
fn refusal_replaces_the_response_of_the_server() {
    let (address, asked) = server(None);
    let proxy = Proxy::start(&address).unwrap();
    block_on(async {
        let client = connect(&proxy).await;
        for (point, reaches) in [(Point::First("POST", "/a"), 0), (Point::Answer(0), 1)] {
            proxy.arm(Some((point, Fault::Refuse(Refusal::of(409)))));
            let (code, body) = ask(client.clone(), "/a").await.unwrap();
            assert!(code == 409 && body.contains("AlreadyExists"), "{body}");
            assert_eq!(asked.lock().unwrap().len(), reaches);
            assert_eq!(
                ask(client.clone(), "/b").await,
                answer(),
                "the connection stays"
            );
            asked.lock().unwrap().clear();
        }
    });
}

#[test]
fn fault_gone_lasts_until_the_proxy_is_armed_again() {
    let (address, _) = server(None);
    let proxy = Proxy::start(&address).unwrap();
    block_on(async {
        let other = connect(&proxy).await;
        assert_eq!(ask(other.clone(), "/a").await, answer());
        for away in [true, false] {
            match away {
                true => proxy.go_away(),
                false => proxy.arm(Some((Point::Request(0), Fault::Gone))),
            }
            assert_eq!(ask(connect(&proxy).await, "/a").await, None);
            assert_eq!(
                ask(other.clone(), "/a").await,
                None,
                "connections that were there break too"
            );
            proxy.arm(None);
            assert_eq!(ask(connect(&proxy).await, "/a").await, answer());
        }
    });
}

#[test]
fn held_request_waits_for_resume_and_delayed_request_for_its_time() {
    let (address, asked) = server(None);
    let proxy = Proxy::start(&address).unwrap();
    proxy.arm(Some((Point::Request(0), Fault::Hold)));
    thread::scope(|scope| {
        let client = scope.spawn(|| block_on(async { ask(connect(&proxy).await, "/a").await }));
        proxy.await_held().unwrap();
        assert!(asked.lock().unwrap().is_empty());
        proxy.resume();
        assert_eq!(client.join().unwrap(), answer());
    });
    asked.lock().unwrap().clear();
    proxy.arm(Some((
        Point::First("POST", "/a"),
        Fault::Delay(Duration::from_millis(500)),
    )));
    block_on(async {
        let client = connect(&proxy).await;
        let answers = tokio::join!(ask(client.clone(), "/a"), ask(client, "/b"));
        assert_eq!(answers, (answer(), answer()));
    });
    assert_eq!(*asked.lock().unwrap(), ["/b", "/a"]);
}

/// A body that ends after a pause.
struct SlowBody {
    pause: Pin<Box<tokio::time::Sleep>>,
    has_ended: Arc<AtomicBool>,
}

impl Body for SlowBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.has_ended.load(Ordering::SeqCst) {
            return Poll::Ready(None);
        }
        self.pause.as_mut().poll(context).map(|()| {
            self.has_ended.store(true, Ordering::SeqCst);
            Some(Ok(Frame::data("question".into())))
        })
    }
}

/// A program that is stopped while its request is held sends no further byte of the request.
#[test]
fn request_counts_as_held_when_its_body_has_arrived() {
    let (address, _) = server(None);
    let proxy = Proxy::start(&address).unwrap();
    proxy.arm(Some((Point::Request(0), Fault::Hold)));
    let has_ended = Arc::<AtomicBool>::default();
    thread::scope(|scope| {
        let client = scope.spawn(|| {
            block_on(async {
                let address = ("127.0.0.1", proxy.port);
                let stream = tokio::net::TcpStream::connect(address).await.unwrap();
                let io = TokioIo::new(stream);
                let (mut client, connection) = handshake(TokioExecutor::new(), io).await.unwrap();
                tokio::spawn(connection);
                let body = SlowBody {
                    pause: Box::pin(tokio::time::sleep(Duration::from_millis(200))),
                    has_ended: has_ended.clone(),
                };
                let request = Request::put("http://proxy/a").body(body).unwrap();
                client.send_request(request).await.unwrap().status()
            })
        });
        proxy.await_held().unwrap();
        let has_arrived = has_ended.load(Ordering::SeqCst);
        proxy.resume();
        assert_eq!(client.join().unwrap(), 200);
        assert!(has_arrived, "the body was on its way");
    });
}

#[test]
fn proxy_holds_several_requests_and_forwards_the_rest() {
    let (address, asked) = server(None);
    let proxy = Proxy::start(&address).unwrap();
    proxy.arm_all(&[
        (Point::First("POST", "/a"), Fault::Hold),
        (Point::First("POST", "/b"), Fault::Hold),
    ]);
    thread::scope(|scope| {
        let held = ["/a", "/b"]
            .map(|path| scope.spawn(|| block_on(async { ask(connect(&proxy).await, path).await })));
        proxy.await_held().unwrap();
        assert_eq!(
            block_on(async { ask(connect(&proxy).await, "/a").await }),
            answer(),
            "the second of its kind"
        );
        assert_eq!(*asked.lock().unwrap(), ["/a"]);
        proxy.resume();
        for client in held {
            assert_eq!(client.join().unwrap(), answer());
        }
    });
    assert_eq!((asked.lock().unwrap().len(), proxy.faults()), (3, 2));
}

#[test]
fn faults_in_turn_alternate() {
    const TURNS: [Fault; 2] = [
        Fault::Refuse(Refusal {
            code: 500,
            retry_after: None,
        }),
        Fault::Cut,
    ];
    let (address, asked) = server(None);
    let proxy = Proxy::start(&address).unwrap();
    proxy.arm(Some((Point::EachNth(2), Fault::InTurn(&TURNS))));
    let codes: Vec<_> = (0..8)
        .map(|_| block_on(async { ask(connect(&proxy).await, "/a").await }).map(|(code, _)| code))
        .collect();
    assert_eq!(
        codes,
        [
            Some(200),
            Some(500),
            Some(200),
            None,
            Some(200),
            Some(500),
            Some(200),
            None
        ]
    );
    assert_eq!((asked.lock().unwrap().len(), proxy.faults()), (4, 4));
}

#[test]
fn plugin_is_killed_at_the_armed_request() {
    let (address, _) = server(None);
    let proxy = Proxy::start(&address).unwrap();
    proxy.arm(Some((Point::Request(0), Fault::Kill)));
    let mut plugin = Command::new("sleep").arg("100").spawn().unwrap();
    thread::scope(|scope| {
        let client = scope.spawn(|| block_on(async { ask(connect(&proxy).await, "/a").await }));
        proxy.plugin(plugin.id());
        assert_eq!(client.join().unwrap(), None);
    });
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&plugin.wait().unwrap()),
        Some(9)
    );
}

fn certificate(protocol: Protocol) -> ServerCertificate {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".into()]).unwrap();
    ServerCertificate {
        certificate: made.cert.pem(),
        key: made.signing_key.serialize_pem(),
        protocol,
    }
}

#[test]
fn tls_proxy_speaks_the_offered_protocol_and_presents_the_set_certificate() {
    let behind = certificate(Protocol::Http2);
    let (address, asked) = server(Some(behind.acceptor().unwrap()));
    let (first, second) = (certificate(Protocol::Http2), certificate(Protocol::Http1));
    let proxy = Proxy::start_tls(&address, &behind.certificate, &first).unwrap();
    let shake = |authority: &str| {
        let connector = tls::connector(authority).unwrap();
        block_on(async {
            let stream = tokio::net::TcpStream::connect(("127.0.0.1", proxy.port))
                .await
                .unwrap();
            let name = ServerName::try_from("127.0.0.1").unwrap();
            let (mut client, connection) = handshake(
                TokioExecutor::new(),
                TokioIo::new(connector.connect(name, stream).await.ok()?),
            )
            .await
            .ok()?;
            tokio::spawn(connection);
            let request = Request::get("https://proxy/h2")
                .body(String::new())
                .unwrap();
            client
                .send_request(request)
                .await
                .ok()
                .map(|answer| answer.status().as_u16())
        })
    };
    assert_eq!(shake(&first.certificate), Some(200));
    proxy.present(&second).unwrap();
    assert_eq!(shake(&first.certificate), None);

    // ureq supports HTTP/1.1 only.
    let root = ureq::tls::Certificate::from_pem(second.certificate.as_bytes()).unwrap();
    let tls = ureq::tls::TlsConfig::builder()
        .root_certs(ureq::tls::RootCerts::new_with_certs(&[root]))
        .build();
    let agent = ureq::Agent::from(
        ureq::Agent::config_builder()
            .tls_config(tls)
            .proxy(None)
            .build(),
    );
    let mut answer = agent
        .get(format!("{}/h1", proxy.endpoint()))
        .call()
        .unwrap();
    assert_eq!(answer.body_mut().read_to_string().unwrap(), "abcdefghij");
    assert_eq!(*asked.lock().unwrap(), ["/h2", "/h1"]);
}
