//! Kubeconfigs that cannot be used, and the errors about them.

use std::fs;

use serde_json::{Value, json};

use super::*;

async fn read_text(content: &str) -> Result<ClusterAccess, String> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("kubeconfig");
    fs::write(&file, content).unwrap();
    let settings = KubernetesConfig { kubeconfig: vec![file.clone()], ..KubernetesConfig::default() };
    let refused = match read(&settings).await {
        Ok(access) => return Ok(access),
        Err(error) => error.to_string(),
    };
    assert!(refused.contains(&dir.path().display().to_string()), "{refused}");
    Err(refused)
}

fn with(user: Value, mut cluster: Value) -> String {
    cluster["server"] = json!("https://localhost:1");
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{ "name": "k", "cluster": cluster }],
        "users": [{ "name": "u", "user": user }],
        "contexts": [{ "name": "c", "context": { "cluster": "k", "user": "u" } }],
    })
    .to_string()
}

#[tokio::test]
async fn unparsable_kubeconfig_is_not_quoted_in_the_error() {
    const SECRET: &str = "eyJhbGciOiJSUzI1NiIsImtpZCI6IlNFQ1JFVCJ9";
    let user = |lines: &str| format!("apiVersion: v1\nkind: Config\nusers:\n- name: u\n  user:\n{lines}");
    for content in [
        user(&format!("    token: {SECRET}: foo\n")),
        user(&format!("    token: {SECRET}\n    token: {SECRET}\n")),
        user(&format!("    token: {SECRET}\n   username: u\n")),
        user(&format!("    token: \"{SECRET}\n")),
        user(&format!("    password: {SECRET}: foo\n")),
        user(&format!("    token: [{SECRET}]\n")),
        user(&format!("    {SECRET}\n")),
        user(&format!("    as-groups: {SECRET}\n")),
        user(&format!("    exec: {SECRET}\n")),
        user(&format!("    token: {SECRET}\ncontex")),
        format!("kind: Config\nusers: {SECRET}\n"),
        format!("{SECRET}\n"),
    ] {
        let error = read_text(&content).await.err().unwrap();
        assert!(!error.contains(&SECRET[..6]), "{content}\n{error}");
        assert!(error.contains("line "), "{content}\n{error}");
    }
}

#[tokio::test]
async fn userinfo_in_a_server_url_is_dropped() {
    let content = with(json!({}), json!({})).replace("https://localhost:1", "https://me:secret@localhost:1/api-of/x");
    let access = read_text(&content).await.ok().unwrap();
    assert_eq!(access.config.cluster_url.to_string(), "https://localhost:1/api-of/x");
    for (url, without) in [
        ("https://me:secret@[::1]:6443", "https://[::1]:6443"),
        ("me@host", "host"),
        ("https://host/path@x", "https://host/path@x"),
    ] {
        assert_eq!(without_credentials(url), without);
    }
}

#[tokio::test]
async fn unusable_kubeconfig_key_is_reported() {
    for (content, expected) in [
        (with(json!({}), json!({ "proxy-url": "http://me:secret@127.0.0.1:9" })), "proxy-url of cluster k"),
        (with(json!({ "as-groups": ["g"] }), json!({})), "`as` is missing"),
        (with(json!({ "as-uid": "1" }), json!({})), "`as` is missing"),
        (with(json!({ "as": "a\nb" }), json!({})), "of user u"),
        (with(json!({ "token": "sec\nret" }), json!({})), "cannot use the token in"),
        (with(json!({ "tokenFile": "none" }), json!({})), "/none: No such file"),
        (with(json!({ "auth-provider": { "name": "gcp" } }), json!({})), "auth-provider gcp"),
    ] {
        let error = read_text(&content).await.err().unwrap();
        assert!(error.contains(expected) && !error.contains("sec"), "{error}");
    }
    let no_impersonation = json!({ "as": "", "as-uid": "", "as-groups": [], "as-user-extra": {}, "token": "" });
    let access = read_text(&with(no_impersonation, json!({ "proxy-url": "" }))).await.unwrap();
    assert!(access.config.auth_info.impersonate.is_none());
}
