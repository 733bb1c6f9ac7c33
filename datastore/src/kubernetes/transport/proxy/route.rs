//! [`Route`]: connections through a proxy.

use std::fmt;
use std::io;
use std::sync::Arc;

use data_encoding::BASE64;
use hyper::Uri;
use kube::Config;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::{Login, Protocol, Proxy, Stream, socks5};
use crate::dial::{authority, host};
use crate::kubernetes::tls;

/// Maximum size in bytes of the header of a proxy's response.
const MAX_HEADER_LENGTH: usize = 16 << 10;

/// The way to servers through one proxy.
pub(in crate::kubernetes::transport) struct Route {
    proxy: Proxy,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl Route {
    /// Prepares connections. The CA certificates of this machine verify the certificate of a proxy
    /// with TLS.
    pub(in crate::kubernetes::transport) fn new(proxy: Proxy) -> io::Result<Route> {
        let tls = match proxy.protocol {
            Protocol::Http | Protocol::Socks5 => None,
            Protocol::Https => {
                let own = tls::client_config(&Config::new(proxy.address.clone()));
                let mut config = own.map_err(|error| io::Error::other(error.to_string()))?;
                config.alpn_protocols = vec![b"http/1.1".to_vec()];
                let name = ServerName::try_from(host(&proxy.address).to_owned())
                    .map_err(io::Error::other)?;
                Some((TlsConnector::from(Arc::new(config)), name))
            }
        };
        Ok(Route { proxy, tls })
    }

    /// Returns the URL of the proxy, for its host and port alone.
    pub(in crate::kubernetes::transport) fn address(&self) -> &Uri {
        &self.proxy.address
    }

    /// Asks the proxy at the other end of `stream` for a connection to `server`.
    pub(in crate::kubernetes::transport) async fn open(
        &self,
        stream: TcpStream,
        server: &Uri,
    ) -> io::Result<Stream> {
        let mut stream: Stream = match &self.tls {
            None => Box::new(stream),
            Some((connector, name)) => Box::new(connector.connect(name.clone(), stream).await?),
        };
        let login = self.proxy.login.as_ref();
        match self.proxy.protocol {
            Protocol::Http | Protocol::Https => {
                open_tunnel(&mut stream, login, &authority(server)).await?
            }
            Protocol::Socks5 => socks5::open(&mut stream, login, server).await?,
        }
        Ok(stream)
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.proxy, f)
    }
}

/// Sends `CONNECT`, and reads the response.
async fn open_tunnel(stream: &mut Stream, login: Option<&Login>, target: &str) -> io::Result<()> {
    let mut request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n");
    if let Some(Login { user, password }) = login {
        let pair = BASE64.encode(format!("{user}:{password}").as_bytes());
        request.push_str(&format!("Proxy-Authorization: Basic {pair}\r\n"));
    }
    request.push_str("\r\n");
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let refusal = match (read_status(stream).await?, login) {
        (200..=299, _) => return Ok(()),
        // tinyproxy answers 401.
        (code @ (401 | 407), None) => format!(
            "the proxy demands a user and a password ({code}); write them into its URL, as in \
             http://USER:PASSWORD@HOST:PORT"
        ),
        (code @ (401 | 407), Some(_)) => {
            format!("the proxy refuses the user and the password of its URL ({code})")
        }
        (code, _) => format!("the proxy refuses the connection to {target} (HTTP status {code})"),
    };
    Err(io::Error::new(io::ErrorKind::PermissionDenied, refusal))
}

/// Reads the header of a response up to its end and no further, because the server's bytes follow.
/// Returns the status.
async fn read_status(stream: &mut Stream) -> io::Result<u16> {
    let mut header = Vec::new();
    while !header.ends_with(b"\r\n\r\n") && !header.ends_with(b"\n\n") {
        if header.len() == MAX_HEADER_LENGTH {
            return Err(invalid("the header of the proxy's response does not end"));
        }
        header.push(stream.read_u8().await.map_err(closed)?);
    }
    let header = String::from_utf8_lossy(&header);
    let mut words = header.split_ascii_whitespace();
    let is_http = words
        .next()
        .is_some_and(|version| version.starts_with("HTTP/1."));
    let code = words
        .next()
        .filter(|_| is_http)
        .and_then(|code| code.parse().ok());
    code.ok_or_else(|| invalid("the proxy's response is not HTTP; compare the scheme of its URL"))
}

