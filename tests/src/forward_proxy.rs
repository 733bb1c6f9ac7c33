//! Proxies of companies, in front of any server: tinyproxy (HTTP), microsocks (SOCKS 5), and
//! stunnel before tinyproxy (HTTP over TLS). They listen on loopback of a private host.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::command::present;
use crate::controllers::{PATIENCE, await_that};
use crate::namespaces::Host;
use crate::proxy::ServerCertificate;
use crate::server_process::ServerProcess;

/// Reason for which tests are skipped without the programs.
pub const REQUIRES: &str = "tinyproxy, microsocks or stunnel4 is not installed (Debian: \
                            tinyproxy-bin, microsocks, stunnel4)";

const HTTP_PORT: u16 = 3128;
const TLS_PORT: u16 = 3129;
const SOCKS_PORT: u16 = 1080;

/// A running proxy. Killed on drop.
#[derive(Debug)]
pub struct ForwardProxy {
    scheme: &'static str,
    host: &'static str,
    port: u16,
    login: Option<(&'static str, &'static str)>,
    /// The last one accepts the connections of clients.
    programs: Vec<Program>,
    log: PathBuf,
}

#[derive(Debug)]
struct Program {
    name: &'static str,
    args: Vec<String>,
    process: ServerProcess,
}

impl ForwardProxy {
    /// Returns true if all programs are installed.
    pub fn installed() -> bool {
        ["tinyproxy", "microsocks", "stunnel4"]
            .iter()
            .all(|program| present(program))
    }

    /// Starts a proxy for HTTP, which demands `login` if there is one.
    pub fn http(host: &Host, login: Option<(&'static str, &'static str)>) -> Result<ForwardProxy> {
        let directory = host.dir("tinyproxy");
        let programs = vec![Program::tinyproxy(&directory, login)?];
        Self::started("http", HTTP_PORT, login, programs, directory.join("log"))
    }

    /// Starts a proxy for HTTP over TLS, with a certificate for `localhost`.
    pub fn https(host: &Host, certificate: &ServerCertificate) -> Result<ForwardProxy> {
        let directory = host.dir("stunnel");
        let file = |name: &str| directory.join(name);
        fs::write(file("cert.pem"), &certificate.certificate)?;
        fs::write(file("key.pem"), &certificate.key)?;
        let configuration = format!(
            "foreground = yes\npid =\n[proxy]\naccept = 127.0.0.1:{TLS_PORT}\nconnect = \
             127.0.0.1:{HTTP_PORT}\n\
             cert = {}\nkey = {}\n",
            file("cert.pem").display(),
            file("key.pem").display()
        );
        fs::write(file("stunnel.conf"), configuration)?;
        let stunnel = Program::new("stunnel4", vec![file("stunnel.conf").display().to_string()]);
        let inner = Program::tinyproxy(&directory, None)?;
        let proxy = Self::started("https", TLS_PORT, None, vec![inner, stunnel], file("log"))?;
        Ok(ForwardProxy {
            host: "localhost",
            ..proxy
        })
    }

    /// Starts a proxy for SOCKS 5, which demands `login` if there is one.
    pub fn socks5(
        host: &Host,
        login: Option<(&'static str, &'static str)>,
    ) -> Result<ForwardProxy> {
        let mut args: Vec<String> = ["-i", "127.0.0.1", "-p", &SOCKS_PORT.to_string()]
            .map(str::to_owned)
            .into();
        if let Some((user, password)) = login {
            args.extend(["-u", user, "-P", password].map(str::to_owned));
        }
        let programs = vec![Program::new("microsocks", args)];
        Self::started(
            "socks5",
            SOCKS_PORT,
            login,
            programs,
            host.dir("microsocks").join("log"),
        )
    }

    fn started(
        scheme: &'static str,
        port: u16,
        login: Option<(&'static str, &'static str)>,
        programs: Vec<Program>,
        log: PathBuf,
    ) -> Result<ForwardProxy> {
        let mut proxy = ForwardProxy {
            scheme,
            host: "127.0.0.1",
            port,
            login,
            programs,
            log,
        };
        proxy.restart()?;
        Ok(proxy)
    }

    /// Starts the proxy again, which ends its connections, and waits until it listens.
    pub fn restart(&mut self) -> Result<()> {
        self.stop();
        for Program {
            name,
            args,
            process,
        } in &mut self.programs
        {
            process.start(Path::new(name), args, &self.log)?;
        }
        // stunnel listens before the proxy behind it does.
        let ports = if self.port == TLS_PORT {
            vec![HTTP_PORT, TLS_PORT]
        } else {
            vec![self.port]
        };
        let listens = |port: u16| TcpStream::connect(("127.0.0.1", port)).is_ok();
        await_that(PATIENCE, || Ok(ports.iter().all(|port| listens(*port)))).with_context(|| {
            format!(
                "the proxy does not listen: {}",
                self.log().unwrap_or_default()
            )
        })
    }

    /// Kills the proxy.
    pub fn stop(&mut self) {
        self.programs
            .iter_mut()
            .for_each(|program| program.process.stop());
    }

    /// Returns the URL with user and password.
    pub fn url(&self) -> String {
        let login = self
            .login
            .map(|(user, password)| format!("{user}:{password}@"))
            .unwrap_or_default();
        format!("{}://{login}{}:{}", self.scheme, self.host, self.port)
    }

    /// Returns the number of connections to `target`, which is a host and a port, that clients have
    /// requested.
    pub fn requests_for(&self, target: &str) -> Result<usize> {
        let log = self.log()?;
        let is_request = |line: &&str| line.contains("CONNECT ") || line.contains("connected to ");
        Ok(log
            .lines()
            .filter(is_request)
            .filter(|line| line.contains(target))
            .count())
    }

    fn log(&self) -> Result<String> {
        fs::read_to_string(&self.log).with_context(|| self.log.display().to_string())
    }
}

impl Program {
    fn new(name: &'static str, args: Vec<String>) -> Program {
        Program {
            name,
            args,
            process: ServerProcess::default(),
        }
    }

    fn tinyproxy(directory: &Path, login: Option<(&str, &str)>) -> Result<Program> {
        let login = login
            .map(|(user, password)| format!("BasicAuth {user} {password}\n"))
            .unwrap_or_default();
        let (file, log) = (directory.join("tinyproxy.conf"), directory.join("log"));
        let fixed = format!("Port {HTTP_PORT}\nListen 127.0.0.1\nTimeout 600\nLogLevel Connect\n");
        fs::write(
            &file,
            format!("{fixed}LogFile \"{}\"\n{login}", log.display()),
        )?;
        Ok(Program::new(
            "tinyproxy",
            vec!["-d".into(), "-c".into(), file.display().to_string()],
        ))
    }
}
