//! Messages of the agent without a token.

use integration_tests::node_pod::{NAMESPACE, may_make_tokens};

use crate::installer_agent::pod::{PLUGINS, in_pod, in_pod_without_rights, token_requests};

#[test]
fn missing_permission_is_named_and_used_once_granted() {
    in_pod_without_rights(|_, kubernetes, pod| {
        let api = &kubernetes.api;
        let agent = pod.agent().unwrap();
        agent
            .await_log(
                "grant it verb create on resource serviceaccounts/token with resourceNames \
                 [calico-cni-plugin]",
            )
            .unwrap();
        let page = agent.page("/readiness").unwrap();
        assert_eq!(page.code, 503);
        assert!(page.body.contains("serviceaccounts/token"), "{}", page.body);
        assert_eq!(agent.page("/liveness").unwrap().code, 200);
        assert!(!pod.kubeconfig().exists());
        may_make_tokens(api, &pod.account, PLUGINS).unwrap();
        agent.await_page("/readiness", 200).unwrap();
    });
}

#[test]
fn missing_service_account_is_named() {
    in_pod(|_, kubernetes, pod| {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{PLUGINS}");
        kubernetes.api.admin().delete(&path).unwrap().success();
        let agent = pod.agent().unwrap();
        agent
            .await_log("service account kube-system/calico-cni-plugin does not exist")
            .unwrap();
    });
}

#[test]
fn agent_with_manage_cni_false_requests_no_token() {
    in_pod(|_, kubernetes, mut pod| {
        let audit = kubernetes.api.audit().unwrap();
        pod.set("CALICO_MANAGE_CNI", "false");
        let mut agent = pod.agent().unwrap();
        agent.await_page("/readiness", 200).unwrap();
        assert_eq!(agent.page("/liveness").unwrap().code, 200);
        assert_eq!(token_requests(&audit, &pod).unwrap(), 0);
        assert!(agent.terminate().unwrap().success());
        assert!(!pod.kubeconfig().exists());
    });
}

#[test]
fn agent_with_an_invalid_listen_address_exits() {
    in_pod(|_, _, mut pod| {
        for (address, words) in [
            ("9097", "CNI_AGENT_LISTEN=9097 is invalid; set ADDRESS:PORT"),
            (
                "127.0.0.1:0",
                "CNI_AGENT_LISTEN=127.0.0.1:0 is invalid; set ADDRESS:PORT",
            ),
            ("203.0.113.7:9097", "cannot listen on 203.0.113.7:9097: "),
        ] {
            pod.set("CNI_AGENT_LISTEN", address);
            let outcome = pod.calico(&["refresh-token"]).run();
            assert_eq!(
                (outcome.exit, outcome.stdout.as_str()),
                (Some(1), ""),
                "{address}"
            );
            assert!(outcome.stderr.contains(words), "{}", outcome.stderr);
        }
    });
}
