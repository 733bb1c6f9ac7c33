//! A certificate authority, and the certificates that it signs.

use std::path::PathBuf;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair,
};
use tempfile::TempDir;

/// The files of one authority, one server at 127.0.0.1, and one client.
pub struct Certificates {
    directory: TempDir,
}

impl Certificates {
    pub fn new(authority: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params
            .distinguished_name
            .push(DnType::CommonName, authority);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let this = Certificates { directory };
        std::fs::write(this.file("ca.pem"), issuer.pem()).unwrap();
        for (name, purpose) in [
            ("server", ExtendedKeyUsagePurpose::ServerAuth),
            ("client", ExtendedKeyUsagePurpose::ClientAuth),
        ] {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
            params.distinguished_name.push(DnType::CommonName, name);
            // etcd's gateway connects to its own server with the server's certificate.
            params.extended_key_usages = vec![purpose, ExtendedKeyUsagePurpose::ClientAuth];
            let certificate = params.signed_by(&key, &issuer).unwrap();
            std::fs::write(this.file(&format!("{name}.pem")), certificate.pem()).unwrap();
            std::fs::write(this.file(&format!("{name}-key.pem")), key.serialize_pem()).unwrap();
        }
        this
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.file(name)).unwrap()
    }

    /// Returns the flags of an etcd server that uses the server's certificate and requires client
    /// certificates of the same authority.
    pub fn etcd_flags(&self) -> Vec<String> {
        let flag = |flag: &str, name: &str| format!("{flag}={}", self.file(name).display());
        vec![
            flag("--cert-file", "server.pem"),
            flag("--key-file", "server-key.pem"),
            flag("--trusted-ca-file", "ca.pem"),
            "--client-cert-auth".to_owned(),
        ]
    }
}
