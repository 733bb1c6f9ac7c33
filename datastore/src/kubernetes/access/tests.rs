//! Kubeconfigs that cannot be used, and the errors about them.

use std::fs;

use libcalico::variables::Variables;
use serde_json::{Value, json};

use super::*;
use crate::config::{InlineKubeconfig, ProxyVariables};

async fn read_text(content: &str) -> Result<ClusterAccess, String> {
    read_at(ClientPlace::Node, content).await
}

async fn read_at(place: ClientPlace, content: &str) -> Result<ClusterAccess, String> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("kubeconfig");
    fs::write(&file, content).unwrap();
    let settings = KubernetesConfig {
        kubeconfig: vec![file.clone()],
        place,
        ..KubernetesConfig::default()
    };
    let refused = match read(&settings).await {
        Ok(access) => return Ok(access),
        Err(error) => error.to_string(),
    };
    assert!(
        refused.contains(&dir.path().display().to_string()),
        "{refused}"
    );
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
    let user =
        |lines: &str| format!("apiVersion: v1\nkind: Config\nusers:\n- name: u\n  user:\n{lines}");
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
    let content = with(json!({}), json!({})).replace(
        "https://localhost:1",
        "https://me:secret@localhost:1/api-of/x",
    );
    let access = read_text(&content).await.ok().unwrap();
    assert_eq!(
        access.config.cluster_url.to_string(),
        "https://localhost:1/api-of/x"
    );
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
        (
            with(
                json!({}),
                json!({ "proxy-url": "http://me:secret@127.0.0.1:9" }),
            ),
            "proxy-url of cluster k",
        ),
        (
            with(json!({ "as-groups": ["g"] }), json!({})),
            "`as` is missing",
        ),
        (with(json!({ "as-uid": "1" }), json!({})), "`as` is missing"),
        (with(json!({ "as": "a\nb" }), json!({})), "of user u"),
        (
            with(json!({ "token": "sec\nret" }), json!({})),
            "cannot use the token in",
        ),
        (
            with(json!({ "tokenFile": "none" }), json!({})),
            "/none: No such file",
        ),
        (
            with(json!({ "auth-provider": { "name": "gcp" } }), json!({})),
            "auth-provider gcp",
        ),
    ] {
        let error = read_text(&content).await.err().unwrap();
        assert!(
            error.contains(expected) && !error.contains("sec"),
            "{error}"
        );
    }
    let no_impersonation =
        json!({ "as": "", "as-uid": "", "as-groups": [], "as-user-extra": {}, "token": "" });
    let access = read_text(&with(no_impersonation, json!({ "proxy-url": "" })))
        .await
        .unwrap();
    assert!(access.config.auth_info.impersonate.is_none());
}

fn workstation(https: &str) -> ClientPlace {
    let lookup = |name: &str| (name == "HTTPS_PROXY").then(|| https.to_owned());
    ClientPlace::Workstation(ProxyVariables::read(Variables::new(&lookup)))
}

fn user_with_plugin(script: &str) -> Value {
    json!({ "exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/sh",
        "args": ["-c", script],
    } })
}

fn printing_a_token(token: &str) -> String {
    let output = json!({
        "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
        "status": { "token": token },
    });
    format!("echo '{output}'")
}

#[tokio::test]
async fn credential_plugin_on_a_node_is_refused_without_running_it() {
    let dir = tempfile::tempdir().unwrap();
    let mark = dir.path().join("mark");
    let script = format!("touch {}; {}", mark.display(), printing_a_token("t"));
    let content = with(user_with_plugin(&script), json!({}));
    let error = read_text(&content).await.err().unwrap();
    assert!(
        error.contains("exec /bin/sh, which is not supported on a node") && !mark.exists(),
        "{error}"
    );
    let access = read_at(workstation(""), &content).await.unwrap();
    assert!(access.plugin_run.unwrap().usable_for.is_none() && mark.exists());
    assert!(
        access
            .auth
            .describe_rejected()
            .starts_with("the token in the output of /bin/sh (user u of kubeconfig ")
    );
}

