//! The paths of each port, over real connections.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};

use super::profile::folded;
use super::*;
use crate::status::Component;

// Shared with the crate datastore, because the tests of both crates run at the same time and need
// different ports.
#[path = "../../../datastore/tests/stores/harness/port.rs"]
mod port;

use port::Port;

struct Served {
    status: Status,
    ports: watch::Sender<Ports>,
    stop: CancellationToken,
    task: JoinHandle<()>,
    _directory: tempfile::TempDir,
}

async fn served(ports: Ports) -> Served {
    let directory = tempfile::tempdir().expect("a directory");
    let status = Status::new(directory.path().join("status.json"));
    let (sender, receiver) = watch::channel(ports);
    let stop = CancellationToken::new();
    let task = start(receiver, status.clone(), Metrics::new(), stop.clone())
        .await
        .expect("ports");
    Served {
        status,
        ports: sender,
        stop,
        task,
        _directory: directory,
    }
}

/// Sends a request. Returns the status code and the body, or `None` if the port is closed.
async fn ask(method: &str, port: u16, path: &str) -> Option<(u16, Vec<u8>)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    let request =
        format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    timeout(Duration::from_secs(30), stream.read_to_end(&mut answer))
        .await
        .expect("an answer in time")
        .ok()?;
    let head = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
    let code = std::str::from_utf8(&answer[9..12])
        .expect("a status code")
        .parse()
        .expect("a number");
    Some((code, answer.split_off(head + 4)))
}

async fn get(port: u16, path: &str) -> Option<(u16, String)> {
    let (code, body) = ask("GET", port, path).await?;
    Some((code, String::from_utf8_lossy(&body).into_owned()))
}

#[tokio::test]
async fn health_endpoints_report_the_status() {
    let held = Port::free();
    let port = held.number;
    let served = served(Ports {
        health: Some(port),
        ..Ports::default()
    })
    .await;
    served.status.require([Component::Startup]);
    for path in ["/readiness", "/readyz"] {
        let expected = "Startup          not ready  initialized to false\n";
        assert_eq!(
            get(port, path).await,
            Some((503, expected.into())),
            "{path}"
        );
    }
    served.status.ready(Component::Startup);
    for path in ["/readiness", "/readyz"] {
        assert_eq!(
            get(port, path).await,
            Some((200, "Startup          ready\n".into())),
            "{path}"
        );
    }
    served
        .status
        .ready_with_note(Component::Roles, "not bound: r".into());
    let expected = "Roles            ready  not bound: r\nStartup          ready\n";
    assert_eq!(get(port, "/readyz").await, Some((200, expected.into())));
    served.status.remove(Component::Roles);
    served.status.not_ready(Component::KubeApiServer, "away");
    assert_eq!(
        get(port, "/readiness").await.map(|(code, _)| code),
        Some(503)
    );
    for path in ["/liveness", "/healthz"] {
        assert_eq!(
            get(port, path).await,
            Some((200, "live\n".into())),
            "{path}"
        );
    }
    served.status.not_ready(Component::Work, "gc has not moved");
    for path in ["/liveness", "/healthz"] {
        let (code, body) = get(port, path).await.expect("an answer");
        assert!(
            code == 503 && body.contains("gc has not moved"),
            "{path}: {code} {body}"
        );
    }
    served.status.remove(Component::Work);
    assert_eq!(get(port, "/metrics").await.map(|(code, _)| code), Some(404));
    assert_eq!(
        ask("POST", port, "/readyz").await.map(|(code, _)| code),
        Some(405)
    );
    assert_eq!(ask("HEAD", port, "/healthz").await, Some((200, Vec::new())));
}

#[tokio::test]
async fn metrics_port_serves_metrics_only() {
    let held = Port::free();
    let port = held.number;
    let _served = served(Ports {
        metrics: Some(port),
        ..Ports::default()
    })
    .await;
    let (code, body) = get(port, "/metrics").await.expect("an answer");
    assert_eq!(code, 200);
    assert!(
        body.contains("calico_migration_duration_seconds_count 0\n"),
        "{body}"
    );
    for path in [
        "/debug/pprof/",
        "/debug/pprof/profile?seconds=2",
        "/debug/pprof/heap",
        "/healthz",
        "/readyz",
        "/",
    ] {
        assert_eq!(
            get(port, path).await.map(|(code, _)| code),
            Some(404),
            "{path}"
        );
    }
}

