//! [`select_proxy`]: the proxy of a server by the variables of the environment, as Go's `httpproxy`
//! reads them.

use std::net::IpAddr;

use hyper::Uri;
use libcalico::net::Cidr;

use super::{Proxy, ProxyUrlError};
use crate::config::ProxyVariables;
use crate::dial::{host, port};

/// Returns the names of the variables that select the proxy of `server`, for errors.
pub(in crate::kubernetes) fn variables_for(server: &Uri) -> &'static str {
    if is_encrypted(server) {
        "HTTPS_PROXY or https_proxy"
    } else {
        "HTTP_PROXY or http_proxy"
    }
}

/// Returns the proxy of `server`, or `None` if no proxy is configured or `NO_PROXY` excludes the
/// server. A loopback address is always reached directly.
pub(in crate::kubernetes) fn select_proxy(
    variables: &ProxyVariables,
    server: &Uri,
) -> Result<Option<Proxy>, ProxyUrlError> {
    let url = if is_encrypted(server) {
        &variables.https
    } else {
        &variables.http
    };
    if url.is_empty() || is_excluded(&variables.excluded, host(server), port(server)) {
        return Ok(None);
    }
    // Go accepts an address without a scheme.
    let proxy = if url.contains("://") {
        Proxy::parse(url)
    } else {
        Proxy::parse(&format!("http://{url}"))
    };
    proxy.map(Some)
}

fn is_encrypted(server: &Uri) -> bool {
    server.scheme_str() != Some("http")
}

fn is_excluded(entries: &str, host: &str, port: u16) -> bool {
    let host = host.to_ascii_lowercase();
    let ip = host.parse::<IpAddr>().ok().map(|ip| ip.to_canonical());
    if host == "localhost" || ip.is_some_and(|ip| ip.is_loopback()) {
        return true;
    }
    entries
        .split(',')
        .any(|entry| excludes(&entry.trim().to_ascii_lowercase(), &host, ip, port))
}

/// Returns true if one entry of `NO_PROXY` names the server: `*`, a network, an address, a domain
/// with its subdomains, or with a leading `.` or `*.` the subdomains alone. A port limits an
/// address or a domain.
fn excludes(entry: &str, host: &str, ip: Option<IpAddr>, port: u16) -> bool {
    if entry == "*" {
        return true;
    }
    if let Ok(network) = entry.parse::<Cidr>() {
        return ip.is_some_and(|ip| network.contains(ip));
    }
    let (name, only_port) = split_port(entry);
    if name.is_empty() || only_port.is_some_and(|only| only != port.to_string()) {
        return false;
    }
    if let Ok(address) = name.parse::<IpAddr>() {
        return ip == Some(address.to_canonical());
    }
    if ip.is_some() {
        return false;
    }
    let subdomains = name.strip_prefix("*.").or_else(|| name.strip_prefix('.'));
    let domain = subdomains.unwrap_or(name);
    let is_subdomain = host
        .strip_suffix(domain)
        .is_some_and(|before| before.ends_with('.'));
    is_subdomain || (subdomains.is_none() && host == domain)
}

/// Splits `HOST:PORT` and `[IPV6]:PORT`. An empty port counts as missing.
fn split_port(entry: &str) -> (&str, Option<&str>) {
    let Some((name, port)) = entry.rsplit_once(':') else {
        return (entry, None);
    };
    let bracketed = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    match bracketed {
        Some(address) => (address, Some(port).filter(|port| !port.is_empty())),
        None if name.contains(':') => (entry, None),
        None => (name, Some(port).filter(|port| !port.is_empty())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(https: &str, http: &str, excluded: &str) -> ProxyVariables {
        ProxyVariables {
            https: https.into(),
            http: http.into(),
            excluded: excluded.into(),
        }
    }

    fn selected(variables: &ProxyVariables, server: &str) -> Option<String> {
        select_proxy(variables, &server.parse().unwrap())
            .unwrap()
            .map(|proxy| proxy.to_string())
    }

    #[test]
    fn proxy_is_selected_by_the_scheme_of_the_server() {
        let both = variables("http://s:1", "plain:2", "");
        assert_eq!(
            selected(&both, "https://api.example.com:6443").as_deref(),
            Some("http://s:1")
        );
        assert_eq!(
            selected(&both, "http://api.example.com").as_deref(),
            Some("http://plain:2")
        );
        assert_eq!(
            selected(&variables("", "http://p", ""), "https://api.example.com"),
            None
        );
        assert_eq!(
            selected(&variables("socks5://s", "", ""), "https://10.0.0.1").as_deref(),
            Some("socks5://s:1080")
        );
        let invalid = variables("ftp://p", "", "*.example.com");
        assert!(select_proxy(&invalid, &Uri::from_static("https://10.0.0.1")).is_err());
        assert_eq!(
            selected(&invalid, "https://api.example.com"),
            None,
            "the invalid proxy is not necessary"
        );
    }

    #[test]
    fn loopback_is_reached_directly() {
        let set = variables("http://s:1", "http://p:1", "");
        for server in [
            "https://localhost:6443",
            "https://127.0.0.1:6443",
            "http://127.9.9.9",
            "https://[::1]:6443",
        ] {
            assert_eq!(selected(&set, server), None, "{server}");
        }
        assert!(selected(&set, "https://localhost.example.com").is_some());
    }

    /// The results equal those of Go 1.27's `golang.org/x/net/http/httpproxy`.
    #[test]
    fn no_proxy_entries_exclude_hosts_domains_ports_and_networks() {
        for (entries, host, is_direct) in [
            ("*", "api.example.com", true),
            ("other, *", "10.0.0.1", true),
            ("example.com", "example.com", true),
            ("example.com", "API.Example.com", true),
            ("Example.COM", "api.example.com", true),
            ("example.com", "notexample.com", false),
            (".example.com", "example.com", false),
            (".example.com", "api.example.com", true),
            ("*.example.com", "example.com", false),
            ("*.example.com", "a.b.example.com", true),
            ("example.com:6443", "api.example.com", true),
            ("example.com:443", "api.example.com", false),
            ("example.com:", "api.example.com", true),
            ("10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1:6443", "10.0.0.1", true),
            ("10.0.0.1:443", "10.0.0.1", false),
            ("10.0.0.0/8", "10.1.2.3", true),
            ("10.9.9.9/8", "10.1.2.3", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.0/33", "10.0.0.1", false),
            ("fd00::/8", "[fd00::1]", true),
            ("fd00::1", "[fd00::1]", true),
            ("[fd00::1]:6443", "[fd00::1]", true),
            ("[fd00::1]:443", "[fd00::1]", false),
            ("::ffff:10.0.0.1", "10.0.0.1", true),
            (" , ,:80,", "api.example.com", false),
            ("10.0.0", "10.0.0.1", false),
            ("0.1", "10.0.0.1", false),
        ] {
            let found = selected(
                &variables("http://s:1", "", entries),
                &format!("https://{host}:6443"),
            );
            assert_eq!(found.is_none(), is_direct, "{entries} {host}");
        }
    }
}
