//! [`Proxy`]: a proxy between this process and the API server. [`Route`] opens connections through
//! it.
//!
//! `rules` selects the proxy of a server by the environment, and `socks5` speaks the protocol of
//! that name.

mod route;
mod rules;
mod socks5;

use std::fmt;

use data_encoding::HEXLOWER_PERMISSIVE;
use hyper::Uri;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::dial::authority;

pub(super) use route::Route;
pub(in crate::kubernetes) use rules::{select_proxy, variables_for};

/// The address of a proxy and the way of asking it for a connection.
#[derive(Clone, PartialEq, Eq)]
pub(in crate::kubernetes) struct Proxy {
    protocol: Protocol,
    /// URL with host and port. Its scheme has no meaning.
    address: Uri,
    login: Option<Login>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    /// The method CONNECT of HTTP.
    Http,
    /// The method CONNECT over TLS.
    Https,
    /// SOCKS 5 (RFC 1928). The proxy resolves names.
    Socks5,
}

#[derive(Clone, PartialEq, Eq)]
struct Login {
    user: String,
    password: String,
}

/// The problem of a proxy's URL. The text does not quote the URL, which may contain a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(in crate::kubernetes) enum ProxyUrlError {
    /// The scheme is missing or unknown.
    #[error("the URL's scheme is not http, https or socks5; write for example http://HOST:PORT")]
    Scheme,
    /// The host is missing or invalid.
    #[error("the URL has no valid host; write for example http://HOST:PORT")]
    Host,
    /// The port is not a number from 1 to 65535.
    #[error("the URL's port is not a number from 1 to 65535")]
    Port,
    /// The user or the password is encoded incorrectly.
    #[error(
        "user or password of the URL are not percent-encoded text; write for example %40 for @"
    )]
    Login,
}

/// A byte stream: TCP, or TLS over another stream.
pub(super) trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// A stream of any type. HTTP is compiled for this type alone, because a copy for each type is
/// large.
pub(super) type Stream = Box<dyn Io>;

impl Proxy {
    /// Parses a URL with the scheme `http`, `https`, `socks5` or `socks5h`.
    pub(in crate::kubernetes) fn parse(url: &str) -> Result<Proxy, ProxyUrlError> {
        let (scheme, rest) = url.trim().split_once("://").ok_or(ProxyUrlError::Scheme)?;
        let (protocol, default_port) = match scheme.to_ascii_lowercase().as_str() {
            "http" => (Protocol::Http, 80),
            "https" => (Protocol::Https, 443),
            "socks5" | "socks5h" => (Protocol::Socks5, 1080),
            _ => return Err(ProxyUrlError::Scheme),
        };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (login, host) = match authority.rsplit_once('@') {
            Some((login, host)) => (Some(Login::parse(login).ok_or(ProxyUrlError::Login)?), host),
            None => (None, authority),
        };
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if !port.ends_with(']') => (name, port),
            _ => (host, ""),
        };
        let is_bracketed = name.starts_with('[') && name.ends_with(']');
        if name.is_empty() || (name.contains(':') && !is_bracketed) {
            return Err(ProxyUrlError::Host);
        }
        let port = match port {
            "" => default_port,
            port => port
                .parse::<u16>()
                .ok()
                .filter(|port| *port > 0)
                .ok_or(ProxyUrlError::Port)?,
        };
        let address = format!("http://{name}:{port}")
            .parse()
            .map_err(|_| ProxyUrlError::Host)?;
        Ok(Proxy {
            protocol,
            address,
            login,
        })
    }
}

impl Login {
    fn parse(text: &str) -> Option<Login> {
        let (user, password) = text.split_once(':').unwrap_or((text, ""));
        Some(Login {
            user: decode_percent(user)?,
            password: decode_percent(password)?,
        })
    }
}

fn decode_percent(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (digits, plain) = part.as_bytes().split_at_checked(2)?;
        bytes.extend(HEXLOWER_PERMISSIVE.decode(digits).ok()?);
        bytes.extend(plain);
    }
    String::from_utf8(bytes).ok()
}

// Without user and password.
impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.protocol {
            Protocol::Http => "http",
            Protocol::Https => "https",
            Protocol::Socks5 => "socks5",
        };
        write!(f, "{scheme}://{}", authority(&self.address))
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxy_url_yields_protocol_address_and_login() {
        for (url, shown, login) in [
            ("http://proxy", "http://proxy:80", None),
            ("HTTP://proxy:3128/", "http://proxy:3128", None),
            ("https://proxy", "https://proxy:443", None),
            ("socks5://10.0.0.1", "socks5://10.0.0.1:1080", None),
            ("socks5h://[fd00::1]:9050", "socks5://[fd00::1]:9050", None),
            ("http://[fd00::1]", "http://[fd00::1]:80", None),
            (
                "http://me:p%40ss%3a@proxy:8080",
                "http://proxy:8080",
                Some(("me", "p@ss:")),
            ),
            (
                "http://me@proxy:8080/path?a#b",
                "http://proxy:8080",
                Some(("me", "")),
            ),
            (
                "http://a:b:c@proxy:8080",
                "http://proxy:8080",
                Some(("a", "b:c")),
            ),
        ] {
            let proxy = Proxy::parse(url).unwrap();
            let found = proxy
                .login
                .as_ref()
                .map(|login| (&*login.user, &*login.password));
            assert_eq!((&*proxy.to_string(), found), (shown, login), "{url}");
        }
    }

    #[test]
    fn invalid_proxy_url_is_refused_without_quoting_it() {
        for (url, expected) in [
            ("", ProxyUrlError::Scheme),
            ("secret", ProxyUrlError::Scheme),
            ("ftp://me:secret@proxy", ProxyUrlError::Scheme),
            ("http://", ProxyUrlError::Host),
            ("http://me:secret@", ProxyUrlError::Host),
            ("http://:3128", ProxyUrlError::Host),
            ("http://fd00::1:3128", ProxyUrlError::Host),
            ("http://a secret", ProxyUrlError::Host),
            ("http://proxy:secret", ProxyUrlError::Port),
            ("http://proxy:0", ProxyUrlError::Port),
            ("http://proxy:65536", ProxyUrlError::Port),
            ("http://me:secret%4@proxy", ProxyUrlError::Login),
            ("http://me:secret%zz@proxy", ProxyUrlError::Login),
            ("http://me:secret%ff@proxy", ProxyUrlError::Login),
        ] {
            let error = Proxy::parse(url).unwrap_err();
            assert_eq!(error, expected, "{url}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
