//! The waits of an ADD: for the `readiness_gates` of the configuration, and for the pod's policy.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{io, thread};

use libcalico::api::WorkloadEndpoint;
use libcalico::names;
use libcalico::workload::{Orchestrator, WorkloadIdentity};
use netconf::{CniError, Code};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent};
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use crate::context::Context;
use crate::reads;

/// The polling interval for the file of an endpoint while the directory of the file cannot be
/// watched.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Copy)]
struct GateTimeouts {
    interval: Duration,
    /// Maximum time until a gate is ready.
    total: Duration,
    probe: Duration,
}

const GATE_TIMEOUTS: GateTimeouts = GateTimeouts {
    interval: Duration::from_secs(5),
    total: Duration::from_secs(30),
    probe: Duration::from_secs(5),
};

/// Waits for the readiness gates, if some are configured, after a check that the datastore is
/// ready. The ADD reads its objects afterwards: the wait may take minutes, in which a pool may be
/// disabled (CNI-77, IPAM-100).
pub(super) async fn wait_for_gates(cx: &Context) -> Result<(), CniError> {
    let gates = &cx.call.conf.readiness.readiness_gates;
    if gates.is_empty() {
        return Ok(());
    }
    reads::ensure_cluster_is_ready(cx).await?;
    wait_for_all(gates, GATE_TIMEOUTS)
}

/// Polls each gate in order until it answers with a status from 200 to 399. Sends the first probe
/// at once; upstream waits for one interval first (CNI-257).
fn wait_for_all(gates: &[String], timeouts: GateTimeouts) -> Result<(), CniError> {
    let is_encrypted = gates.iter().any(|gate| gate.starts_with("https://"));
    let trusted = if is_encrypted {
        host_roots()
    } else {
        RootCerts::WebPki
    };
    // The runtime's proxy, which the plugin inherits, is for registries of images. A gate is
    // usually on this node.
    let settings = ureq::Agent::config_builder()
        .proxy(None)
        .http_status_as_error(false);
    let settings = settings.timeout_global(Some(timeouts.probe));
    let agent = settings
        .tls_config(TlsConfig::builder().root_certs(trusted).build())
        .build()
        .new_agent();
    gates
        .iter()
        .try_for_each(|gate| wait_for_gate(&agent, gate, timeouts))
}

/// Returns the CA certificates of the host, which upstream uses too (CNI-77), or Mozilla's if the
/// host has none.
fn host_roots() -> RootCerts {
    let certificates = rustls_native_certs::load_native_certs().certs;
    if certificates.is_empty() {
        return RootCerts::WebPki;
    }
    certificates
        .iter()
        .map(|one| Certificate::from_der(one).to_owned())
        .into()
}

fn wait_for_gate(agent: &ureq::Agent, gate: &str, timeouts: GateTimeouts) -> Result<(), CniError> {
    let deadline = Instant::now() + timeouts.total;
    loop {
        let refusal = match agent.get(gate).call() {
            Ok(answer) if (200..400).contains(&answer.status().as_u16()) => return Ok(()),
            Ok(answer) => format!("the gate answered {}", answer.status()),
            Err(reason @ (ureq::Error::BadUri(_) | ureq::Error::Http(_))) => {
                return Err(CniError::new(
                    Code::INVALID_CONFIG,
                    format!("invalid URL for ReadinessGates: {gate}"),
                )
                .with_details(format!(
                    "$.readiness_gates: {reason}; use an http or https URL"
                )));
            }
            Err(error) => error.to_string(),
        };
        tracing::warn!(
            gate, %refusal,
            "readiness gate is not ready; waiting until the timeout"
        );
        if Instant::now() + timeouts.interval > deadline {
            return Err(CniError::new(
                Code::TRY_AGAIN,
                format!("readiness gate {gate} is not ready: {refusal}"),
            )
            .with_details(format!("gave up after {} s", timeouts.total.as_secs())));
        }
        thread::sleep(timeouts.interval);
    }
}

/// Waits until Felix has programmed the policy of a pod: Felix then creates a file for the
/// endpoint. A timeout is not an error: the pod starts, and its policy takes effect later.
pub(super) fn wait_for_policy(
    cx: &Context,
    workload: &WorkloadIdentity,
    endpoint: &WorkloadEndpoint,
) {
    let conf = &cx.call.conf.readiness;
    let Orchestrator::Kubernetes(pod) = &workload.orchestrator else {
        return;
    };
    if conf.policy_setup_timeout_seconds == 0 {
        return;
    }
    let file =
        names::endpoint_status_file("k8s", &pod.namespace, &pod.name, &endpoint.spec.endpoint);
    let timeout = Duration::from_secs(conf.policy_setup_timeout_seconds.into());
    if !wait_for_file(Path::new(&conf.endpoint_status_dir), &file, timeout) {
        tracing::warn!(
            file, directory = %conf.endpoint_status_dir,
            hint = "the pod may start before its policy; the limit is policy_setup_timeout_seconds",
            "no file by which Felix reports the policy of the pod"
        );
    }
}