#[tokio::test]
async fn token_of_the_kubeconfig_precedes_a_credential_plugin() {
    let mut user = user_with_plugin("exit 1");
    let error = read_at(workstation(""), &with(user.clone(), json!({})))
        .await
        .err()
        .unwrap();
    assert!(
        error.contains("the credential plugin /bin/sh of user u: the program failed"),
        "{error}"
    );
    user["token"] = json!("t");
    assert!(
        read_at(workstation(""), &with(user, json!({})))
            .await
            .unwrap()
            .plugin_run
            .is_none()
    );
}

#[test]
fn workstation_is_refused_while_cni_command_is_set() {
    for (command, place, is_refused) in [
        (Some("ADD"), workstation(""), true),
        (
            Some("VERSION"),
            ClientPlace::OutsideCluster(ProxyVariables::default()),
            true,
        ),
        (Some("ADD"), ClientPlace::Node, false),
        (Some(""), workstation(""), false),
        (None, workstation(""), false),
    ] {
        let outcome = refuse_in_a_call(&place, command.map(OsStr::new));
        assert_eq!(outcome.is_err(), is_refused, "{command:?} {place:?}");
    }
}

#[tokio::test]
async fn proxy_of_the_kubeconfig_precedes_the_environment() {
    let far = |cluster: Value| {
        with(json!({}), cluster).replace("https://localhost:1", "https://api.example.com:1")
    };
    let proxy = async |place, content: String| {
        let access = read_at(place, &content).await.unwrap();
        access.proxy.map(|proxy| proxy.to_string())
    };
    let own = json!({ "proxy-url": "socks5://me:secret@proxy" });
    let of_kubeconfig = Some("socks5://proxy:1080".to_owned());
    assert_eq!(
        proxy(workstation("http://env:1"), far(own.clone())).await,
        of_kubeconfig
    );
    assert_eq!(
        proxy(workstation("http://env:1"), with(json!({}), own)).await,
        of_kubeconfig,
        "also for localhost"
    );
    assert_eq!(
        proxy(workstation("http://env:1"), far(json!({})))
            .await
            .as_deref(),
        Some("http://env:1")
    );
    assert_eq!(
        proxy(workstation("http://env:1"), with(json!({}), json!({}))).await,
        None
    );
    assert_eq!(proxy(ClientPlace::Node, far(json!({}))).await, None);
}

#[tokio::test]
async fn invalid_proxy_is_named_with_its_source() {
    let far = |cluster: Value| {
        with(json!({}), cluster).replace("https://localhost:1", "https://api.example.com:1")
    };
    let own = far(json!({ "proxy-url": "ftp://me:secret@proxy" }));
    let error = read_at(workstation(""), &own).await.err().unwrap();
    assert!(
        error.contains("proxy in proxy-url of kubeconfig /") && !error.contains("secret"),
        "{error}"
    );
    let settings = |place| KubernetesConfig {
        inline: Some(InlineKubeconfig::new(far(json!({})))),
        place,
        ..KubernetesConfig::default()
    };
    let error = read(&settings(workstation("ftp://me:secret@proxy")))
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("HTTPS_PROXY or https_proxy: the URL's scheme") && !error.contains("secret"),
        "{error}"
    );
}

