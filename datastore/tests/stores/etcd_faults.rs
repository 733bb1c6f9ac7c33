//! Errors for an etcd that is unreachable, rejects requests, or loses responses.

use std::net::TcpListener;
use std::time::Duration;

use crate::harness::certificates::Certificates;
use crate::harness::etcd::EtcdServer;
use crate::harness::port::Port;
use crate::harness::proxy::Proxy;
use crate::harness::{DEADLINE, block_on, etcd_config, marker, pool};
use data_encoding::BASE64;
use datastore::config::{EtcdConfig, TlsConfig};
use datastore::watch::WatchEvent;
use datastore::{
    CalicoWatcher, ClusterStore as _, ConfigError, Datastore, DatastoreConfig, DatastoreSettings,
};
use libcalico::api::{IpPool, ObjectKey, ObjectSelect};
use libcalico::store::{Store, StoreError};
use libcalico::variables::Variables;

fn open(endpoints: &[&str], deadline: Duration) -> Datastore {
    let endpoints = endpoints.iter().map(|e| (*e).to_owned()).collect();
    let config = EtcdConfig {
        endpoints,
        tls: None,
        credentials: None,
        deadline,
    };
    Datastore::open(&DatastoreConfig::Etcd(Box::new(config))).unwrap()
}

fn open_settings(
    settings: &DatastoreSettings,
    env: &[(&str, &str)],
) -> Result<Datastore, ConfigError> {
    let lookup = |name: &str| {
        env.iter()
            .find(|(n, _)| *n == name)
            .map(|(_, v)| (*v).to_owned())
    };
    Datastore::open(&DatastoreConfig::new(settings, Variables::new(&lookup))?)
}

/// Returns an endpoint on which no server listens while `port` is reserved.
fn unused(port: &Port) -> String {
    format!("http://127.0.0.1:{}", port.number)
}

async fn read_absent_pool(store: &Datastore) -> Result<(), StoreError> {
    match store.get::<IpPool>(&ObjectKey::global("absent")).await {
        Err(StoreError::NotFound { .. }) => Ok(()),
        other => Err(other.expect_err("nothing is there")),
    }
}

#[test]
fn unreachable_endpoints_are_named_and_no_request_was_sent() {
    let ports = [Port::free(), Port::free()];
    let [a, b] = ports.each_ref().map(unused);
    let store = open(&[&a, &b], DEADLINE);
    let (key, value) = pool("p", "1");
    let error = block_on(store.create(&key, &value)).unwrap_err();
    let StoreError::Unavailable {
        datastore,
        reason,
        outcome_unknown,
    } = &error
    else {
        panic!("{error:?}")
    };
    assert!(
        datastore.contains(a.as_str()) && datastore.contains(b.as_str()),
        "{datastore}"
    );
    assert!(reason.contains("Connection refused"), "{reason}");
    assert!(!outcome_unknown);
    assert_eq!(store.requests(), 0);
}

#[test]
fn next_etcd_endpoint_serves_when_the_first_is_down() {
    let server = EtcdServer::start();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let silent = format!("http://{}", listener.local_addr().unwrap());
    block_on(async {
        let port = Port::free();
        let store = open(&[&unused(&port), &server.url], DEADLINE);
        read_absent_pool(&store).await.unwrap();
        assert_eq!(store.requests(), 1);
        let (key, value) = pool("p", "1");
        store.create(&key, &value).await.unwrap();
        // The silent endpoint delays only the first request, by its share of the time.
        let store = open(&[&silent, &server.url], Duration::from_secs(8));
        read_absent_pool(&store).await.unwrap();
        let connections = listener.incoming().take_while(Result::is_ok).count();
        assert_eq!(connections, 1);
        read_absent_pool(&store).await.unwrap();
        assert!(
            listener.accept().is_err(),
            "the client tries the silent endpoint again"
        );
    });
}