fn wait_for_file(directory: &Path, file: &str, timeout: Duration) -> bool {
    let deadline = Instant::now() + timeout;
    loop {
        match watch(directory, file, deadline) {
            Ok(exists) => return exists,
            Err(error) => {
                tracing::debug!(
                    directory = %directory.display(), %error,
                    "cannot watch the directory of the endpoint's file; trying again"
                )
            }
        }
        if directory.join(file).exists() {
            return true;
        }
        let remaining = deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return false;
        }
        thread::sleep(remaining.min(POLL_INTERVAL));
    }
}

/// Waits for `file` with inotify; returns false at `deadline`. The watch starts before the first
/// check, so that no file is missed.
fn watch(directory: &Path, file: &str, deadline: Instant) -> io::Result<bool> {
    let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
    let events = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_ONLYDIR;
    inotify.add_watch(directory, events)?;
    if directory.join(file).exists() {
        return Ok(true);
    }
    loop {
        let remaining = deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Ok(false);
        }
        let wait = PollTimeout::try_from(remaining).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(inotify.as_fd(), PollFlags::POLLIN)], wait) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_file = |event: &InotifyEvent| event.name.as_deref() == Some(OsStr::new(file));
        match inotify.read_events() {
            Ok(events) if events.iter().any(is_file) => return Ok(true),
            Ok(_) | Err(Errno::EAGAIN) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const SHORT_TIMEOUTS: GateTimeouts = GateTimeouts {
        interval: Duration::from_millis(20),
        total: Duration::from_millis(200),
        probe: Duration::from_secs(60),
    };

    /// Starts a server that answers one connection after the other with these status lines and then
    /// closes its socket.
    fn gate(answers: &'static [&'static str]) -> (String, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/ready", listener.local_addr().unwrap());
        let probes = Arc::new(AtomicUsize::new(0));
        let counter = probes.clone();
        thread::spawn(move || {
            for answer in answers {
                let (mut peer, _) = listener.accept().unwrap();
                counter.fetch_add(1, Ordering::SeqCst);
                let _ = peer.read(&mut [0; 4096]);
                let _ = peer.write_all(
                    format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                        .as_bytes(),
                );
            }
        });
        (url, probes)
    }

    /// Each gate has one answer more than it needs.
    #[test]
    fn each_gate_is_probed_until_its_first_success() {
        let ((open, of_open), (late, of_late)) = (
            gate(&["200 OK", "200 OK"]),
            gate(&["503 No", "500 No", "204 Yes", "204 Yes"]),
        );
        wait_for_all(
            &[open, late],
            GateTimeouts {
                total: Duration::from_secs(60),
                ..SHORT_TIMEOUTS
            },
        )
        .unwrap();
        assert_eq!(
            (
                of_open.load(Ordering::SeqCst),
                of_late.load(Ordering::SeqCst)
            ),
            (1, 3)
        );
    }

    #[test]
    fn closed_readiness_gate_is_reported_with_its_url() {
        let (url, _) = gate(&["503 No"; 100]);
        let error = wait_for_all(std::slice::from_ref(&url), SHORT_TIMEOUTS).unwrap_err();
        assert_eq!(error.code, Code::TRY_AGAIN);
        assert!(
            error.msg.contains(&url) && error.msg.contains("503"),
            "{error}"
        );
    }

    #[test]
    fn readiness_gate_without_a_valid_url_is_a_configuration_error() {
        let error = wait_for_all(&["not a url".into()], SHORT_TIMEOUTS).unwrap_err();
        assert_eq!(error.code, Code::INVALID_CONFIG);
        assert!(error.msg.contains("not a url"), "{error}");
    }

    const NAME: &str = "k8s name-space%2Fpodname eth0";

    #[test]
    fn existing_file_ends_the_wait_at_once() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(NAME), "").unwrap();
        assert!(wait_for_file(directory.path(), NAME, Duration::ZERO));
    }

    #[test]
    fn created_file_ends_the_wait() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_owned();
        let writer = std::thread::spawn(move || {
            std::fs::write(path.join("another"), "").unwrap();
            std::fs::write(path.join("new"), "").unwrap();
            std::fs::rename(path.join("new"), path.join(NAME)).unwrap();
        });
        assert!(wait_for_file(
            directory.path(),
            NAME,
            Duration::from_secs(60)
        ));
        writer.join().unwrap();
    }

    #[test]
    fn file_wait_ends_with_the_timeout() {
        let directory = tempfile::tempdir().unwrap();
        assert!(!wait_for_file(
            directory.path(),
            NAME,
            Duration::from_millis(30)
        ));
        assert!(!wait_for_file(
            &directory.path().join("missing"),
            NAME,
            Duration::from_millis(30)
        ));
    }
}
