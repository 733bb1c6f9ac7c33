//! Loads certificates and keys, from files or inline texts.

use data_encoding::BASE64;
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use crate::config::{ConfigError, Pem, TlsConfig};

/// Loads the configured certificates and keys. The content of the PEM blocks is not checked here.
pub(super) fn load(config: &TlsConfig) -> Result<ClientTlsConfig, ConfigError> {
    let tls = match &config.ca_certificates {
        Some(pem) => ClientTlsConfig::new().ca_certificates([Certificate::from_pem(read(pem, "CERTIFICATE")?)]),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    Ok(match &config.identity {
        Some((cert, key)) => tls.identity(Identity::from_pem(read(cert, "CERTIFICATE")?, read(key, "PRIVATE KEY")?)),
        None => tls,
    })
}

pub(super) fn describe(config: &TlsConfig) -> String {
    let ca_certificates = match &config.ca_certificates {
        Some(pem) => format!("CA certificates from {pem}"),
        None => "CA certificates of this system (etcd_ca_cert_file is not set)".into(),
    };
    let identity = match &config.identity {
        Some((certificate, key)) => format!("client certificate from {certificate}, key from {key}"),
        None => "no client certificate (etcd_cert_file is not set)".into(),
    };
    format!("{ca_certificates}; {identity}")
}

/// Returns the PEM text. Fails if the text has no block whose label ends with `label`.
fn read(pem: &Pem, label: &str) -> Result<Vec<u8>, ConfigError> {
    let refuse = |reason: String| ConfigError::UnreadablePem { setting: pem.setting(), reason };
    let (text, place) = match pem {
        Pem::File { path, .. } => {
            let place = path.display().to_string();
            (std::fs::read(path).map_err(|e| refuse(format!("cannot read {place}: {e}")))?, place)
        }
        Pem::Inline { text, .. } => (decode_inline(text).map_err(|e| refuse(e.into()))?, "the text".into()),
    };
    if has_block(&text, label) {
        return Ok(text);
    }
    Err(refuse(format!("{place} holds no PEM block `-----BEGIN ... {label}-----`")))
}

fn decode_inline(text: &str) -> Result<Vec<u8>, &'static str> {
    if text.contains("-----BEGIN") {
        return Ok(text.as_bytes().to_vec());
    }
    let compact: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    BASE64.decode(&compact).map_err(|_| "the text is neither PEM nor base64 of PEM")
}

fn has_block(text: &[u8], label: &str) -> bool {
    let end = format!("{label}-----");
    text.split(|byte| *byte == b'\n').any(|line| {
        let line = line.trim_ascii();
        line.starts_with(b"-----BEGIN ") && line.ends_with(end.as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEM: &str = "-----BEGIN EC PRIVATE KEY-----\nAA==\n-----END EC PRIVATE KEY-----\n";

    fn inline(text: &str) -> Pem {
        Pem::Inline { setting: "etcd_key", text: text.into() }
    }

    #[test]
    fn inline_pem_may_be_plain_or_base64() {
        assert_eq!(read(&inline(PEM), "PRIVATE KEY").unwrap(), PEM.as_bytes());
        let mut wrapped = BASE64.encode(PEM.as_bytes());
        wrapped.insert(40, '\n');
        assert_eq!(read(&inline(&wrapped), "PRIVATE KEY").unwrap(), PEM.as_bytes());
    }

    #[test]
    fn invalid_pem_is_rejected_without_echoing_it() {
        for (text, label) in [("s3cret!", "PRIVATE KEY"), (PEM, "CERTIFICATE"), ("czNjcmV0", "PRIVATE KEY")] {
            let error = read(&inline(text), label).unwrap_err().to_string();
            assert!(error.starts_with("etcd_key: the text "), "{error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn missing_pem_file_is_reported_with_its_setting() {
        let pem = Pem::File { setting: "etcd_ca_cert_file", path: "/nowhere/ca.pem".into() };
        let error = read(&pem, "CERTIFICATE").unwrap_err().to_string();
        assert!(error.starts_with("etcd_ca_cert_file: cannot read /nowhere/ca.pem: No such file"), "{error}");
    }
}
