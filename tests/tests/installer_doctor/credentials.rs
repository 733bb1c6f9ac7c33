//! The token of the plugins.

use std::fs;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use integration_tests::controllers::{PATIENCE, await_that};
use integration_tests::node_pod::NAMESPACE;
use serde_json::json;

use crate::scene::{Examined, is_good, on_a_good_node};

/// Only the expiry of the first token is visible in the token itself.
#[test]
fn doctor_reports_an_expired_or_revoked_token() {
    on_a_good_node(|scene| {
        let file = scene.pod.kubeconfig();
        let text = fs::read_to_string(&file).unwrap();
        let claims =
            json!({ "exp": 1_000_000_000, "iat": 999_900_000, "sub": "system:serviceaccount:a:b" });
        let expired = format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims.to_string()));
        fs::write(&file, text.replace(&scene.pod.token().unwrap(), &expired)).unwrap();
        let said = scene.doctor();
        assert_eq!(said.exit, Some(1));
        assert!(said.wrong().contains(&"fail token".to_owned()), "{said:#?}");
        assert!(
            said.words("token")
                .contains("check that the agent runs on this node"),
            "{said:#?}"
        );
        assert!(
            said.words("cluster information").contains("Unauthorized"),
            "{said:#?}"
        );
        fs::write(&file, &text).unwrap();

        // The old token of a recreated account looks valid but is rejected.
        let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/calico-cni-plugin");
        scene
            .kubernetes
            .api
            .admin()
            .delete(&path)
            .unwrap()
            .success()
            .unwrap();
        scene
            .kubernetes
            .api
            .service_account(NAMESPACE, "calico-cni-plugin")
            .unwrap();
        await_that(PATIENCE, || {
            Ok(scene
                .doctor()
                .words("cluster information")
                .contains("Unauthorized"))
        })
        .unwrap();
        let said = scene.doctor();
        assert_eq!(said.exit, Some(1));
        let failed: Vec<String> = said
            .wrong()
            .into_iter()
            .filter(|told| !told.starts_with("skipped "))
            .collect();
        assert_eq!(
            failed,
            ["fail token"],
            "roles and definitions are not the matter: {said:#?}"
        );
        let words = said.words("token");
        assert!(
            words.contains("rejects it") && words.contains("run the installer again"),
            "{words}"
        );
        assert_eq!(scene.pod.calico(&["install"]).run().unwrap().exit, Some(0));
        is_good(scene);
    });
}