fn closed(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            io::Error::new(error.kind(), "the proxy closed the connection")
        }
        _ => error,
    }
}

fn invalid(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the request of a tunnel, its outcome, and the bytes that are left in the stream.
    async fn tunnel(login: Option<&Login>, answer: &[u8]) -> (String, Result<(), String>, Vec<u8>) {
        let (io, mut peer) = tokio::io::duplex(1 << 16);
        peer.write_all(answer).await.unwrap();
        let mut stream: Stream = Box::new(io);
        let outcome = open_tunnel(&mut stream, login, "api.test:6443")
            .await
            .map_err(|error| error.to_string());
        let mut request = vec![0; 4096];
        let length = peer.read(&mut request).await.unwrap();
        drop(peer);
        let mut left = Vec::new();
        stream.read_to_end(&mut left).await.unwrap();
        (
            String::from_utf8_lossy(&request[..length]).into_owned(),
            outcome,
            left,
        )
    }

    #[tokio::test]
    async fn tunnel_request_names_the_server_and_leaves_its_bytes_unread() {
        let (request, outcome, left) = tunnel(
            None,
            b"HTTP/1.0 200 Connection established\r\nA: b\r\n\r\nhello",
        )
        .await;
        assert_eq!(
            request,
            "CONNECT api.test:6443 HTTP/1.1\r\nHost: api.test:6443\r\n\r\n"
        );
        assert_eq!((outcome, &*left), (Ok(()), &b"hello"[..]));
        let login = Login {
            user: "u".into(),
            password: "p".into(),
        };
        let (request, outcome, _) = tunnel(Some(&login), b"HTTP/1.1 200\r\n\r\n").await;
        assert!(
            request.contains("\r\nProxy-Authorization: Basic dTpw\r\n") && outcome.is_ok(),
            "{request}"
        );
    }

    #[tokio::test]
    async fn refusal_of_a_proxy_is_named_without_the_password() {
        let login = Login {
            user: "u".into(),
            password: "secret".into(),
        };
        for (login, answer, expected) in [
            (
                None,
                &b"HTTP/1.1 407 Auth\r\n\r\n"[..],
                "demands a user and a password (407)",
            ),
            (
                Some(&login),
                b"HTTP/1.1 407 Auth\r\n\r\n",
                "refuses the user and the password of its URL (407)",
            ),
            (
                Some(&login),
                b"HTTP/1.0 401 Auth\r\n\r\n",
                "refuses the user and the password of its URL (401)",
            ),
            (
                Some(&login),
                b"HTTP/1.1 403 Filtered\r\n\r\n",
                "refuses the connection to api.test:6443 (HTTP status 403)",
            ),
            (None, b"SSH-2.0\r\n\r\n", "is not HTTP"),
            (None, b"HTTP/1.1 abc\r\n\r\n", "is not HTTP"),
        ] {
            let (_, outcome, _) = tunnel(login, answer).await;
            let error = outcome.unwrap_err();
            assert!(
                error.contains(expected) && !error.contains("secret"),
                "{expected}: {error}"
            );
        }
    }

    #[tokio::test]
    async fn unfinished_response_of_a_proxy_is_an_error() {
        let (_, outcome, _) = tunnel(None, &[b'x'; MAX_HEADER_LENGTH + 1]).await;
        assert!(outcome.unwrap_err().contains("does not end"));
        let (io, peer) = tokio::io::duplex(1 << 10);
        drop(peer);
        let mut stream: Stream = Box::new(io);
        assert!(
            read_status(&mut stream)
                .await
                .unwrap_err()
                .to_string()
                .contains("closed the connection")
        );
    }

    #[test]
    fn route_has_tls_to_the_proxy_only_for_https() {
        let route = |url: &str| Route::new(Proxy::parse(url).unwrap());
        assert!(route("https://proxy:3129").unwrap().tls.is_some());
        assert!(route("http://me:secret@proxy:3129").unwrap().tls.is_none());
        assert_eq!(
            route("http://me:secret@proxy:3129").unwrap().to_string(),
            "http://proxy:3129"
        );
    }
}
