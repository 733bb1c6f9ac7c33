//! [`open`]: SOCKS 5 (RFC 1928), with a user and a password (RFC 1929). The proxy resolves names.

use std::io;
use std::net::IpAddr;

use hyper::Uri;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Login, Stream};
use crate::dial::{authority, host, port};

const VERSION: u8 = 5;
const NO_LOGIN: u8 = 0;
const USER_AND_PASSWORD: u8 = 2;
const LOGIN_VERSION: u8 = 1;
const CONNECT: u8 = 1;
const RESERVED: u8 = 0;
const IPV4: u8 = 1;
const DOMAIN: u8 = 3;
const IPV6: u8 = 4;

/// Asks the proxy at the other end of `stream` for a connection to `server`.
pub(super) async fn open(
    stream: &mut Stream,
    login: Option<&Login>,
    server: &Uri,
) -> io::Result<()> {
    select_method(stream, login).await?;
    let mut request = vec![VERSION, CONNECT, RESERVED];
    match host(server).parse() {
        Ok(IpAddr::V4(address)) => {
            request.push(IPV4);
            request.extend(address.octets());
        }
        Ok(IpAddr::V6(address)) => {
            request.push(IPV6);
            request.extend(address.octets());
        }
        Err(_) => {
            request.push(DOMAIN);
            append_text(&mut request, host(server), "the name of the server")?;
        }
    }
    request.extend(port(server).to_be_bytes());
    send(stream, &request).await?;
    let [version, reply, _, kind] = receive(stream).await?;
    check_version(version)?;
    if reply != 0 {
        let reason = format!(
            "the proxy refuses the connection to {}: {}",
            authority(server),
            reason_of(reply)
        );
        return Err(io::Error::new(io::ErrorKind::ConnectionRefused, reason));
    }
    skip_address(stream, kind).await
}

async fn select_method(stream: &mut Stream, login: Option<&Login>) -> io::Result<()> {
    let methods: &[u8] = if login.is_some() {
        &[NO_LOGIN, USER_AND_PASSWORD]
    } else {
        &[NO_LOGIN]
    };
    let count = u8::try_from(methods.len()).unwrap_or(u8::MAX);
    send(stream, &[&[VERSION, count][..], methods].concat()).await?;
    let [version, method] = receive(stream).await?;
    check_version(version)?;
    match (method, login) {
        (NO_LOGIN, _) => Ok(()),
        (USER_AND_PASSWORD, Some(login)) => log_in(stream, login).await,
        (_, None) => Err(refused(
            "the proxy demands a user and a password; write them into its URL, as in \
             socks5://USER:PASSWORD@HOST:PORT",
        )),
        (_, Some(_)) => Err(refused(
            "the proxy accepts neither a user with a password nor a connection without one",
        )),
    }
}

async fn log_in(stream: &mut Stream, login: &Login) -> io::Result<()> {
    let mut request = vec![LOGIN_VERSION];
    append_text(&mut request, &login.user, "the proxy's user")?;
    append_text(&mut request, &login.password, "the proxy's password")?;
    send(stream, &request).await?;
    let [_, status] = receive(stream).await?;
    if status == 0 {
        Ok(())
    } else {
        Err(refused(
            "the proxy refuses the user and the password of its URL",
        ))
    }
}

/// Appends a text after its length in one byte.
fn append_text(request: &mut Vec<u8>, text: &str, what: &str) -> io::Result<()> {
    let too_long = |_| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{what} has more than 255 bytes"),
        )
    };
    request.push(u8::try_from(text.len()).map_err(too_long)?);
    request.extend(text.as_bytes());
    Ok(())
}

async fn skip_address(stream: &mut Stream, kind: u8) -> io::Result<()> {
    match kind {
        IPV4 => receive::<6>(stream).await.map(drop),
        IPV6 => receive::<18>(stream).await.map(drop),
        DOMAIN => {
            let [length] = receive(stream).await?;
            let mut rest = vec![0; usize::from(length) + 2];
            stream.read_exact(&mut rest).await.map(drop)
        }
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the proxy's response has an unknown kind of address",
        )),
    }
}

async fn send(stream: &mut Stream, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await
}

async fn receive<const N: usize>(stream: &mut Stream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    match stream.read_exact(&mut bytes).await {
        Ok(_) => Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(io::Error::new(
            error.kind(),
            "the proxy closed the connection",
        )),
        Err(error) => Err(error),
    }
}

fn check_version(version: u8) -> io::Result<()> {
    if version == VERSION {
        return Ok(());
    }
    let reason = "the proxy's response is not SOCKS 5; compare the scheme of its URL";
    Err(io::Error::new(io::ErrorKind::InvalidData, reason))
}

fn refused(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, reason)
}

