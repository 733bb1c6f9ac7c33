//! `calico health`: a client for health probes, with the same options as upstream's command.

use std::io::{self, Read};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use clap::builder::NonEmptyStringValueParser;
use libcalico::api::GoDuration;
use libcalico::failure::Failure;

use super::arguments::{exit_with, run_with};
use node_agent::DEFAULT_LISTEN;

/// The longest part of a response's body that is read, in bytes.
const MAX_BODY: u64 = 64 * 1024;

const HELP: &str = "\
Queries a health probe of a Calico process. The exit status is 0 if the process is healthy.

Usage: calico health [--port N] [--host HOST] [--type readiness|liveness] [--timeout DURATION]

      --port N            port of the probes [default: 9097, this node's agent]
      --host HOST         host of the process [default: localhost]
      --type TYPE         readiness or liveness [default: readiness]
      --timeout DURATION  time limit [default: 5s]
  -h, --help              print this text
";

#[derive(Debug, Parser)]
#[command(name = "health", override_help = HELP, args_override_self = true)]
struct HealthArgs {
    #[arg(long, value_parser = port, default_value_t = DEFAULT_LISTEN.port())]
    port: u16,
    #[arg(long, value_parser = NonEmptyStringValueParser::new(), default_value = "localhost")]
    host: String,
    /// The name of the probe, which is also its path.
    #[arg(long = "type", value_parser = probe, default_value = "readiness")]
    probe: &'static str,
    #[arg(long, value_parser = time_limit, default_value = "5s")]
    timeout: Duration,
}

fn port(text: &str) -> Result<u16, &'static str> {
    let port = text.parse().ok().filter(|port| *port != 0);
    port.ok_or("use a number from 1 to 65535")
}

fn probe(text: &str) -> Result<&'static str, &'static str> {
    let probe = ["readiness", "liveness"]
        .into_iter()
        .find(|probe| *probe == text);
    probe.ok_or("use readiness or liveness")
}

fn time_limit(text: &str) -> Result<Duration, &'static str> {
    let limit = text.parse().map(GoDuration::duration).unwrap_or_default();
    let limit = Some(limit).filter(|limit| !limit.is_zero());
    limit.ok_or("use a duration above 0, such as 90s, 5m or 1h30m")
}

/// Runs `calico health`.
pub fn health(arguments: impl IntoIterator<Item = String>) -> ExitCode {
    run_with(arguments, |given: HealthArgs| match query_probe(&given) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit_with(1, &error.to_string()),
    })
}

/// Queries the probe within its time limit. Fails also if the status of the response is not 2xx.
fn query_probe(given: &HealthArgs) -> Result<(), Failure> {
    let (host, port) = (&given.host, given.port);
    let host = if host.contains(':') {
        format!("[{host}]")
    } else {
        host.clone()
    };
    let url = format!("http://{host}:{port}/{}", given.probe);
    let agent = ureq::Agent::config_builder()
        .proxy(None)
        .http_status_as_error(false)
        .timeout_global(Some(given.timeout))
        .build()
        .new_agent();
    let answer = match agent.get(&url).call() {
        Ok(answer) if answer.status().is_success() => return Ok(()),
        Ok(answer) => answer,
        Err(error) => return Err(Failure::new(url).because(error)),
    };
    let status = answer.status();
    // Without the complete body, the status is still the answer.
    let mut body = Vec::new();
    let reader = answer.into_body().into_reader();
    let _: io::Result<usize> = reader.take(MAX_BODY).read_to_end(&mut body);
    let reason = String::from_utf8_lossy(&body);
    Err(Failure::new(format_args!("{url} answered {status}")).because(reason.trim()))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    use super::super::arguments::parse;
    use super::*;

    fn of(line: &str) -> Result<HealthArgs, clap::Error> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn health_command_accepts_upstreams_options() {
        let given = of("--port=9440 --type=liveness --host ::1").unwrap();
        assert_eq!(
            (given.port, given.probe, &*given.host),
            (9440, "liveness", "::1")
        );
        let given = of("-timeout 500ms").unwrap();
        assert_eq!(
            (given.port, given.probe, &*given.host),
            (9097, "readiness", "localhost")
        );
        assert_eq!(given.timeout, Duration::from_millis(500));
        assert_eq!(of("").unwrap().timeout, Duration::from_secs(5));
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

    fn query(host: &str, port: u16, probe: &str) -> Result<(), Failure> {
        query_probe(&of(&format!("--host {host} --port {port} --type {probe}")).unwrap())
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

    #[test]
    fn success_response_is_healthy() {
        let (port, server) = answering("HTTP/1.1 200 OK\r\n\r\nready\n");
        query("127.0.0.1", port, "readiness").unwrap();
        let request = server.join().unwrap();
        assert!(
            request.starts_with("GET /readiness HTTP/1.1\r\n"),
            "{request}"
        );
    }

    #[test]
    fn error_response_is_reported_with_status_and_body() {
        let (port, server) =
            answering("HTTP/1.1 503 Service Unavailable\r\n\r\nthe token has expired\n");
        let error = query("127.0.0.1", port, "liveness")
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
        let error = query("127.0.0.1", port, "liveness")
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with(&format!("http://127.0.0.1:{port}/liveness: ")),
            "{error}"
        );
        let (port, server) = answering("");
        let error = query("localhost", port, "liveness").unwrap_err();
        assert!(!error.to_string().contains(" answered "), "{error}");
        server.join().unwrap();
    }
}
