//! URLs of servers. [`Uri`] also parses texts that are none: a host without a scheme, and a port
//! above 65535, which it ignores.

use hyper::Uri;

/// A reason why a text is not the URL of a server.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServerUrlError {
    #[error("{0}; write https://HOST:PORT")]
    Syntax(#[from] hyper::http::uri::InvalidUri),
    #[error("the scheme is not http or https, or the host is missing; write https://HOST:PORT")]
    SchemeOrHost,
    #[error("the port is not a number up to 65535; write https://HOST:PORT")]
    Port,
    #[error("a path follows a host without a scheme; write https://HOST:PORT/PATH")]
    Path,
}

/// Parses a URL with a scheme and a host.
pub(crate) fn parse(text: &str) -> Result<Uri, ServerUrlError> {
    let url: Uri = text.parse()?;
    match (url.scheme_str(), url.host()) {
        (Some("http" | "https"), Some(host)) if !host.is_empty() => {}
        _ => return Err(ServerUrlError::SchemeOrHost),
    }
    if has_valid_port(&url) {
        Ok(url)
    } else {
        Err(ServerUrlError::Port)
    }
}

/// Parses a URL, or a host with or without a port, as kubectl accepts it. The scheme of the latter
/// is `https` if `is_encrypted`, else `http`.
pub(crate) fn parse_with_default_scheme(
    text: &str,
    is_encrypted: bool,
) -> Result<Uri, ServerUrlError> {
    if text.contains("://") {
        return parse(text);
    }
    let scheme = if is_encrypted { "https" } else { "http" };
    let url = parse(&format!("{scheme}://{text}"))?;
    if url.path() == "/" && url.query().is_none() {
        Ok(url)
    } else {
        Err(ServerUrlError::Path)
    }
}

/// Returns false if the URL has a port that is not a number up to 65535. Connections would use the
/// scheme's port.
pub(crate) fn has_valid_port(url: &Uri) -> bool {
    let authority = url.authority().map_or("", |authority| authority.as_str());
    let address = authority
        .rsplit_once('@')
        .map_or(authority, |(_, address)| address);
    match address.rsplit_once(':') {
        Some((_, port)) if !port.is_empty() && !port.ends_with(']') => port.parse::<u16>().is_ok(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_without_a_scheme_gets_the_default_scheme() {
        for (text, is_encrypted, expected) in [
            ("127.0.0.1:8443", true, "https://127.0.0.1:8443/"),
            ("127.0.0.1:8080", false, "http://127.0.0.1:8080/"),
            ("localhost", true, "https://localhost/"),
            ("[fd00::1]:6443/", true, "https://[fd00::1]:6443/"),
            ("http://k:1/api", true, "http://k:1/api"),
            ("HTTPS://k:65535", false, "https://k:65535/"),
        ] {
            assert_eq!(
                parse_with_default_scheme(text, is_encrypted)
                    .unwrap()
                    .to_string(),
                expected
            );
        }
    }

    #[test]
    fn texts_that_are_no_server_url_are_refused() {
        for (text, reason) in [
            ("https://k:65536", "the port"),
            ("k:99999", "the port"),
            ("https://me:secret@[fd00::1]:99999/x", "the port"),
            ("ftp://k:1", "the scheme"),
            ("k:1/path", "a path"),
            ("https://", ""),
            ("", ""),
            ("a b", ""),
        ] {
            let error = parse_with_default_scheme(text, true)
                .unwrap_err()
                .to_string();
            assert!(
                error.starts_with(reason) && error.contains("write https://HOST:PORT"),
                "{text}: {error}"
            );
        }
        assert!(matches!(
            parse("127.0.0.1:8443"),
            Err(ServerUrlError::SchemeOrHost)
        ));
    }
}
