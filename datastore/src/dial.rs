//! [`dial`]: opens a TCP connection to a server whose name may have several addresses, of both
//! families (RFC 8305).
//!
//! Attempts start one after another and then run in parallel, so an address that drops all packets
//! delays the connection only by the pause before the next attempt.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use hyper::Uri;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

/// Longest delay after which the next address is tried too, as RFC 8305 recommends.
const HEAD_START: Duration = Duration::from_millis(250);
const START_TIME_LIMIT: Duration = Duration::from_secs(2);

pub(crate) async fn dial(server: &Uri) -> io::Result<TcpStream> {
    let addresses = lookup_host((host(server), port(server))).await?;
    let stream = race(interleave_families(addresses), TcpStream::connect).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Returns the host of a URL, without the brackets of an IPv6 address.
pub(crate) fn host(server: &Uri) -> &str {
    server.host().unwrap_or_default().trim_matches(['[', ']'])
}

pub(crate) fn port(server: &Uri) -> u16 {
    server
        .port_u16()
        .unwrap_or(if server.scheme_str() == Some("http") {
            80
        } else {
            443
        })
}

/// Returns the host and the port of a URL, with the brackets of an IPv6 address.
pub(crate) fn authority(server: &Uri) -> String {
    format!("{}:{}", server.host().unwrap_or_default(), port(server))
}

/// Alternates between the two address families. A host with connectivity in only one family then
/// tries an address of that family first or second.
fn interleave_families(addresses: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut addresses = addresses.peekable();
    let is_first_family = addresses.peek().map(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) =
        addresses.partition(|address| Some(address.is_ipv6()) == is_first_family);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let mut all = Vec::new();
    while first.len() + second.len() > 0 {
        all.extend(first.next().into_iter().chain(second.next()));
    }
    all
}

/// Returns the first connection that succeeds. The next attempt starts after a delay, or when an
/// attempt fails.
async fn race<T, F: Future<Output = io::Result<T>>>(
    addresses: Vec<SocketAddr>,
    connect: impl Fn(SocketAddr) -> F,
) -> io::Result<T> {
    let (count, mut remaining) = (addresses.len(), addresses.into_iter());
    let head_start =
        HEAD_START.min(START_TIME_LIMIT / u32::try_from(count.max(1)).unwrap_or(u32::MAX));
    let (mut attempts, mut failures) = (FuturesUnordered::new(), Vec::new());
    loop {
        if let Some(address) = remaining.next() {
            let attempt = connect(address);
            attempts.push(async move { attempt.await.map_err(|error| (address, error)) });
        }
        let finished = match remaining.len() {
            0 => attempts.next().await,
            _ => timeout(head_start, attempts.next())
                .await
                .unwrap_or_default(),
        };
        match finished {
            Some(Ok(connection)) => return Ok(connection),
            Some(Err(failure)) => failures.push(failure),
            None => {}
        }
        if failures.len() == count {
            return Err(combined_error(failures));
        }
    }
}

fn combined_error(mut failures: Vec<(SocketAddr, io::Error)>) -> io::Error {
    match failures.pop() {
        None => io::Error::new(io::ErrorKind::NotFound, "the name has no address"),
        Some((_, only)) if failures.is_empty() => only,
        Some(last) => {
            let kind = last.1.kind();
            failures.push(last);
            let reasons: Vec<_> = failures
                .iter()
                .map(|(address, error)| format!("{address}: {error}"))
                .collect();
            io::Error::new(kind, reasons.join("; "))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Mutex;

    use tokio::net::TcpListener;
    use tokio::time::{Instant, sleep};

    use super::*;

    fn address(text: &str) -> SocketAddr {
        SocketAddr::new(text.parse().unwrap(), 6443)
    }

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| address(text)).collect()
    }

    /// Connects to one of `all`, of which only `answering` accepts the connection, `milliseconds`
    /// after its attempt starts. Returns when each attempt started, and when the connection
    /// succeeded, in milliseconds.
    async fn attempts(all: &[&str], answering: &str, milliseconds: u64) -> (Vec<u128>, u128) {
        let (begun, starts) = (Instant::now(), Mutex::new(Vec::new()));
        let connected = race(addresses(all), |to| {
            starts.lock().unwrap().push(begun.elapsed().as_millis());
            async move {
                if to != address(answering) {
                    pending::<()>().await;
                }
                sleep(Duration::from_millis(milliseconds)).await;
                Ok(to)
            }
        });
        assert_eq!(connected.await.unwrap(), address(answering));
        (starts.into_inner().unwrap(), begun.elapsed().as_millis())
    }

    #[tokio::test(start_paused = true)]
    async fn silent_address_delays_the_next_attempt_by_its_head_start() {
        assert_eq!(
            attempts(&["10.0.0.1", "10.0.0.2"], "10.0.0.2", 1).await,
            (vec![0, 250], 251)
        );
        assert_eq!(
            attempts(&["fd00::1", "10.0.0.2"], "10.0.0.2", 1).await,
            (vec![0, 250], 251)
        );
        assert_eq!(
            attempts(&["10.0.0.1", "10.0.0.2", "fd00::3"], "fd00::3", 1).await,
            (vec![0, 250, 500], 501)
        );
        assert_eq!(
            attempts(&["10.0.0.1", "10.0.0.2"], "10.0.0.1", 1).await,
            (vec![0], 1),
            "no second attempt"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn slow_address_stays_in_the_race() {
        assert_eq!(
            attempts(&["10.0.0.1", "10.0.0.2", "10.0.0.3"], "10.0.0.1", 600).await,
            (vec![0, 250, 500], 600)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn many_addresses_are_all_tried_within_the_time_limit() {
        let many: Vec<String> = (0..100).map(|number| format!("10.0.0.{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let (starts, connected) = attempts(&many, "10.0.0.99", 1).await;
        assert!(
            starts.len() == 100 && connected <= START_TIME_LIMIT.as_millis(),
            "{connected} {starts:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn refused_connection_starts_the_next_attempt_at_once() {
        let begun = Instant::now();
        let all = addresses(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
        let connect = |refusing: SocketAddr| {
            move |to| async move {
                if to == refusing {
                    Ok(to)
                } else {
                    Err(io::Error::from_raw_os_error(111))
                }
            }
        };
        assert_eq!(race(all.clone(), connect(all[2])).await.unwrap(), all[2]);
        let error = race(all.clone(), connect(address("10.0.0.9")))
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("10.0.0.1:6443: Connection refused") && error.contains("10.0.0.3:6443"),
            "{error}"
        );
        let error = race(all[..1].to_vec(), connect(address("10.0.0.9")))
            .await
            .unwrap_err();
        assert_eq!(error.raw_os_error(), Some(111));
        assert!(race(Vec::new(), connect(all[0])).await.is_err());
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }

    #[test]
    fn address_families_alternate_from_the_first_address() {
        for (resolved, tried) in [
            (
                &["fd00::1", "fd00::2", "10.0.0.1", "10.0.0.2"][..],
                &["fd00::1", "10.0.0.1", "fd00::2", "10.0.0.2"][..],
            ),
            (
                &["10.0.0.1", "fd00::1", "fd00::2"],
                &["10.0.0.1", "fd00::1", "fd00::2"],
            ),
            (&["10.0.0.2", "10.0.0.1"], &["10.0.0.2", "10.0.0.1"]),
            (&[], &[]),
        ] {
            assert_eq!(
                interleave_families(addresses(resolved).into_iter()),
                addresses(tried)
            );
        }
    }

    #[tokio::test]
    async fn server_is_dialed_by_the_host_and_port_of_its_url() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let stream = dial(&format!("https://{at}").parse().unwrap())
            .await
            .unwrap();
        assert_eq!(
            (stream.peer_addr().unwrap(), stream.nodelay().unwrap()),
            (at, true)
        );
        for (url, expected) in [
            ("https://[fd00::1]", ("fd00::1", 443)),
            ("http://k", ("k", 80)),
            ("https://k:6443", ("k", 6443)),
        ] {
            let url = url.parse().unwrap();
            assert_eq!((host(&url), port(&url)), expected);
        }
    }
}
