//! The kube-apiserver process.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::audit::{self, Audit};
use super::certificates::Certificates;
use super::client::Client;
use super::identity::Identity;
use super::programs::{oldest_api_server, program};
use crate::command::run;
use crate::controllers::{PATIENCE, await_that};
use crate::etcd;
use crate::namespaces::Host;
use crate::proxy::{self, Proxy, ServerCertificate};
use crate::server_process::ServerProcess;

/// Address of the API server inside the private host.
pub const ADDRESS: &str = "127.0.0.1:6443";

/// URL of the API server.
pub const ENDPOINT: &str = "https://127.0.0.1:6443";

/// The user of [`ApiServer::admin`], who has every right without a role binding.
const ADMIN: &str = "admin";

/// Timeout of the start of a server, which takes seconds of processor time. Six may start at the
/// same time.
const READY_WITHIN: Duration = Duration::from_secs(180);

/// A kube-apiserver on the private host's etcd. Killed on drop; its files disappear with the host's
/// tmpfs.
#[derive(Debug)]
pub struct ApiServer {
    program: PathBuf,
    directory: PathBuf,
    certificates: Certificates,
    identity: Identity,
    admin: Client,
    args: Vec<String>,
    server: ServerProcess,
}

impl ApiServer {
    /// Starts a server on the etcd of this host and waits until it is ready.
    pub fn start(host: &Host) -> Result<ApiServer> {
        Self::start_with(host, &[])
    }

    /// Starts a server as [`ApiServer::start`] does, with more arguments.
    pub fn start_with(host: &Host, args: &[&str]) -> Result<ApiServer> {
        Self::start_program(host, program("kube-apiserver")?, args)
    }

    /// Starts a server of the oldest supported version as [`ApiServer::start`] does.
    pub fn start_oldest(host: &Host) -> Result<ApiServer> {
        Self::start_program(host, oldest_api_server()?, &[])
    }

    fn start_program(host: &Host, program: PathBuf, args: &[&str]) -> Result<ApiServer> {
        let directory = host.dir("kube-apiserver");
        let certificates = Certificates::new(&directory)?;
        let identity = certificates.client(ADMIN, "system:masters")?;
        let admin = Client::new(&certificates.authority(), &identity)?;
        fs::write(directory.join("audit-policy.yaml"), audit::policy(ADMIN))?;
        let args = args.iter().map(|&a| a.to_owned()).collect();
        let server = ServerProcess::default();
        let mut this = ApiServer {
            program,
            directory,
            certificates,
            identity,
            admin,
            args,
            server,
        };
        this.kubeconfig(ADMIN, &this.identity)?;
        this.restart()?;
        this.await_namespaces()?;
        Ok(this)
    }

    /// Starts the server again, with the same certificates.
    pub fn restart(&mut self) -> Result<()> {
        let args: Vec<String> = self.flags().into_iter().chain(self.args.clone()).collect();
        self.server.start(&self.program, &args, &self.file("log"))?;
        self.await_ready()
    }

    /// Starts the server again with other arguments.
    pub fn restart_with(&mut self, args: &[&str]) -> Result<()> {
        self.args = args.iter().map(|&arg| arg.to_owned()).collect();
        self.restart()
    }

    /// Starts the server again with another key for service account tokens, which makes earlier
    /// tokens invalid.
    pub fn rotate_token_key(&mut self) -> Result<()> {
        self.certificates.new_token_key()?;
        self.restart()
    }

    /// Kills the server; its objects remain in etcd.
    pub fn stop(&mut self) {
        self.server.stop();
    }

    /// Returns the process ID of the server; `None` after [`ApiServer::stop`].
    pub fn pid(&self) -> Option<u32> {
        self.server.pid()
    }

    /// Returns a client that may do everything.
    pub fn admin(&self) -> &Client {
        &self.admin
    }

    /// Returns the identity of [`ApiServer::admin`].
    pub fn admin_identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the authority's certificate, PEM.
    pub fn authority_certificate(&self) -> String {
        self.certificates.authority()
    }

