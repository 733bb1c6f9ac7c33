//! The waits of an ADD: for the `readiness_gates` of the configuration, and for the pod's policy.

use std::time::Duration;

use libcalico::api::WorkloadEndpoint;
use libcalico::names;
use libcalico::workload::{Orchestrator, WorkloadIdentity};
use netconf::{CniError, Code};
use os::clock::Clock;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use crate::context::Context;
use crate::reads;
use crate::world::World;

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
pub(super) async fn wait_for_gates(cx: &Context<impl World>) -> Result<(), CniError> {
    let gates = &cx.call.conf.readiness.readiness_gates;
    if gates.is_empty() {
        return Ok(());
    }
    reads::ensure_cluster_is_ready(cx).await?;
    wait_for_all(gates, GATE_TIMEOUTS, &cx.clock).await
}

/// Polls each gate in order until it answers with a status from 200 to 399. Sends the first probe
/// at once; upstream waits for one interval first (CNI-257).
async fn wait_for_all(
    gates: &[String],
    timeouts: GateTimeouts,
    clock: &impl Clock,
) -> Result<(), CniError> {
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
    for gate in gates {
        wait_for_gate(&agent, gate, timeouts, clock).await?;
    }
    Ok(())
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

async fn wait_for_gate(
    agent: &ureq::Agent,
    gate: &str,
    timeouts: GateTimeouts,
    clock: &impl Clock,
) -> Result<(), CniError> {
    let deadline = clock.elapsed() + timeouts.total;
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
        if clock.elapsed() + timeouts.interval > deadline {
            return Err(CniError::new(
                Code::TRY_AGAIN,
                format!("readiness gate {gate} is not ready: {refusal}"),
            )
            .with_details(format!("gave up after {} s", timeouts.total.as_secs())));
        }
        clock.sleep(timeouts.interval).await;
    }
}

/// Waits until Felix has programmed the policy of a pod: Felix then creates a file for the
/// endpoint. A timeout is not an error: the pod starts, and its policy takes effect later.
pub(super) async fn wait_for_policy(
    cx: &Context<impl World>,
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
    let directory = cx.files.path(&conf.endpoint_status_dir);
    if !cx.files.wait_for(&directory, &file, timeout).await {
        tracing::warn!(
            file, directory = %conf.endpoint_status_dir,
            hint = "the pod may start before its policy; the limit is policy_setup_timeout_seconds",
            "no file by which Felix reports the policy of the pod"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use os::clock::SystemClock;

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
    #[tokio::test]
    async fn each_gate_is_probed_until_its_first_success() {
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
            &SystemClock::start(),
        )
        .await
        .unwrap();
        assert_eq!(
            (
                of_open.load(Ordering::SeqCst),
                of_late.load(Ordering::SeqCst)
            ),
            (1, 3)
        );
    }

    #[tokio::test]
    async fn closed_readiness_gate_is_reported_with_its_url() {
        let (url, _) = gate(&["503 No"; 100]);
        let gates = std::slice::from_ref(&url);
        let outcome = wait_for_all(gates, SHORT_TIMEOUTS, &SystemClock::start()).await;
        let error = outcome.unwrap_err();
        assert_eq!(error.code, Code::TRY_AGAIN);
        assert!(
            error.msg.contains(&url) && error.msg.contains("503"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn readiness_gate_without_a_valid_url_is_a_configuration_error() {
        let gates = ["not a url".into()];
        let outcome = wait_for_all(&gates, SHORT_TIMEOUTS, &SystemClock::start()).await;
        let error = outcome.unwrap_err();
        assert_eq!(error.code, Code::INVALID_CONFIG);
        assert!(error.msg.contains("not a url"), "{error}");
    }
}