#[test]
fn silent_etcd_server_ends_the_request_at_the_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let store = open(
        &[&format!("http://{}", listener.local_addr().unwrap())],
        Duration::from_secs(4),
    );
    let (key, value) = pool("p", "1");
    let error = block_on(store.create(&key, &value)).unwrap_err();
    // The error has the time since the connection was established.
    assert!(error.to_string().contains("no answer within "), "{error}");
    assert!(
        matches!(
            error,
            StoreError::Unavailable {
                outcome_unknown: true,
                ..
            }
        ),
        "{error:?}"
    );
}

#[test]
fn write_with_a_lost_response_has_an_unknown_outcome() {
    let server = EtcdServer::start();
    let proxy = Proxy::to(&server.url);
    block_on(async {
        let store = open(&[&proxy.url], DEADLINE);
        read_absent_pool(&store).await.unwrap();
        proxy.lose_answers(true);
        let (key, value) = pool("p", "1");
        let error = store.create(&key, &value).await.unwrap_err();
        assert!(
            matches!(
                error,
                StoreError::Unavailable {
                    outcome_unknown: true,
                    ..
                }
            ),
            "{error:?}"
        );
        let error = read_absent_pool(&store).await.unwrap_err();
        assert!(
            matches!(
                error,
                StoreError::Unavailable {
                    outcome_unknown: false,
                    ..
                }
            ),
            "{error:?}"
        );
        proxy.lose_answers(false);
        assert_eq!(
            marker(&store.get::<IpPool>(&key).await.unwrap().value),
            "1",
            "the write took effect"
        );
    });
}

#[test]
fn read_with_a_lost_response_is_retried_on_the_next_endpoint() {
    let server = EtcdServer::start();
    let proxy = Proxy::to(&server.url);
    proxy.lose_answers(true);
    block_on(async {
        let store = open(&[&proxy.url, &server.url], DEADLINE);
        read_absent_pool(&store).await.unwrap();
        assert_eq!(store.requests(), 2);
    });
}

#[test]
fn killed_etcd_is_unavailable_until_it_starts_again() {
    let mut server = EtcdServer::start();
    // A new server accepts connections before it can answer.
    let store = open(&[&server.url], DEADLINE);
    block_on(async {
        read_absent_pool(&store).await.unwrap();
        server.kill();
        let (key, value) = pool("p", "1");
        let error = store.create(&key, &value).await.unwrap_err();
        assert!(error.is_unavailable(), "{error:?}");
        assert!(read_absent_pool(&store).await.unwrap_err().is_unavailable());
        server.start_again();
        read_absent_pool(&store).await.unwrap();
        store.create(&key, &value).await.unwrap();
    });
}

#[test]
fn wrong_etcd_password_is_rejected_and_the_error_names_the_user() {
    let server = EtcdServer::start();
    let settings = DatastoreSettings {
        etcd_endpoints: server.url.clone(),
        ..DatastoreSettings::default()
    };
    let login = |user, password| [("ETCD_USERNAME", user), ("ETCD_PASSWORD", password)];
    let refused = |env: &[(&str, &str)]| {
        let store = open_settings(&settings, env).unwrap();
        match block_on(read_absent_pool(&store)) {
            Err(StoreError::Unauthorized { reason } | StoreError::Forbidden { reason }) => reason,
            other => panic!("{other:?}"),
        }
    };
    // A password for a server without authentication is not an error.
    block_on(read_absent_pool(
        &open_settings(&settings, &login("root", "secret")).unwrap(),
    ))
    .unwrap();

    for args in [
        &["user", "add", "root:secret"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "bob:b"],
    ] {
        assert!(server.ctl(args).status.success(), "{args:?}");
    }
    assert!(server.ctl(&["auth", "enable"]).status.success());

    let store = open_settings(&settings, &login("root", "secret")).unwrap();
    block_on(read_absent_pool(&store)).unwrap();
    assert_eq!(store.requests(), 2, "one authentication, one read");
    let reason = refused(&login("root", "wrong"));
    assert!(
        reason.contains("authentication failed") && reason.contains("`root`"),
        "{reason}"
    );
    let reason = refused(&login("bob", "b"));
    assert!(
        reason.contains("permission denied") && reason.contains("`bob`"),
        "{reason}"
    );
    let reason = refused(&[]);
    assert!(
        reason.contains("user name is empty") && reason.contains("set ETCD_USERNAME"),
        "{reason}"
    );
}