fn reason_of(reply: u8) -> String {
    let reason = match reply {
        1 => "general failure",
        2 => "not allowed by its rules",
        3 => "network unreachable",
        4 => "host unreachable",
        5 => "connection refused",
        6 => "TTL expired",
        7 => "command not supported",
        8 => "kind of address not supported",
        _ => return format!("code {reply}"),
    };
    reason.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays a proxy that sends `answers`. Returns the bytes that it received, and the outcome.
    async fn play(
        login: Option<&Login>,
        server: &str,
        answers: &[&[u8]],
    ) -> (Vec<u8>, Result<(), String>) {
        let (io, mut peer) = tokio::io::duplex(1 << 12);
        peer.write_all(&answers.concat()).await.unwrap();
        let mut stream: Stream = Box::new(io);
        let outcome = open(&mut stream, login, &server.parse().unwrap())
            .await
            .map_err(|error| error.to_string());
        drop(stream);
        let mut received = Vec::new();
        peer.read_to_end(&mut received).await.unwrap();
        (received, outcome)
    }

    const DONE: &[u8] = &[5, 0, 0, 1, 10, 0, 0, 9, 0, 80];

    fn login(user: &str, password: &str) -> Login {
        Login {
            user: user.into(),
            password: password.into(),
        }
    }

    #[tokio::test]
    async fn request_names_the_server_by_name_or_address() {
        for (server, address) in [
            (
                "https://api:6443",
                &[3, 3, b'a', b'p', b'i', 0x19, 0x2b][..],
            ),
            ("https://10.0.0.1", &[1, 10, 0, 0, 1, 0x01, 0xbb]),
            (
                "http://[fd00::1]",
                &[4, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 80],
            ),
        ] {
            let (received, outcome) = play(None, server, &[&[5, 0], DONE]).await;
            assert_eq!(
                (received, outcome),
                ([&[5, 1, 0, 5, 1, 0][..], address].concat(), Ok(())),
                "{server}"
            );
        }
        for bound in [
            &[5, 0, 0, 3, 1, b'p', 0, 80][..],
            &[[5, 0, 0, 4].as_slice(), &[0; 18]].concat(),
        ] {
            assert_eq!(play(None, "https://api", &[&[5, 0], bound]).await.1, Ok(()));
        }
    }

    #[tokio::test]
    async fn user_and_password_are_sent_where_the_proxy_selects_them() {
        let (received, outcome) = play(
            Some(&login("u", "pw")),
            "https://h",
            &[&[5, 2], &[1, 0], DONE],
        )
        .await;
        let expected = [
            &[5, 2, 0, 2][..],
            &[1, 1, b'u', 2, b'p', b'w'],
            &[5, 1, 0, 3, 1, b'h', 0x01, 0xbb],
        ]
        .concat();
        assert_eq!((received, outcome), (expected, Ok(())));
        let (received, outcome) =
            play(Some(&login("u", "pw")), "https://h", &[&[5, 0], DONE]).await;
        assert_eq!(
            (received, outcome),
            (vec![5, 2, 0, 2, 5, 1, 0, 3, 1, b'h', 0x01, 0xbb], Ok(()))
        );
    }

    #[tokio::test]
    async fn refusal_of_a_socks_proxy_is_named_without_the_password() {
        let known = login("u", "secret");
        let long = login("u", &"secret".repeat(50));
        for (login, answers, expected) in [
            (None, &[&[5, 0xff][..]][..], "demands a user and a password"),
            (Some(&known), &[&[5, 0xff]], "accepts neither"),
            (
                Some(&known),
                &[&[5, 2], &[1, 1]],
                "refuses the user and the password",
            ),
            (Some(&long), &[&[5, 2]], "password has more than 255 bytes"),
            (
                None,
                &[&[5, 0], &[5, 2, 0, 1]],
                "connection to api.test:6443: not allowed by its rules",
            ),
            (None, &[&[5, 0], &[5, 5, 0, 1]], "connection refused"),
            (None, &[&[5, 0], &[5, 99, 0, 1]], "code 99"),
            (None, &[&[5, 0], &[5, 0, 0, 9]], "unknown kind of address"),
            (None, &[b"HTTP/1.1 400"], "is not SOCKS 5"),
        ] {
            let error = play(login, "https://api.test:6443", answers)
                .await
                .1
                .unwrap_err();
            assert!(
                error.contains(expected) && !error.contains("secret"),
                "{expected}: {error}"
            );
        }
    }

    #[tokio::test]
    async fn connection_that_a_socks_proxy_closes_is_an_error() {
        let (io, peer) = tokio::io::duplex(1 << 10);
        drop(peer);
        let mut stream: Stream = Box::new(io);
        assert!(
            receive::<2>(&mut stream)
                .await
                .unwrap_err()
                .to_string()
                .contains("closed the connection")
        );
    }
}
