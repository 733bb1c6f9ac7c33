//! A server whose name has two addresses, in a network namespace of the test.

use std::process::Command;

use tokio::net::lookup_host;

use super::*;

/// Environment variable of the copy of the test that runs in its own network namespace.
const INSIDE: &str = "DATASTORE_TESTS_IN_OWN_NETWORK";

/// The neighbor entry has a wrong hardware address, so that packets to `fd00:5::2` are lost.
const IN_OWN_NETWORK: &str = r#"
set -e
PATH=$PATH:/usr/sbin:/sbin
ip link set lo up
ip link add near type veth peer name far
ip link set far up
ip link set near up
ip address add fd00:5::1/64 dev near nodad
ip neighbour add fd00:5::2 lladdr 02:00:00:00:00:02 dev near nud permanent
mount --bind "$0" /etc/hosts
exec "$@"
"#;

#[tokio::test]
async fn second_address_of_a_name_is_used_when_the_first_is_silent() {
    if std::env::var_os(INSIDE).is_none() {
        return run_in_own_network();
    }
    let server = Server::start(&["h2"], &[]).await;
    let addresses: Vec<_> = lookup_host(("localhost", server.port))
        .await
        .unwrap()
        .map(|at| at.ip())
        .collect();
    assert_eq!(
        addresses,
        [
            "fd00:5::2".parse::<std::net::IpAddr>().unwrap(),
            "127.0.0.1".parse().unwrap()
        ]
    );
    server
        .client(LONG)
        .send(&ApiRequest::get("/a"))
        .await
        .unwrap();
    assert_eq!(server.requests(), ["GET /a Bearer first"]);
}

fn run_in_own_network() {
    let files = tempfile::tempdir().unwrap();
    let hosts = files.path().join("hosts");
    std::fs::write(&hosts, "fd00:5::2 localhost\n127.0.0.1 localhost\n").unwrap();
    let mut unshare = Command::new("unshare");
    unshare
        .args([
            "--map-root-user",
            "--net",
            "--mount",
            "sh",
            "-c",
            IN_OWN_NETWORK,
        ])
        .arg(hosts);
    let thread = std::thread::current();
    let test = thread
        .name()
        .filter(|name| *name != "main")
        .expect("without --test-threads=1");
    unshare
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1");
    let outcome = unshare.output().unwrap();
    let output =
        [outcome.stdout, outcome.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(
        outcome.status.success() && output[0].contains("1 passed"),
        "{output:#?}"
    );
}