    /// Returns the path of the administrator's kubeconfig.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.file(&format!("{ADMIN}.kubeconfig"))
    }

    /// Returns the path of the authority's certificate.
    pub fn authority(&self) -> PathBuf {
        self.file("ca.pem")
    }

    /// Issues a client certificate for a user in a group.
    pub fn user(&self, user: &str, group: &str) -> Result<Identity> {
        self.certificates.client(user, group)
    }

    /// Creates a client for an identity.
    pub fn client(&self, identity: &Identity) -> Result<Client> {
        Client::new(&self.certificates.authority(), identity)
    }

    /// Writes a kubeconfig for an identity.
    pub fn kubeconfig(&self, name: &str, identity: &Identity) -> Result<PathBuf> {
        self.kubeconfig_to(ENDPOINT, name, identity)
    }

    /// Writes a kubeconfig for an identity, with another URL of the server.
    pub fn kubeconfig_to(&self, url: &str, name: &str, identity: &Identity) -> Result<PathBuf> {
        let path = self.file(&format!("{name}.kubeconfig"));
        // The directory is missing on a host that was reinstalled.
        fs::create_dir_all(&self.directory)?;
        fs::write(
            &path,
            identity.kubeconfig(url, &self.certificates.authority())?,
        )?;
        Ok(path)
    }

    /// Issues a new certificate for the server.
    pub fn server_certificate(&self) -> Result<ServerCertificate> {
        self.certificates.server()
    }

    /// Returns the certificate of another authority, PEM, and a server certificate of that
    /// authority.
    pub fn certificate_of_another_authority(&self) -> Result<(String, ServerCertificate)> {
        let directory = self.file("other");
        fs::create_dir_all(&directory)?;
        let other = Certificates::new(&directory)?;
        Ok((other.authority(), other.server()?))
    }

    /// Starts a proxy before the server. It hides client certificates from the server but passes
    /// tokens on.
    pub fn proxy(&self) -> Result<Proxy> {
        self.proxy_on(proxy::listener()?)
    }

    /// Starts a proxy as [`ApiServer::proxy`] does, on `listener`, which may belong to another
    /// private host.
    pub fn proxy_on(&self, listener: TcpListener) -> Result<Proxy> {
        Proxy::start_tls_on(
            listener,
            ADDRESS,
            &self.certificates.authority(),
            &self.server_certificate()?,
        )
    }

    /// Returns the audit log from now on.
    pub fn audit(&self) -> Result<Audit> {
        Audit::from_now(self.file("audit.log"))
    }

    /// Runs kubectl as the administrator. Its cache of the server's kinds ends with the test.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        let kubeconfig = self.admin_kubeconfig();
        let cache = self.directory.with_file_name("kubectl");
        let own = [
            "--kubeconfig".as_ref(),
            kubeconfig.as_os_str(),
            "--cache-dir".as_ref(),
            cache.as_os_str(),
        ];
        let args: Vec<_> = own
            .into_iter()
            .chain(args.iter().map(AsRef::as_ref))
            .collect();
        run(&program("kubectl")?.display().to_string(), &args)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Waits until the server has created its namespaces, some time after it is ready. A namespace
    /// that is missing at the end of a preparation would be deleted after the first test on a
    /// shared server.
    fn await_namespaces(&self) -> Result<()> {
        ["kube-system", "default"].into_iter().try_for_each(|name| {
            let path = format!("/api/v1/namespaces/{name}");
            await_that(PATIENCE, || Ok(self.admin.get(&path)?.code == 200))
        })
    }

    fn flags(&self) -> Vec<String> {
        let file = |name: &str| self.file(name).display().to_string();
        [
            ("etcd-servers", etcd::ENDPOINT.to_owned()),
            ("bind-address", "127.0.0.1".to_owned()),
            ("secure-port", "6443".to_owned()),
            // The host has no routes, and no client looks the server up in its Endpoints.
            ("advertise-address", "127.0.0.1".to_owned()),
            ("endpoint-reconciler-type", "none".to_owned()),
            (
                "service-cluster-ip-range",
                "10.96.0.0/16,fd00:10:96::/112".to_owned(),
            ),
            ("cert-dir", file("")),
            ("client-ca-file", file("ca.pem")),
            ("tls-cert-file", file("server.pem")),
            ("tls-private-key-file", file("server-key.pem")),
            ("authorization-mode", "RBAC".to_owned()),
            // As in most clusters: the pods that set up the network are privileged.
            ("allow-privileged", "true".to_owned()),
            (
                "service-account-issuer",
                "https://kubernetes.default.svc".to_owned(),
            ),
            ("service-account-key-file", file("tokens.pem")),
            ("service-account-signing-key-file", file("tokens-key.pem")),
            ("audit-policy-file", file("audit-policy.yaml")),
            ("audit-log-path", file("audit.log")),
            // The server writes an event to the file before it continues.
            ("audit-log-mode", "blocking".to_owned()),
            // Maximum size in megabytes, so large that the log remains a single file.
            ("audit-log-maxsize", "100000".to_owned()),
            ("profiling", "false".to_owned()),
        ]
        .map(|(name, value)| format!("--{name}={value}"))
        .into()
    }

    fn await_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            let answer = self.admin.get("/readyz");
            if answer.as_ref().is_ok_and(|answer| answer.code == 200) {
                return Ok(());
            }
            if let Some(status) = self.server.ended() {
                bail!(
                    "kube-apiserver ended ({status}): {}",
                    tail(&self.file("log"))
                );
            }
            if Instant::now() > deadline {
                bail!(
                    "kube-apiserver is not ready: {answer:?}; {}",
                    tail(&self.file("log"))
                );
            }
            // While the server starts, each answer needs processor time of the server and of the
            // client.
            thread::sleep(Duration::from_millis(50));
        }
    }
}

fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}
