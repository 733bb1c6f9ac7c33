//! Tests of the findings about the kubeconfig and its token.

use super::*;
use crate::snapshot::Unobserved;

#[test]
fn expired_or_expiring_token_and_open_kubeconfig_are_reported() {
    let with = |exp: i64| {
        move |snapshot: &mut NodeSnapshot| {
            let file = snapshot.token.as_mut().unwrap().file.as_mut().unwrap();
            file.claims.as_mut().unwrap().exp = exp;
        }
    };
    only(
        "FAIL token: the token of system:serviceaccount:a:b expired 3 h ago",
        with(NOW - 3 * 3600),
    );
    only("FAIL token: ", with(NOW));
    only(
        "warn token: the token of system:serviceaccount:a:b is valid for 30 min, less",
        with(NOW + 1800),
    );
    only(
        "warn kubeconfig: /etc/cni/net.d/calico-kubeconfig has mode 0644",
        |snapshot| {
            snapshot.token.as_mut().unwrap().file.as_mut().unwrap().mode = 0o644;
        },
    );
    only(
        "warn kubeconfig: /etc/cni/net.d/calico-kubeconfig accepts any certificate",
        |snapshot| {
            snapshot
                .token
                .as_mut()
                .unwrap()
                .file
                .as_mut()
                .unwrap()
                .accepts_any_certificate = true;
        },
    );
    only(
        "FAIL kubeconfig: /etc/cni/net.d/calico-kubeconfig: gone",
        |snapshot| {
            snapshot.token.as_mut().unwrap().file = Err("gone".into());
        },
    );
    only("skipped token: ", |snapshot| {
        snapshot
            .token
            .as_mut()
            .unwrap()
            .file
            .as_mut()
            .unwrap()
            .claims = None
    });
}

#[test]
fn token_rejected_by_the_api_server_is_a_single_finding() {
    let refuse = |snapshot: &mut NodeSnapshot| {
        let cluster = cluster(snapshot);
        let rejection = "Unauthorized (401)".to_owned();
        answers(cluster).ready = Err(Unobserved::new(&rejection));
        answers(cluster).pools = Err(Unobserved::new(&rejection));
        for check in &mut api(cluster).permissions {
            check.is_allowed = Err(Unobserved::new(&rejection));
        }
        api(cluster).rejection = Some(rejection);
    };
    let found = wrong(refuse);
    assert_eq!(
        found,
        [
            "FAIL token: the token of system:serviceaccount:a:b is valid for 22 h, but the API \
             server rejects it: Unauthorized (401)",
            "skipped permissions: Unauthorized (401)",
            "skipped cluster information: Unauthorized (401)",
            "skipped pools: Unauthorized (401)",
        ]
    );
    let mut snapshot = good();
    refuse(&mut snapshot);
    let finding = run_all(&snapshot)
        .into_iter()
        .find(|finding| finding.name == "token")
        .unwrap();
    assert!(
        finding.remedy.contains("run the installer again")
            && finding.remedy.contains("calico-node"),
        "{finding:?}"
    );
    let without = wrong(|snapshot| {
        refuse(snapshot);
        snapshot.token = None;
    });
    assert!(
        without[0].starts_with("FAIL token: the API server rejects the credentials"),
        "{without:?}"
    );
    let expired = wrong(|snapshot| {
        refuse(snapshot);
        let file = snapshot.token.as_mut().unwrap().file.as_mut().unwrap();
        file.claims.as_mut().unwrap().exp = NOW - 1;
    });
    assert!(expired[0].ends_with("expired 1 s ago"), "{expired:?}");
}
