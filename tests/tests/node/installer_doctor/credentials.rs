//! The token of the plugins.

use std::fs;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use integration_tests::controllers::{PATIENCE, await_that};
use integration_tests::node_pod::NAMESPACE;
use serde_json::json;

use crate::installer_doctor::kubernetes_node::{KubernetesNode, on};
use crate::installer_doctor::report::{Examined, assert_good};

/// Only the expiry of the first token is visible in the token itself.
#[on(kubernetes_v1)]
fn doctor_reports_an_expired_or_revoked_token(node: &mut KubernetesNode<'_>) {
    let file = node.pod.kubeconfig();
    let text = fs::read_to_string(&file).unwrap();
    let claims =
        json!({ "exp": 1_000_000_000, "iat": 999_900_000, "sub": "system:serviceaccount:a:b" });
    let expired = format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims.to_string()));
    fs::write(&file, text.replace(&node.pod.token().unwrap(), &expired)).unwrap();
    let report = node.doctor();
    assert_eq!(report.exit, Some(1));
    assert!(
        report.wrong().contains(&"fail token".to_owned()),
        "{report:#?}"
    );
    assert!(
        report
            .words("token")
            .contains("check that the agent runs on this node"),
        "{report:#?}"
    );
    assert!(
        report.words("cluster information").contains("Unauthorized"),
        "{report:#?}"
    );
    fs::write(&file, &text).unwrap();

    // The old token of a recreated account looks valid but is rejected.
    let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/calico-cni-plugin");
    node.api.admin().delete(&path).unwrap().success();
    node.api
        .service_account(NAMESPACE, "calico-cni-plugin")
        .unwrap();
    await_that(PATIENCE, || {
        Ok(node
            .doctor()
            .words("cluster information")
            .contains("Unauthorized"))
    })
    .unwrap();
    let report = node.doctor();
    assert_eq!(report.exit, Some(1));
    let failed: Vec<String> = report
        .wrong()
        .into_iter()
        .filter(|check| !check.starts_with("skipped "))
        .collect();
    assert_eq!(
        failed,
        ["fail token"],
        "roles and definitions are not the matter: {report:#?}"
    );
    let words = report.words("token");
    assert!(
        words.contains("rejects it") && words.contains("run the installer again"),
        "{words}"
    );
    assert_eq!(node.pod.calico(&["install"]).run().exit, Some(0));
    assert_good(node);
}
