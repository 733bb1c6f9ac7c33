//! The kubeconfig, as concurrent readers see it.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use installation::kubeconfig::{self, Kubeconfig, Trust};
use installation::service_account::ServiceAccount;
use integration_tests::namespaces::isolated;

use crate::installer_agent::pod::in_pod;

/// Number of tokens that the reader has to see.
const TOKENS: usize = 500;
/// Maximum number of tokens that are written meanwhile.
const MOST_WRITES: usize = 1_000_000;

#[test]
fn readers_never_see_a_partial_kubeconfig() {
    isolated(|host| {
        let directory = host.dir("net.d");
        let file = directory.join("calico-kubeconfig");
        let authority = directory.join("ca.crt");
        fs::write(&authority, "PEM".repeat(300)).unwrap();
        let pod = ServiceAccount {
            namespace: "kube-system".into(),
            server: "https://10.96.0.1:443".into(),
            token_file: PathBuf::new(),
            ca_file: authority.clone(),
            insecure: false,
            kubeconfig: None,
        };
        let token = |number: usize| number.to_string().repeat(200);
        kubeconfig::write(&file, &pod, &token(0)).unwrap();
        let (done, seen) = (AtomicBool::new(false), AtomicUsize::new(0));
        thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut tokens = BTreeSet::new();
                while !done.load(Ordering::Relaxed) {
                    let text = fs::read_to_string(&file).unwrap();
                    let token = kubeconfig::token(&text).unwrap().to_owned();
                    let authority = fs::read(&authority).unwrap();
                    let trust = Trust::Authorities(&authority);
                    assert_eq!(
                        text,
                        Kubeconfig {
                            server: &pod.server,
                            trust,
                            token: &token
                        }
                        .render()
                    );
                    tokens.insert(token);
                    seen.store(tokens.len(), Ordering::Relaxed);
                }
            });
            // On a busy machine, reader and writer may share a processor, and the reader then
            // misses most tokens.
            let is_needed = || seen.load(Ordering::Relaxed) < TOKENS && !reader.is_finished();
            for number in (1..=MOST_WRITES).take_while(|_| is_needed()) {
                kubeconfig::write(&file, &pod, &token(number)).unwrap();
            }
            done.store(true, Ordering::Relaxed);
            reader.join().unwrap();
            assert!(
                seen.load(Ordering::Relaxed) >= TOKENS,
                "the reader saw {seen:?} of {MOST_WRITES} tokens"
            );
        });
        assert_eq!(
            fs::read_dir(&directory).unwrap().count(),
            2,
            "nothing is left over"
        );
    });
}

#[test]
fn kubeconfig_of_the_agent_equals_upstreams_byte_for_byte() {
    in_pod(|_, kubernetes, mut pod| {
        pod.set("CNI_TOKEN_REFRESH_INTERVAL", "10ms");
        let agent = pod.agent().unwrap();
        agent.await_metric("token_refreshes_total", 1).unwrap();
        let authority = kubernetes.api.authority_certificate();
        let server = integration_tests::kubernetes::ENDPOINT;
        let mut seen = 0;
        while agent.metric("token_refreshes_total").unwrap() < 20 {
            for _ in 0..200 {
                let text = fs::read_to_string(pod.kubeconfig()).unwrap();
                let token = kubeconfig::token(&text).unwrap();
                let trust = Trust::Authorities(authority.as_bytes());
                assert_eq!(
                    text,
                    Kubeconfig {
                        server,
                        trust,
                        token
                    }
                    .render()
                );
                seen += 1;
            }
        }
        assert!(seen > 0);
    });
}
