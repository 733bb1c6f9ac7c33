//! What an API server and its clients prove themselves with: an authority, its certificates, the key of tokens.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair};

use super::identity::Identity;
use crate::proxy::{Protocol, ServerCertificate};

/// The names under which the server is reached: by the test, by its kubeconfigs, and from inside a cluster.
const SERVER_NAMES: [&str; 4] = ["127.0.0.1", "localhost", "kubernetes.default.svc", "10.96.0.1"];

/// An authority with the files of one server.
#[derive(Debug)]
pub(super) struct Certificates {
    directory: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Certificates {
    /// Makes an authority, a server certificate, and a key to sign the tokens of service accounts with.
    pub(super) fn new(directory: &Path) -> Result<Certificates> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, "kubernetes");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let this = Certificates { directory: directory.to_owned(), issuer };
        let ServerCertificate { certificate, key, .. } = this.server()?;
        for (name, text) in [("ca.pem", this.authority()), ("server.pem", certificate), ("server-key.pem", key)] {
            fs::write(this.file(name), text)?;
        }
        this.new_token_key()?;
        Ok(this)
    }

    /// Makes another key to sign the tokens of service accounts with. No token of before is good any more.
    pub(super) fn new_token_key(&self) -> Result<()> {
        let tokens = KeyPair::generate()?;
        fs::write(self.file("tokens.pem"), tokens.public_key_pem())?;
        Ok(fs::write(self.file("tokens-key.pem"), tokens.serialize_pem())?)
    }

    /// The path of one of the files.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The authority's certificate.
    pub(super) fn authority(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate of the server, another each time.
    pub(super) fn server(&self) -> Result<ServerCertificate> {
        let server = CertificateParams::new(SERVER_NAMES.map(str::to_owned))?;
        let (certificate, key) = self.sign(server, ExtendedKeyUsagePurpose::ServerAuth)?;
        Ok(ServerCertificate { certificate, key, protocol: Protocol::Http2 })
    }

    /// A client certificate: to Kubernetes the common name is the user, the organization its group.
    pub(super) fn client(&self, user: &str, group: &str) -> Result<Identity> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, user);
        params.distinguished_name.push(DnType::OrganizationName, group);
        let (certificate, key) = self.sign(params, ExtendedKeyUsagePurpose::ClientAuth)?;
        Ok(Identity::Certificate { certificate, key })
    }

    fn sign(&self, mut params: CertificateParams, purpose: ExtendedKeyUsagePurpose) -> Result<(String, String)> {
        let key = KeyPair::generate()?;
        params.extended_key_usages = vec![purpose];
        Ok((params.signed_by(&key, &self.issuer)?.pem(), key.serialize_pem()))
    }
}