fn ctl(server: &EtcdServer, args: &[&str]) {
    let ran = server.ctl(args);
    assert!(
        ran.status.success(),
        "{args:?}: {}",
        String::from_utf8_lossy(&ran.stderr)
    );
}

/// Returns the flags with which etcd issues a JWT, and the directory of its key.
fn jwt_flags() -> ([String; 2], tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("key");
    std::fs::write(&key, "0123456789abcdef0123456789abcdef").unwrap();
    let jwt = format!(
        "jwt,pub-key={0},priv-key={0},sign-method=HS256",
        key.display()
    );
    (["--auth-token".to_owned(), jwt], directory)
}

/// The status of etcd needs no permission. The alarm call is a write, and needs the role `root`.
#[test]
fn alarm_of_etcd_is_found_by_a_user_without_permissions() {
    let server = EtcdServer::start_with(&["--quota-backend-bytes".into(), "16777216".into()]);
    for args in [
        &["user", "add", "root:secret"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "bob:b"],
        &["role", "add", "nothing"],
        &["user", "grant-role", "bob", "nothing"],
        &["auth", "enable"],
    ] {
        ctl(&server, args);
    }
    let settings = DatastoreSettings {
        etcd_endpoints: server.url.clone(),
        ..DatastoreSettings::default()
    };
    let open = |user, password| {
        open_settings(
            &settings,
            &[("ETCD_USERNAME", user), ("ETCD_PASSWORD", password)],
        )
    };
    let (root, bob) = (open("root", "secret").unwrap(), open("bob", "b").unwrap());
    block_on(async {
        assert_eq!(
            (root.find_alarm().await, bob.find_alarm().await),
            (None, None)
        );
        let large = "x".repeat(1 << 20);
        let mut refused = None;
        for number in 0..100 {
            let (key, value) = pool(&format!("p{number}"), &large);
            refused = root.create(&key, &value).await.err();
            if refused.is_some() {
                break;
            }
        }
        assert!(
            matches!(refused, Some(StoreError::Alarm { .. })),
            "{refused:?}"
        );
        for store in [root, bob] {
            let alarm = store.find_alarm().await;
            assert!(
                matches!(&alarm, Some(StoreError::Alarm { reason }) if reason.contains("NOSPACE")),
                "{alarm:?}"
            );
        }
    });
}

/// Each change of authentication refuses the token of the watch, which then logs in again, lists
/// and watches.
#[test]
fn watch_of_etcd_logs_in_again_after_changes_of_authentication() {
    let (jwt, _directory) = jwt_flags();
    for flags in [&[][..], &jwt] {
        let server = EtcdServer::start_with(flags);
        let settings = DatastoreSettings {
            etcd_endpoints: server.url.clone(),
            ..DatastoreSettings::default()
        };
        let store = open_settings(
            &settings,
            &[("ETCD_USERNAME", "root"), ("ETCD_PASSWORD", "secret")],
        )
        .unwrap();
        block_on(async {
            let mut watch = store.watch::<IpPool>(&ObjectSelect::default()).unwrap();
            let create = async |name: &str| {
                let (key, value) = pool(name, "1");
                store.create(&key, &value).await.unwrap();
            };
            create("first").await;
            await_pool(&mut watch, "first").await;
            for args in [
                &["user", "add", "root:secret"][..],
                &["user", "grant-role", "root", "root"],
                &["auth", "enable"],
            ] {
                ctl(&server, args);
            }
            create("second").await;
            await_pool(&mut watch, "second").await;
            ctl(&server, &["--user", "root:secret", "role", "add", "other"]);
            create("third").await;
            await_pool(&mut watch, "third").await;
        });
    }
}

