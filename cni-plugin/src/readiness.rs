//! Waits for the `readiness_gates` of the configuration before a pod gets its network.

use std::thread;
use std::time::{Duration, Instant};

use netconf::{CniError, Code};

/// The timeouts of a readiness gate.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Pause between two probes.
    pub interval: Duration,
    /// Maximum time until a gate is ready. After that time the ADD fails.
    pub total: Duration,
    /// Maximum duration of one probe.
    pub probe: Duration,
}

/// The timeouts of every ADD.
pub const PATIENCE: Patience =
    Patience { interval: Duration::from_secs(5), total: Duration::from_secs(30), probe: Duration::from_secs(5) };

/// Polls each gate in order until it answers with a status from 200 to 399. Sends the first probe at once; upstream
/// waits for one interval first (CNI-257).
pub fn wait_for(gates: &[String], patience: Patience) -> Result<(), CniError> {
    for gate in gates {
        wait_for_one(gate, patience)?;
    }
    Ok(())
}

fn wait_for_one(gate: &str, patience: Patience) -> Result<(), CniError> {
    let agent = ureq::Agent::config_builder()
        .timeout_global(Some(patience.probe))
        .http_status_as_error(false)
        .build()
        .new_agent();
    let deadline = Instant::now() + patience.total;
    loop {
        let refusal = match agent.get(gate).call() {
            Ok(answer) if (200..400).contains(&answer.status().as_u16()) => return Ok(()),
            Ok(answer) => format!("it answered {}", answer.status()),
            Err(reason @ (ureq::Error::BadUri(_) | ureq::Error::Http(_))) => {
                return Err(CniError::new(Code::INVALID_CONFIG, format!("invalid URL for ReadinessGates: {gate}"))
                    .with_details(format!("$.readiness_gates: {reason}; an http or https URL is needed")));
            }
            Err(error) => error.to_string(),
        };
        tracing::warn!(gate, %refusal, "readiness gate is not ready");
        if Instant::now() + patience.interval > deadline {
            return Err(CniError::new(Code::TRY_AGAIN, format!("readiness gate {gate} is not ready: {refusal}"))
                .with_details(format!("gave up after {} s", patience.total.as_secs())));
        }
        thread::sleep(patience.interval);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;

    const HASTY: Patience = Patience {
        interval: Duration::from_millis(20),
        total: Duration::from_millis(200),
        probe: Duration::from_secs(2),
    };

    /// Starts a server that answers one connection after the other with these status lines and then closes its socket.
    /// Returns its URL.
    fn gate(answers: &'static [&'static str]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/ready", listener.local_addr().unwrap());
        thread::spawn(move || {
            for answer in answers {
                let (mut peer, _) = listener.accept().unwrap();
                let _ = peer.read(&mut [0; 4096]);
                let _ = peer.write_all(
                    format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").as_bytes(),
                );
            }
        });
        url
    }

    #[test]
    fn a_ready_gate_costs_one_probe_and_an_unready_one_is_asked_again() {
        wait_for(&[gate(&["200 OK"]), gate(&["503 No", "500 No", "204 Yes"])], HASTY).unwrap();
    }

    #[test]
    fn a_gate_that_stays_closed_is_named() {
        let url = gate(&["503 No"; 100]);
        let error = wait_for(std::slice::from_ref(&url), HASTY).unwrap_err();
        assert_eq!(error.code, Code::TRY_AGAIN);
        assert!(error.msg.contains(&url) && error.msg.contains("503"), "{error}");
    }

    #[test]
    fn a_gate_that_is_no_url_is_an_error_of_the_configuration() {
        let error = wait_for(&["not a url".into()], HASTY).unwrap_err();
        assert_eq!(error.code, Code::INVALID_CONFIG);
        assert!(error.msg.contains("not a url"), "{error}");
    }
}
