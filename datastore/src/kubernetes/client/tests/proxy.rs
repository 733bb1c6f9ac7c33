//! A proxy between the client and the server.

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::TcpStream;

use super::*;
use crate::config::{ClientPlace, ProxyVariables};

/// Starts a proxy that answers each `CONNECT` with `status`, and relays if that is 200. Returns its
/// address and the first lines of the requests that it has received.
async fn start(status: u16) -> (String, Arc<std::sync::Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let received = Arc::<std::sync::Mutex<Vec<String>>>::default();
    let lines = Arc::clone(&received);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, status, Arc::clone(&lines)));
        }
    });
    (address, received)
}

async fn serve(mut stream: TcpStream, status: u16, lines: Arc<std::sync::Mutex<Vec<String>>>) {
    let mut header = Vec::new();
    while !header.ends_with(b"\r\n\r\n") {
        header.push(stream.read_u8().await.unwrap());
    }
    let header = String::from_utf8(header).unwrap();
    let line = header.lines().next().unwrap().to_owned();
    let target = line.split(' ').nth(1).unwrap().to_owned();
    lines.lock().unwrap().push(line);
    stream
        .write_all(format!("HTTP/1.1 {status} as scripted\r\n\r\n").as_bytes())
        .await
        .unwrap();
    if status == 200 {
        let mut server = TcpStream::connect(target).await.unwrap();
        let _ = copy_bidirectional(&mut stream, &mut server).await;
    }
}

/// Writes `proxy-url` into the kubeconfig of `server`, and returns the settings of a client that
/// follows it.
fn config(server: &Server, proxy_url: &str, deadline: Duration) -> KubernetesConfig {
    let text = std::fs::read(server.file()).unwrap();
    let mut kubeconfig: Value = serde_json::from_slice(&text).unwrap();
    kubeconfig["clusters"][0]["cluster"]["proxy-url"] = json!(proxy_url);
    std::fs::write(server.file(), kubeconfig.to_string()).unwrap();
    KubernetesConfig {
        place: ClientPlace::OutsideCluster(ProxyVariables::default()),
        ..server.config(deadline)
    }
}

#[tokio::test]
async fn requests_pass_through_the_proxy_of_the_kubeconfig() {
    for alpn in ["h2", "http/1.1"] {
        let server = Server::start(&[alpn], &[]).await;
        let (address, lines) = start(200).await;
        let client = ApiClient::new(&config(&server, &format!("http://{address}"), LONG));
        for _ in 0..2 {
            client.send(&ApiRequest::get("/a")).await.unwrap();
        }
        assert_eq!(
            server.requests(),
            ["GET /a Bearer first", "GET /a Bearer first"]
        );
        assert_eq!(
            *lines.lock().unwrap(),
            [format!("CONNECT localhost:{} HTTP/1.1", server.port)],
            "{alpn}"
        );
    }
}

#[tokio::test]
async fn refusal_of_the_proxy_is_an_unsent_request() {
    let server = Server::start(&["h2"], &[]).await;
    let (address, lines) = start(403).await;
    let client = super::client(&config(
        &server,
        &format!("http://me:secret@{address}"),
        LONG,
    ))
    .await
    .unwrap();
    let failure = client
        .send(Request::get("/a").body(Body::empty()).unwrap())
        .await
        .unwrap_err();
    let failure = RequestError::from(failure);
    assert!(matches!(failure, RequestError::NotSent(_)), "{failure}");
    let text = failure.to_string();
    assert!(
        text.contains(&format!("proxy http://{address}: ")) && text.contains("403"),
        "{text}"
    );
    assert!(
        !text.contains("secret") && !lines.lock().unwrap().is_empty(),
        "{text}"
    );
    assert!(server.requests().is_empty());
}
