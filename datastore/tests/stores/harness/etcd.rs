//! A real etcd server on free loopback ports.

use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::port::Port;

/// A running server. It ends when the value is dropped, and also when this process ends in any way.
pub struct EtcdServer {
    pub url: String,
    shell: Child,
    _directory: TempDir,
    ports: Arc<[Port; 2]>,
}

impl EtcdServer {
    pub fn start() -> Self {
        Self::launch("http", &[])
    }

    /// Starts a server that requires TLS, with flags for its certificates.
    pub fn start_tls(flags: &[String]) -> Self {
        Self::launch("https", flags)
    }

    /// Starts a server without TLS, with flags.
    pub fn start_with(flags: &[String]) -> Self {
        Self::launch("http", flags)
    }

    fn launch(scheme: &str, flags: &[String]) -> Self {
        Self::launch_on(Arc::new([Port::free(), Port::free()]), scheme, flags)
    }

    fn launch_on(ports: Arc<[Port; 2]>, scheme: &str, flags: &[String]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let [client, peer] = (*ports).each_ref().map(|port| port.number);
        let url = format!("{scheme}://127.0.0.1:{client}");
        let peer = format!("http://127.0.0.1:{peer}");
        let log = std::fs::File::create(directory.path().join("log")).unwrap();
        // The shell kills etcd when the pipe closes, because of a drop or the end of this process.
        let shell = Command::new("sh")
            .args([
                "-c",
                r#"etcd "$@" </dev/null & read -r _; kill -9 $!; wait $!; rm -rf "$DIRECTORY""#,
                "etcd",
            ])
            .args([
                "--name",
                "t",
                "--log-level",
                "warn",
                "--listen-client-urls",
                &url,
                "--advertise-client-urls",
                &url,
            ])
            .args([
                "--listen-peer-urls",
                &peer,
                "--initial-advertise-peer-urls",
                &peer,
            ])
            .args(["--initial-cluster", &format!("t={peer}")])
            .arg("--data-dir")
            .arg(directory.path().join("data"))
            .args(flags)
            .env("DIRECTORY", directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("sh starts");
        wait_for(client, &directory.path().join("log"));
        EtcdServer {
            url,
            shell,
            _directory: directory,
            ports,
        }
    }

    /// Runs etcdctl against this server, without TLS.
    pub fn ctl(&self, args: &[&str]) -> std::process::Output {
        let mut command = Command::new("etcdctl");
        command
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.url])
            .args(args)
            .output()
            .expect("etcdctl runs")
    }

    /// Kills the server at once, as a power failure would.
    pub fn kill(&mut self) {
        drop(self.shell.stdin.take());
        self.shell.wait().unwrap();
    }

    /// Starts an empty server without TLS on the ports of this server, which must have been killed.
    pub fn start_again(&mut self) {
        *self = Self::launch_on(self.ports.clone(), "http", &[]);
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn wait_for(port: u16, log: &Path) {
    let until = Instant::now() + Duration::from_secs(20);
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        let log_text = || std::fs::read_to_string(log).unwrap_or_default();
        assert!(
            Instant::now() < until,
            "etcd (Debian: etcd-server) does not start: {}",
            log_text()
        );
        sleep(Duration::from_millis(20));
    }
}
