//! Certificates that change while the client runs: the client's and the cluster's.

use super::server::advance;
use super::*;
use crate::config::Overrides;

async fn later() {
    advance(51).await;
}

#[tokio::test]
async fn changed_client_certificate_is_used_on_a_new_connection() {
    let server = Server::start(&["http/1.1"], &[]).await;
    let file = |name: &str| server.file().with_file_name(name);
    let write = |names: &[&str]| {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(vec!["user".into()]).unwrap();
        for (name, text) in [("cert", cert.pem()), ("key", signing_key.serialize_pem())] {
            if names.contains(&name) {
                std::fs::write(file(name), text).unwrap();
            }
        }
    };
    write(&["cert", "key"]);
    server.set_user(json!({ "client-certificate": file("cert"), "client-key": file("key") }));
    let (client, lasting) = (
        super::client(&server.config(LONG)).await.unwrap(),
        ApiClient::long_running(&server.config(LONG)),
    );
    let connections_after_requests = async || {
        client
            .send(Request::get("/a").body(Body::empty()).unwrap())
            .await
            .unwrap();
        lasting.send(&ApiRequest::get("/b")).await.unwrap();
        server.recorded.lock().unwrap().connections
    };
    assert_eq!(connections_after_requests().await, 2);
    later().await;
    assert_eq!(connections_after_requests().await, 2, "nothing changed");
    write(&["cert"]);
    later().await;
    assert_eq!(
        connections_after_requests().await,
        2,
        "the key does not match the certificate"
    );
    write(&["cert", "key"]);
    assert_eq!(
        connections_after_requests().await,
        2,
        "the client checks the files once per interval"
    );
    later().await;
    assert_eq!(connections_after_requests().await, 4);
}

/// As during a rotation of the cluster's CA.
#[tokio::test]
async fn changed_file_of_ca_certificates_is_used_on_a_new_connection() {
    let server = Server::start(&["http/1.1"], &[]).await;
    server.set_authority_file("");
    let lasting = ApiClient::long_running(&server.config(LONG));
    let connections_after_a_request = async || {
        lasting.send(&ApiRequest::get("/a")).await.unwrap();
        server.recorded.lock().unwrap().connections
    };
    assert_eq!(connections_after_a_request().await, 1);
    later().await;
    assert_eq!(connections_after_a_request().await, 1, "nothing changed");
    let CertifiedKey { cert, .. } = generate_simple_self_signed(vec!["new".into()]).unwrap();
    server.set_authority_file(&cert.pem());
    later().await;
    assert_eq!(connections_after_a_request().await, 2);
}

/// A bundle of many organizations, from the kubeconfig and from the setting that precedes it.
#[tokio::test]
async fn file_of_ca_certificates_may_have_more_than_a_megabyte() {
    let server = Server::start(&["http/1.1"], &[]).await;
    server.set_authority_file(&"# an organization\n".repeat(100_000));
    server
        .client(LONG)
        .send(&ApiRequest::get("/a"))
        .await
        .unwrap();
    let overrides = Overrides {
        ca_certificates: Some(server.file().with_file_name("ca.crt")),
        ..Overrides::default()
    };
    server.set_token("first");
    let client = ApiClient::new(&KubernetesConfig {
        overrides,
        ..server.config(LONG)
    });
    client.send(&ApiRequest::get("/b")).await.unwrap();
    assert_eq!(server.requests().len(), 2);
}
