//! Waits for the `readiness_gates` of the configuration before a pod is networked (CNI-77).

use std::thread;
use std::time::{Duration, Instant};

use netconf::{CniError, Code};

/// How often and how long a gate is asked.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Pause between two probes.
    pub interval: Duration,
    /// A gate that is not ready by then fails the ADD.
    pub total: Duration,
    /// Longest a single probe may take.
    pub probe: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Patience { interval: Duration::from_secs(5), total: Duration::from_secs(30), probe: Duration::from_secs(5) }
    }
}

/// Asks each gate in order until it answers 200..=399. The first probe is sent at once (CNI-257).
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

    /// Answers one connection after the other with these status lines, then hangs up.
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