#[tokio::test]
async fn cluster_information_of_a_plugin_has_the_proxy_of_the_kubeconfig() {
    for (cluster, expected) in [
        (json!({ "proxy-url": "http://p:1" }), "http://p:1"),
        (json!({}), "null"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let seen = dir.path().join("seen");
        let script = format!(
            "echo \"$KUBERNETES_EXEC_INFO\" >{}; {}",
            seen.display(),
            printing_a_token("t")
        );
        let mut user = user_with_plugin(&script);
        user["exec"]["provideClusterInfo"] = json!(true);
        read_at(workstation(""), &with(user, cluster))
            .await
            .unwrap();
        let seen: Value = serde_json::from_str(&fs::read_to_string(seen).unwrap()).unwrap();
        let cluster = &seen["spec"]["cluster"];
        let proxy = cluster["proxy-url"].as_str().unwrap_or("null");
        assert_eq!(
            (cluster["server"].as_str(), proxy),
            (Some("https://localhost:1"), expected)
        );
    }
}

/// Of the overrides, the context alone applies (DS-20).
#[tokio::test]
async fn inline_kubeconfig_is_used_alone() {
    let text = with(json!({ "token": "inline" }), json!({}));
    let settings = KubernetesConfig {
        kubeconfig: vec!["/none".into()],
        inline: Some(InlineKubeconfig::new(text)),
        overrides: Overrides {
            server: Some("https://override:1".into()),
            token: Some("secret".into()),
            ..Overrides::default()
        },
        ..KubernetesConfig::default()
    };
    assert!(!format!("{settings:?}").contains("https://localhost:1"));
    assert_eq!(settings.to_string(), "of an inline kubeconfig");
    let access = read(&settings).await.unwrap();
    assert_eq!(
        access.config.cluster_url.to_string(),
        "https://localhost:1/"
    );
    assert!(access.auth.describe_rejected().contains("kubeconfigInline"));
    let overrides = Overrides {
        context: Some("other".into()),
        ..Overrides::default()
    };
    let error = read(&KubernetesConfig {
        overrides,
        ..settings
    })
    .await
    .err()
    .unwrap()
    .to_string();
    assert!(error.contains("other"), "{error}");
}

#[tokio::test]
async fn server_without_a_scheme_is_https_with_tls_settings_and_else_http() {
    let server = async |user: Value, cluster: Value| {
        let content = with(user, cluster).replace("https://localhost:1", "127.0.0.1:8443");
        read_text(&content)
            .await
            .ok()
            .unwrap()
            .config
            .cluster_url
            .to_string()
    };
    assert_eq!(server(json!({}), json!({})).await, "http://127.0.0.1:8443/");
    assert_eq!(
        server(json!({}), json!({ "insecure-skip-tls-verify": true })).await,
        "https://127.0.0.1:8443/"
    );
    let user = json!({ "client-certificate": "/pki/node.crt", "client-key": "/pki/node.key" });
    assert_eq!(server(user, json!({})).await, "https://127.0.0.1:8443/");
}

#[tokio::test]
async fn server_that_is_no_url_is_refused_and_named() {
    for (server, reason) in [
        ("https://localhost:65536", "the port"),
        ("localhost:99999", "the port"),
        ("ftp://localhost:1", "the scheme"),
        ("localhost:1/path", "a path"),
        ("ftp://me:secret@localhost:1", "the scheme"),
    ] {
        let error = read_text(&with(json!({}), json!({})).replace("https://localhost:1", server))
            .await
            .err()
            .unwrap();
        let named = without_credentials(server);
        assert!(
            error.contains(&format!("server `{named}` of cluster k: {reason}")),
            "{error}"
        );
    }
}

#[tokio::test]
async fn kubeconfig_that_leads_to_no_server_names_the_missing_setting() {
    let complete = with(json!({}), json!({}));
    let mut without_server: serde_json::Value = serde_json::from_str(&complete).unwrap();
    without_server["clusters"][0]["cluster"]
        .as_object_mut()
        .unwrap()
        .remove("server");
    for (text, advice) in [
        (String::new(), "current-context: NAME"),
        (
            complete.replace("\"contexts\"", "\"other\""),
            "one of its contexts",
        ),
        (
            complete.replace("\"clusters\"", "\"other\""),
            "one of its clusters",
        ),
        (without_server.to_string(), "server: https://HOST:PORT"),
    ] {
        let error = read_text(&text).await.err().unwrap();
        assert!(error.contains(advice), "{error}");
    }
}

#[tokio::test]
async fn endless_ca_file_of_a_kubeconfig_is_refused() {
    let error = read_text(&with(
        json!({}),
        json!({ "certificate-authority": "/dev/zero" }),
    ))
    .await
    .err()
    .unwrap();
    assert!(
        error.contains("cannot read /dev/zero: it is no regular file"),
        "{error}"
    );
}
