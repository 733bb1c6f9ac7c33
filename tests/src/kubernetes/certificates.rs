//! The credentials of an API server and its clients: an authority, its certificates, and the key of
//! tokens.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair,
};

use super::identity::Identity;
use crate::proxy::{Protocol, ServerCertificate};

/// The server's names: for tests, for kubeconfigs, and for clients inside a cluster.
const SERVER_NAMES: [&str; 5] = [
    "127.0.0.1",
    "::1",
    "localhost",
    "kubernetes.default.svc",
    "10.96.0.1",
];

#[derive(Debug)]
pub(super) struct Certificates {
    directory: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Certificates {
    /// Creates an authority, a server certificate, and a key that signs service account tokens.
    pub(super) fn new(directory: &Path) -> Result<Certificates> {
        let mut params = CertificateParams::new(Vec::new())?;
        params
            .distinguished_name
            .push(DnType::CommonName, "kubernetes");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let this = Certificates {
            directory: directory.to_owned(),
            issuer,
        };
        let ServerCertificate {
            certificate, key, ..
        } = this.server()?;
        for (name, text) in [
            ("ca.pem", this.authority()),
            ("server.pem", certificate),
            ("server-key.pem", key),
        ] {
            fs::write(this.file(name), text)?;
        }
        this.new_token_key()?;
        Ok(this)
    }

    /// Replaces the key of tokens. Earlier tokens become invalid when the server starts again.
    pub(super) fn new_token_key(&self) -> Result<()> {
        let tokens = KeyPair::generate()?;
        fs::write(self.file("tokens.pem"), tokens.public_key_pem())?;
        Ok(fs::write(
            self.file("tokens-key.pem"),
            tokens.serialize_pem(),
        )?)
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub(super) fn authority(&self) -> String {
        self.issuer.pem()
    }

    pub(super) fn server(&self) -> Result<ServerCertificate> {
        let server = CertificateParams::new(SERVER_NAMES.map(str::to_owned))?;
        let (certificate, key) = self.sign(server, ExtendedKeyUsagePurpose::ServerAuth)?;
        Ok(ServerCertificate {
            certificate,
            key,
            protocol: Protocol::Http2,
        })
    }

    /// Issues a client certificate. For Kubernetes, the common name is the user and the
    /// organization the group.
    pub(super) fn client(&self, user: &str, group: &str) -> Result<Identity> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, user);
        params
            .distinguished_name
            .push(DnType::OrganizationName, group);
        let (certificate, key) = self.sign(params, ExtendedKeyUsagePurpose::ClientAuth)?;
        Ok(Identity::Certificate { certificate, key })
    }

    fn sign(
        &self,
        mut params: CertificateParams,
        purpose: ExtendedKeyUsagePurpose,
    ) -> Result<(String, String)> {
        let key = KeyPair::generate()?;
        params.extended_key_usages = vec![purpose];
        Ok((
            params.signed_by(&key, &self.issuer)?.pem(),
            key.serialize_pem(),
        ))
    }
}