#[tokio::test]
async fn profiles_are_served_on_loopback_only() {
    let held = Port::free();
    let port = held.number;
    let _served = served(Ports {
        profiling: Some(port),
        ..Ports::default()
    })
    .await;
    eventually(port).await;
    assert_eq!(get(port, "/metrics").await.map(|(code, _)| code), Some(404));
    // The whole network 127.0.0.0/8 is loopback, so this address stands for any other address of
    // the machine.
    assert!(
        TcpStream::connect(SocketAddr::from(([127, 0, 0, 2], port)))
            .await
            .is_err()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cpu_profile_shows_the_busy_thread() {
    let held = Port::free();
    let port = held.number;
    let _served = served(Ports {
        profiling: Some(port),
        ..Ports::default()
    })
    .await;
    eventually(port).await;
    let stop = CancellationToken::new();
    let busy = std::thread::Builder::new().name("spinner".into()).spawn({
        let stop = stop.clone();
        move || spin_until(&stop)
    });
    let profile = || ask("GET", port, "/debug/pprof/profile?seconds=1");
    let (one, another) = tokio::join!(profile(), profile());
    stop.cancel();
    busy.expect("a thread").join().expect("no panic");
    let mut answers = [one, another].map(|answer| answer.expect("an answer"));
    answers.sort_by_key(|(code, _)| *code);
    let [(code, profile), (refused, _)] = answers;
    assert_eq!((code, refused), (200, 503), "one at a time");
    let stacks = folded(&profile);
    assert!(
        stacks
            .iter()
            .any(|stack| stack.starts_with("thread spinner;")),
        "{stacks:?}"
    );
    // Compares addresses, because the running program contains no names. The function is about 100
    // bytes long.
    let spinning = spin_until as fn(&CancellationToken) as usize;
    let program = std::env::current_exe()
        .expect("a program")
        .display()
        .to_string();
    let within = |frame: &str| {
        let (address, file) = frame.split_once('@')?;
        let address = usize::from_str_radix(address, 16).ok()?;
        Some(
            (spinning..spinning + 512).contains(&address)
                && file.split(' ').next() == Some(&program),
        )
    };
    assert!(
        stacks
            .iter()
            .flat_map(|stack| stack.split(';'))
            .any(|frame| within(frame) == Some(true)),
        "{stacks:?}"
    );
    // A profile of 90 s would not end before the server closes the connection.
    for bad in ["0", "61", "90", "x", "-1"] {
        assert_eq!(
            get(port, &format!("/debug/pprof/profile?seconds={bad}"))
                .await
                .map(|(code, _)| code),
            Some(400)
        );
    }
}

#[tokio::test]
async fn symbol_endpoint_reports_no_symbols_and_profiles_reject_post() {
    let held = Port::free();
    let port = held.number;
    let _served = served(Ports {
        profiling: Some(port),
        ..Ports::default()
    })
    .await;
    eventually(port).await;
    let answer = ask("POST", port, "/debug/pprof/symbol").await;
    assert_eq!(answer, Some((200, b"num_symbols: 0\n".to_vec())));
    for path in ["/debug/pprof/heap", "/debug/pprof/profile"] {
        assert_eq!(
            ask("POST", port, path).await.map(|(code, _)| code),
            Some(405),
            "{path}"
        );
    }
}

#[inline(never)]
fn spin_until(stop: &CancellationToken) {
    while !stop.is_cancelled() {
        std::hint::black_box(());
    }
}

#[tokio::test]
async fn heap_profile_shows_large_allocations() {
    let held = Port::free();
    let port = held.number;
    let _served = served(Ports {
        profiling: Some(port),
        ..Ports::default()
    })
    .await;
    eventually(port).await;
    let kept = vec![1u8; 64 << 20];
    let (code, profile) = ask("GET", port, "/debug/pprof/heap")
        .await
        .expect("an answer");
    assert_eq!(code, 200);
    let private = |line: &String| -> u64 {
        line.split([' ', ',', '[', ']'])
            .filter_map(|word| word.parse::<u64>().ok())
            .nth(1)
            .expect("three values")
    };
    let largest = folded(&profile).iter().map(private).max();
    assert!(largest.is_some_and(|bytes| bytes > 64 << 20), "{largest:?}");
    let (code, text) = get(port, "/debug/pprof/heap?debug=1")
        .await
        .expect("an answer");
    assert!(
        code == 200 && text.contains("KiB") && text.contains("anonymous"),
        "{text}"
    );
    drop(kept);
}

#[tokio::test]
async fn ports_change_while_the_server_runs() {
    let held = [Port::free(), Port::free()];
    let [first, second] = held.each_ref().map(|port| port.number);
    let served = served(Ports {
        metrics: Some(first),
        ..Ports::default()
    })
    .await;
    assert!(get(first, "/metrics").await.is_some());
    served.ports.send_replace(Ports {
        metrics: Some(second),
        health: Some(first),
        ..Ports::default()
    });
    eventually(second).await;
    eventually(first).await;
    assert_eq!(
        get(second, "/metrics").await.map(|(code, _)| code),
        Some(200)
    );
    assert_eq!(
        get(first, "/healthz").await.map(|(code, _)| code),
        Some(200)
    );
    served.ports.send_replace(Ports::default());
    let begin = Instant::now();
    while TcpStream::connect(("127.0.0.1", second)).await.is_ok() {
        assert!(begin.elapsed().as_secs() < 10, "the port is still open");
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn port_in_use_fails_at_the_start_and_is_awaited_later() {
    let taken = TcpListener::bind("[::]:0").await.expect("a port");
    let port = taken.local_addr().expect("its address").port();
    let status = Status::new("/proc/none/status.json");
    for ports in [
        Ports {
            metrics: Some(port),
            ..Ports::default()
        },
        Ports {
            health: Some(port),
            ..Ports::default()
        },
    ] {
        let (_sender, receiver) = watch::channel(ports);
        let failed = start(
            receiver,
            status.clone(),
            Metrics::new(),
            CancellationToken::new(),
        )
        .await;
        let error = failed.expect_err("the port is taken").to_string();
        assert!(
            error.starts_with(&format!("cannot listen on port {port}: ")),
            "{error}"
        );
    }
    let served = served(Ports::default()).await;
    served.ports.send_replace(Ports {
        metrics: Some(port),
        ..Ports::default()
    });
    sleep(Duration::from_millis(100)).await;
    drop(taken);
    eventually(port).await;
    assert_eq!(get(port, "/metrics").await.map(|(code, _)| code), Some(200));
}

#[tokio::test]
async fn stop_ends_the_server_despite_an_open_connection() {
    let held = Port::free();
    let port = held.number;
    let served = served(Ports {
        health: Some(port),
        ..Ports::default()
    })
    .await;
    let _silent = TcpStream::connect(("127.0.0.1", port))
        .await
        .expect("connected");
    served.stop.cancel();
    timeout(Duration::from_secs(5), served.task)
        .await
        .expect("at once")
        .expect("no panic");
    assert!(TcpStream::connect(("127.0.0.1", port)).await.is_err());
}

/// Opens a connection from this address of the loopback interface, and sends the beginning of a
/// request.
async fn slow_connection(source: [u8; 4], port: u16) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket
        .bind(SocketAddr::from((source, 0)))
        .expect("an address");
    let mut stream = socket
        .connect(SocketAddr::from(([127, 0, 0, 1], port)))
        .await
        .expect("connected");
    stream.write_all(b"GET /live").await.expect("sent");
    stream
}

/// The time limit is less than that of a request, after which the server closes a slow connection
/// anyway.
#[tokio::test]
async fn slow_connections_do_not_delay_a_probe() {
    let held = Port::free();
    let port = held.number;
    let _served = served(Ports {
        health: Some(port),
        ..Ports::default()
    })
    .await;
    for source in [[127, 0, 0, 1], [127, 0, 0, 2]] {
        let mut slow = Vec::new();
        for _ in 0..150 {
            slow.push(slow_connection(source, port).await);
        }
        let answer = timeout(Duration::from_secs(8), get(port, "/liveness"))
            .await
            .expect("in time");
        assert_eq!(answer.map(|(code, _)| code), Some(200), "{source:?}");
    }
}

#[tokio::test]
async fn connection_of_the_address_with_most_connections_is_closed_first() {
    let held = Port::free();
    let port = held.number;
    let _served = served(Ports {
        health: Some(port),
        ..Ports::default()
    })
    .await;
    let mut early = slow_connection([127, 0, 0, 1], port).await;
    let mut slow = Vec::new();
    for _ in 0..150 {
        slow.push(slow_connection([127, 0, 0, 2], port).await);
    }
    let mut end = [0];
    let closed = timeout(Duration::from_secs(8), slow[0].read(&mut end))
        .await
        .expect("closed in time");
    assert!(
        !matches!(closed, Ok(1..)),
        "the server has no response to it"
    );
    early
        .write_all(b"ness HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await
        .expect("the connection is open");
    let mut answer = Vec::new();
    early.read_to_end(&mut answer).await.expect("a response");
    assert!(
        answer.starts_with(b"HTTP/1.1 200"),
        "{}",
        String::from_utf8_lossy(&answer)
    );
}

async fn eventually(port: u16) {
    let begin = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
        assert!(begin.elapsed().as_secs() < 10, "nobody listens on {port}");
        sleep(Duration::from_millis(10)).await;
    }
}