/// Waits until the watch reports the pool.
async fn await_pool(watch: &mut CalicoWatcher<IpPool>, name: &str) {
    let reported = async {
        loop {
            if matches!(watch.next().await, WatchEvent::Upsert(entry) if entry.key.name == name) {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), reported)
        .await
        .expect("the watch reports the pool");
}

#[test]
fn etcd_login_is_repeated_after_changes_of_authentication() {
    let (jwt, _directory) = jwt_flags();
    for flags in [&[][..], &jwt] {
        let server = EtcdServer::start_with(flags);
        let ctl = |args: &[&str]| ctl(&server, args);
        let settings = DatastoreSettings {
            etcd_endpoints: server.url.clone(),
            ..DatastoreSettings::default()
        };
        let env = [("ETCD_USERNAME", "root"), ("ETCD_PASSWORD", "secret")];
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let store = open_settings(&settings, &env).unwrap();
        runtime.block_on(read_absent_pool(&store)).unwrap();
        let before = store.requests();

        // The token is missing.
        ctl(&["user", "add", "root:secret"]);
        ctl(&["user", "grant-role", "root", "root"]);
        ctl(&["auth", "enable"]);
        runtime.block_on(read_absent_pool(&store)).unwrap();
        assert_eq!(
            store.requests() - before,
            3,
            "a refused read, one authentication, one read"
        );

        // A JWT is for one revision of the users and roles.
        ctl(&["--user", "root:secret", "role", "add", "other"]);
        runtime.block_on(read_absent_pool(&store)).unwrap();
        runtime.block_on(read_absent_pool(&store)).unwrap();
        let expected = if flags.is_empty() { 5 } else { 7 };
        assert_eq!(store.requests() - before, expected);
    }
}

#[test]
fn certificates_are_accepted_from_files_inline_pem_and_base64() {
    let trusted = Certificates::new("trusted");
    let server = EtcdServer::start_tls(&trusted.etcd_flags());
    let path = |name: &str| trusted.file(name).display().to_string();
    let files = DatastoreSettings {
        etcd_endpoints: server.url.clone(),
        etcd_ca_cert_file: path("ca.pem"),
        etcd_cert_file: path("client.pem"),
        etcd_key_file: path("client-key.pem"),
        ..DatastoreSettings::default()
    };
    let inline = |encode: &dyn Fn(String) -> String| DatastoreSettings {
        etcd_endpoints: server.url.clone(),
        etcd_ca_cert: encode(trusted.text("ca.pem")),
        etcd_cert: encode(trusted.text("client.pem")),
        etcd_key: encode(trusted.text("client-key.pem")),
        ..DatastoreSettings::default()
    };
    for settings in [
        files,
        inline(&|text| text),
        inline(&|text| BASE64.encode(text.as_bytes())),
    ] {
        let store = open_settings(&settings, &[]).unwrap();
        block_on(read_absent_pool(&store)).unwrap();
    }
}

#[test]
fn wrong_certificates_are_rejected_and_the_error_names_the_files() {
    let (trusted, other) = (Certificates::new("trusted"), Certificates::new("other"));
    let server = EtcdServer::start_tls(&trusted.etcd_flags());
    let path = |of: &Certificates, name: &str| of.file(name).display().to_string();
    let base = DatastoreSettings {
        etcd_endpoints: server.url.clone(),
        ..DatastoreSettings::default()
    };
    let reason = |settings: &DatastoreSettings| {
        let store = open_settings(settings, &[]).unwrap();
        match block_on(read_absent_pool(&store)) {
            Err(StoreError::Unauthorized { reason }) => reason,
            other => panic!("{other:?}"),
        }
    };
    let other_ca = path(&other, "ca.pem");
    let untrusted = DatastoreSettings {
        etcd_ca_cert_file: other_ca.clone(),
        ..base.clone()
    };
    let text = reason(&untrusted);
    assert!(
        text.contains("not trusted") && text.contains(&other_ca),
        "{text}"
    );

    let foreign_client = DatastoreSettings {
        etcd_ca_cert_file: path(&trusted, "ca.pem"),
        etcd_cert_file: path(&other, "client.pem"),
        etcd_key_file: path(&other, "client-key.pem"),
        ..base.clone()
    };
    let text = reason(&foreign_client);
    assert!(
        text.contains("refuses the client certificate")
            && text.contains(&path(&other, "client.pem")),
        "{text}"
    );

    let no_client_certificate = DatastoreSettings {
        etcd_ca_cert_file: path(&trusted, "ca.pem"),
        ..base.clone()
    };
    let text = reason(&no_client_certificate);
    assert!(
        text.contains("no client certificate (etcd_cert_file is not set)"),
        "{text}"
    );

    let missing = DatastoreSettings {
        etcd_ca_cert_file: "/nowhere/ca.pem".into(),
        ..base.clone()
    };
    let error = open_settings(&missing, &[]).unwrap_err().to_string();
    assert!(
        error.starts_with("etcd_ca_cert_file: cannot read /nowhere/ca.pem"),
        "{error}"
    );
    let swapped = DatastoreSettings {
        etcd_cert_file: path(&trusted, "client-key.pem"),
        etcd_key_file: path(&trusted, "client.pem"),
        ..base
    };
    let error = open_settings(&swapped, &[]).unwrap_err().to_string();
    assert!(
        error.contains("client-key.pem holds no PEM block"),
        "{error}"
    );
}

#[test]
fn wrong_url_scheme_is_reported_with_the_right_scheme() {
    let trusted = Certificates::new("trusted");
    let secured = EtcdServer::start_tls(&trusted.etcd_flags());
    let plain = EtcdServer::start();
    block_on(async {
        let store = open(&[&secured.url.replace("https", "http")], DEADLINE);
        let error = read_absent_pool(&store).await.unwrap_err();
        assert!(
            error.is_unavailable() && error.to_string().contains("write https://"),
            "{error}"
        );
        let tls = Some(TlsConfig::default());
        let DatastoreConfig::Etcd(config) = etcd_config(&[&plain.url.replace("http", "https")])
        else {
            unreachable!()
        };
        let store = Datastore::open(&DatastoreConfig::Etcd(Box::new(EtcdConfig {
            tls,
            ..*config
        })))
        .unwrap();
        let error = read_absent_pool(&store).await.unwrap_err();
        assert!(
            error.is_unavailable() && error.to_string().contains("write http://"),
            "{error}"
        );
    });
}

#[test]
fn replaced_client_certificate_is_used_by_the_next_connection() {
    let (trusted, other) = (Certificates::new("trusted"), Certificates::new("other"));
    let server = EtcdServer::start_tls(&trusted.etcd_flags());
    let path = |name: &str| trusted.file(name).display().to_string();
    let used = tempfile::tempdir().unwrap();
    let (certificate, key) = (used.path().join("cert.pem"), used.path().join("key.pem"));
    let write = |of: &Certificates| {
        std::fs::write(&certificate, of.text("client.pem")).unwrap();
        std::fs::write(&key, of.text("client-key.pem")).unwrap();
    };
    write(&other);
    let settings = DatastoreSettings {
        etcd_endpoints: server.url.clone(),
        etcd_cert_file: certificate.display().to_string(),
        etcd_key_file: key.display().to_string(),
        etcd_ca_cert_file: path("ca.pem"),
        ..DatastoreSettings::default()
    };
    let store = open_settings(&settings, &[]).unwrap();
    block_on(async {
        let refused = read_absent_pool(&store).await;
        assert!(
            matches!(refused, Err(StoreError::Unauthorized { .. })),
            "{refused:?}"
        );
        std::fs::remove_file(&key).unwrap();
        let refused = read_absent_pool(&store).await;
        assert!(
            matches!(refused, Err(StoreError::Unauthorized { .. })),
            "{refused:?}"
        );
        write(&trusted);
        read_absent_pool(&store).await.unwrap();
    });
}
