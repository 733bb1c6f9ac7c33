//! TLS of the connections to etcd: loads certificates and keys, from files or inline texts, and
//! opens a connection.

use std::io;
use std::sync::Arc;

use data_encoding::BASE64;
use hyper_util::rt::TokioIo;
use os::atomic_file::regular_file;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::transport::Uri;

use crate::config::{ConfigError, Pem, TlsConfig};
use crate::dial::{dial, host};
use crate::tls::{
    Identity, MAX_FILE_BYTES, Roots, TlsError, TlsParameters, Trust, client_config,
    parse_certificates,
};

const HTTP2: &[u8] = b"h2";

/// A TCP connection, with or without TLS.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Opens a connection to `server`, with TLS if there is a connector. tonic cannot do this, because
/// it sets neither the minimum version nor the cipher suites.
pub(super) async fn open(
    server: Uri,
    tls: Option<TlsConnector>,
) -> io::Result<TokioIo<Box<dyn Stream>>> {
    let stream = dial(&server).await?;
    let Some(tls) = tls else {
        let stream: Box<dyn Stream> = Box::new(stream);
        return Ok(TokioIo::new(stream));
    };
    let name = ServerName::try_from(host(&server).to_owned())
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let stream = tls.connect(name, stream).await?;
    if stream.get_ref().1.alpn_protocol() != Some(HTTP2) {
        return Err(io::Error::other("the server did not select HTTP/2"));
    }
    let stream: Box<dyn Stream> = Box::new(stream);
    Ok(TokioIo::new(stream))
}

/// Loads the configured certificates and keys.
pub(super) fn load(config: &TlsConfig) -> Result<TlsConnector, ConfigError> {
    let identity = match &config.identity {
        Some((certificate, key)) => {
            let (certificate_pem, key_pem) =
                (read(certificate, "CERTIFICATE")?, read(key, "PRIVATE KEY")?);
            let identity = Identity::parse(&certificate_pem, &key_pem);
            Some(identity.map_err(|error| unreadable("etcd_cert_file, etcd_key_file", error))?)
        }
        None => None,
    };
    let roots = match &config.ca_certificates {
        Some(pem) => parse_certificates("CA certificates", &read(pem, "CERTIFICATE")?)
            .and_then(Roots::configured)
            .map_err(|error| unreadable(pem.setting(), error))?,
        None => Roots::of_system(),
    };
    if roots.is_empty() {
        let reason = "not set, and this system has no CA certificates; name the file that verifies \
                      etcd's certificate";
        return Err(ConfigError::UnreadablePem {
            setting: "etcd_ca_cert_file",
            reason: reason.into(),
        });
    }
    let parameters = TlsParameters {
        trust: Trust::Roots(roots),
        identity,
        policy: &config.policy,
        alpn: &[HTTP2],
    };
    let config = client_config(parameters)
        .map_err(|error| unreadable("etcd_cert_file, etcd_key_file", error))?;
    Ok(TlsConnector::from(Arc::new(config)))
}

fn unreadable(setting: &'static str, error: TlsError) -> ConfigError {
    ConfigError::UnreadablePem {
        setting,
        reason: error.to_string(),
    }
}

pub(super) fn describe(config: &TlsConfig) -> String {
    let ca_certificates = match &config.ca_certificates {
        Some(pem) => format!("CA certificates from {pem}"),
        None => "CA certificates of this system (etcd_ca_cert_file is not set)".into(),
    };
    let identity = match &config.identity {
        Some((certificate, key)) => {
            format!("client certificate from {certificate}, key from {key}")
        }
        None => "no client certificate (etcd_cert_file is not set)".into(),
    };
    format!("{ca_certificates}; {identity}")
}

/// Returns the PEM text. Fails if the text has no block whose label ends with `label`.
fn read(pem: &Pem, label: &str) -> Result<Vec<u8>, ConfigError> {
    let refuse = |reason: String| ConfigError::UnreadablePem {
        setting: pem.setting(),
        reason,
    };
    let (text, place) = match pem {
        Pem::File { path, .. } => {
            let place = path.display().to_string();
            let read = regular_file::contents_up_to(path, MAX_FILE_BYTES);
            (
                read.map_err(|e| refuse(format!("cannot read {place}: {e}")))?,
                place,
            )
        }
        Pem::Inline { text, .. } => (
            decode_inline(text).map_err(|e| refuse(e.into()))?,
            "the text".into(),
        ),
    };
    if has_block(&text, label) {
        return Ok(text);
    }
    Err(refuse(format!(
        "{place} holds no PEM block `-----BEGIN ... {label}-----`"
    )))
}

fn decode_inline(text: &str) -> Result<Vec<u8>, &'static str> {
    if text.contains("-----BEGIN") {
        return Ok(text.as_bytes().to_vec());
    }
    let compact: Vec<u8> = text
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace())
        .collect();
    BASE64
        .decode(&compact)
        .map_err(|_| "the text is neither PEM nor base64 of PEM")
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
        Pem::Inline {
            setting: "etcd_key",
            text: text.into(),
        }
    }

    #[test]
    fn inline_pem_may_be_plain_or_base64() {
        assert_eq!(read(&inline(PEM), "PRIVATE KEY").unwrap(), PEM.as_bytes());
        let mut wrapped = BASE64.encode(PEM.as_bytes());
        wrapped.insert(40, '\n');
        assert_eq!(
            read(&inline(&wrapped), "PRIVATE KEY").unwrap(),
            PEM.as_bytes()
        );
    }

    #[test]
    fn invalid_pem_is_rejected_without_echoing_it() {
        for (text, label) in [
            ("s3cret!", "PRIVATE KEY"),
            (PEM, "CERTIFICATE"),
            ("czNjcmV0", "PRIVATE KEY"),
        ] {
            let error = read(&inline(text), label).unwrap_err().to_string();
            assert!(error.starts_with("etcd_key: the text "), "{error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn large_bundle_of_ca_certificates_is_read_and_an_endless_file_refused() {
        let bundle = tempfile::NamedTempFile::new().unwrap();
        let text = "# an organization\n".repeat(100_000) + "-----BEGIN CERTIFICATE-----\n";
        std::fs::write(bundle.path(), &text).unwrap();
        let read_file = |path: &std::path::Path| {
            read(
                &Pem::File {
                    setting: "etcd_ca_cert_file",
                    path: path.to_owned(),
                },
                "CERTIFICATE",
            )
        };
        assert_eq!(read_file(bundle.path()).unwrap().len(), text.len());
        std::fs::write(bundle.path(), " ".repeat(MAX_FILE_BYTES + 1)).unwrap();
        let error = read_file(bundle.path()).unwrap_err().to_string();
        assert!(error.contains("it has more than 16777216 bytes"), "{error}");
    }

    #[test]
    fn missing_pem_file_is_reported_with_its_setting() {
        let pem = Pem::File {
            setting: "etcd_ca_cert_file",
            path: "/nowhere/ca.pem".into(),
        };
        let error = read(&pem, "CERTIFICATE").unwrap_err().to_string();
        assert!(
            error.starts_with("etcd_ca_cert_file: cannot read /nowhere/ca.pem: No such file"),
            "{error}"
        );
    }
}
