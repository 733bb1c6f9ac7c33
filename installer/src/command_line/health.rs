//! `calico health`: a client for health probes, with the same options as upstream's command.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::process::ExitCode;
use std::time::Duration;

use libcalico::api::{DurationError, GoDuration};

use super::arguments::{GivenOptions, OptionSpec, exit_with, run_with};
use crate::agent::DEFAULT_LISTEN;

const SPEC: OptionSpec = OptionSpec {
    options: &["port", "host", "type", "timeout"],
    switches: &[],
};

const HELP: &str = "\
Queries a health probe of a Calico process. The exit status is 0 if the process is healthy.

Usage: calico health [--port N] [--host HOST] [--type readiness|liveness] [--timeout DURATION]

      --port N            port of the probes [default: 9097, this node's agent]
      --host HOST         host of the process [default: localhost]
      --type TYPE         readiness or liveness [default: readiness]
      --timeout DURATION  time limit [default: 5s]
  -h, --help              print this text
";

/// Runs `calico health`.
pub fn health(arguments: impl IntoIterator<Item = String>) -> ExitCode {
    run_with(
        "health",
        HELP,
        SPEC.parse(arguments),
        |given| match parse_query(given) {
            Err(reason) => exit_with(
                2,
                &format!("calico health: {reason}; see `calico health --help`"),
            ),
            Ok((port, probe, limit)) => match query_probe(
                given.value("host").unwrap_or("localhost"),
                port,
                probe,
                limit,
            ) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => exit_with(1, &error.to_string()),
            },
        },
    )
}

#[derive(Debug, thiserror::Error)]
enum HealthArgumentError {
    #[error("invalid port `{0}`")]
    Port(String),
    #[error("invalid type `{0}`; use readiness or liveness")]
    Probe(String),
    #[error(transparent)]
    Timeout(#[from] DurationError),
    #[error("invalid timeout 0; use a duration above 0")]
    NoTimeout,
}

/// Returns the port, the path of the probe and the time limit.
fn parse_query(given: &GivenOptions) -> Result<(u16, &'static str, Duration), HealthArgumentError> {
    let port = match given.value("port") {
        None => DEFAULT_LISTEN.port(),
        Some(text) => text
            .parse()
            .ok()
            .filter(|port| *port != 0)
            .ok_or_else(|| HealthArgumentError::Port(text.to_owned()))?,
    };
    let probe = match given.value("type") {
        None | Some("readiness") => READINESS,
        Some("liveness") => LIVENESS,
        Some(other) => return Err(HealthArgumentError::Probe(other.to_owned())),
    };
    let limit = given.value("timeout").unwrap_or("5s");
    let limit = limit.parse::<GoDuration>()?.duration();
    if limit.is_zero() {
        return Err(HealthArgumentError::NoTimeout);
    }
    Ok((port, probe, limit))
}

/// The paths of the two probes.
const READINESS: &str = "/readiness";
const LIVENESS: &str = "/liveness";

#[derive(Debug, thiserror::Error)]
enum HealthError {
    #[error("http://{url}: {source}")]
    NoResponse {
        /// Host, port and path.
        url: String,
        source: io::Error,
    },
    /// The status of the response is not 2xx.
    #[error("http://{url} answered {status}: {reason}")]
    Unhealthy {
        /// Host, port and path.
        url: String,
        /// The status line of the response, without the HTTP version.
        status: String,
        reason: String,
    },
}

/// Queries the probe on `host:port`. `limit` applies to each connection attempt, to each write and
/// to each read.
fn query_probe(host: &str, port: u16, probe: &str, limit: Duration) -> Result<(), HealthError> {
    let bracketed = if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    };
    let url = format!("{bracketed}:{port}{probe}");
    let response = exchange(host, port, &bracketed, probe, limit).map_err(|source| {
        HealthError::NoResponse {
            url: url.clone(),
            source,
        }
    })?;
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or((&response, ""));
    let status = head
        .lines()
        .next()
        .unwrap_or_default()
        .split_once(' ')
        .map_or("nothing", |(_, status)| status);
    if status.starts_with('2') {
        return Ok(());
    }
    Err(HealthError::Unhealthy {
        url,
        status: status.into(),
        reason: body.trim().into(),
    })
}

fn exchange(
    host: &str,
    port: u16,
    bracketed: &str,
    probe: &str,
    limit: Duration,
) -> io::Result<String> {
    let mut last_error = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, limit) {
            Ok(mut stream) => {
                stream.set_read_timeout(Some(limit))?;
                stream.set_write_timeout(Some(limit))?;
                let request = format!("GET {probe} HTTP/1.0\r\nHost: {bracketed}:{port}\r\n\r\n");
                stream.write_all(request.as_bytes())?;
                let mut response = Vec::new();
                stream.take(64 * 1024).read_to_end(&mut response)?;
                return Ok(String::from_utf8_lossy(&response).into_owned());
            }
            Err(error) => last_error = error,
        }
    }
    Err(last_error)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::super::arguments::ParsedArguments;
    use super::*;

    fn of(line: &str) -> Result<(u16, &'static str, Duration), String> {
        match SPEC.parse(line.split_whitespace().map(str::to_owned)) {
            ParsedArguments::Run(given) => parse_query(&given).map_err(|error| error.to_string()),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn health_command_accepts_upstreams_options() {
        assert_eq!(
            of("--port=9440 --type=liveness"),
            Ok((9440, LIVENESS, Duration::from_secs(5)))
        );
        assert_eq!(
            of("--timeout 500ms"),
            Ok((9097, READINESS, Duration::from_millis(500)))
        );
        for nonsense in [
            "--port 0",
            "--port x",
            "--type health",
            "--timeout soon",
            "--timeout 0",
            "9440",
        ] {
            assert!(of(nonsense).is_err(), "{nonsense}");
        }
    }

    fn answering(response: &'static str) -> (u16, thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = vec![0; 1024];
            let length = stream.read(&mut asked).unwrap();
            stream.write_all(response.as_bytes()).unwrap();
            String::from_utf8_lossy(&asked[..length]).into_owned()
        });
        (port, server)
    }

    const LIMIT: Duration = Duration::from_secs(10);

    #[test]
    fn success_response_is_healthy() {
        let (port, server) = answering("HTTP/1.1 200 OK\r\n\r\nready\n");
        query_probe("127.0.0.1", port, READINESS, LIMIT).unwrap();
        assert!(
            server
                .join()
                .unwrap()
                .starts_with("GET /readiness HTTP/1.0\r\nHost: 127.0.0.1:")
        );
    }

    #[test]
    fn error_response_is_reported_with_status_and_body() {
        let (port, server) =
            answering("HTTP/1.1 503 Service Unavailable\r\n\r\nthe token has expired\n");
        let error = query_probe("127.0.0.1", port, LIVENESS, LIMIT)
            .unwrap_err()
            .to_string();
        assert!(
            error.ends_with("/liveness answered 503 Service Unavailable: the token has expired"),
            "{error}"
        );
        server.join().unwrap();
    }

    #[test]
    fn missing_health_response_is_reported() {
        // The port of a client has no listener, and no other test gets the port.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let port = client.local_addr().unwrap().port();
        let error = query_probe("127.0.0.1", port, LIVENESS, LIMIT).unwrap_err();
        assert!(matches!(error, HealthError::NoResponse { .. }), "{error}");
        let (port, server) = answering("");
        let error = query_probe("localhost", port, LIVENESS, LIMIT)
            .unwrap_err()
            .to_string();
        assert!(error.contains("answered nothing"), "{error}");
        server.join().unwrap();
    }
}
