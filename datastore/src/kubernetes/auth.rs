//! [`AuthHeader`]: the token, or the user name and password, of each request.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use data_encoding::BASE64;
use hyper::Request;
use hyper::header::{AUTHORIZATION, HeaderValue};
use kube::config::AuthInfo;
use os::atomic_file::regular_file;
use secrecy::ExposeSecret;
use tokio::time::Instant;

use super::access_error::AccessError;
use crate::config::Overrides;

/// Maximum age of a token that was read from a file (DS-21): client-go's one minute minus its
/// leeway.
const MAX_TOKEN_AGE: Duration = Duration::from_secs(50);

/// The token, or the user name and password, of each request. Clones share the token that was read
/// last.
#[derive(Clone)]
pub(super) struct AuthHeader {
    /// Descriptions of all credentials for errors, such as `the token in FILE`.
    credentials: Vec<String>,
    /// The place in which credentials could be configured, for errors.
    place: String,
    header: HeaderSource,
}

#[derive(Clone)]
enum HeaderSource {
    None,
    Fixed(HeaderValue),
    File(Arc<Mutex<TokenFile>>),
}

/// A token file that another process renews before the token expires.
struct TokenFile {
    path: PathBuf,
    header: HeaderValue,
    read_at: Instant,
}

impl AuthHeader {
    /// Returns the credentials that `info` configures. `place` names the file that contains them,
    /// for errors.
    ///
    /// As in client-go, a token file takes precedence over a token, because only the file is
    /// renewed. The token is used if the file is unreadable or has no valid token.
    pub(super) fn new(
        info: &AuthInfo,
        place: &str,
        overrides: &Overrides,
    ) -> Result<AuthHeader, AccessError> {
        let token = info
            .token
            .as_ref()
            .map(|token| token.expose_secret().trim())
            .filter(|token| !token.is_empty());
        let token_place = if overrides.token.is_some() {
            "policy.k8s_auth_token"
        } else {
            place
        };
        let file = info
            .token_file
            .as_ref()
            .map(|file| TokenFile::read(Path::new(file)));
        let file = file
            .filter(|read| read.is_ok() || token.is_none())
            .transpose()?;
        let (source, header) = if let Some(file) = file {
            (
                Some(format!("the token in {}", file.path.display())),
                HeaderSource::File(Arc::new(Mutex::new(file))),
            )
        } else if let Some(token) = token {
            let header = build_bearer(token_place, token)?;
            (
                Some(format!("the token in {token_place}")),
                HeaderSource::Fixed(header),
            )
        } else if let (Some(user), Some(password)) = (&info.username, &info.password) {
            let pair = format!("{user}:{}", password.expose_secret());
            let header =
                build_sensitive(place, format!("Basic {}", BASE64.encode(pair.as_bytes())))?;
            (
                Some(format!("the user name and password in {place}")),
                HeaderSource::Fixed(header),
            )
        } else {
            (None, HeaderSource::None)
        };
        let certificate = match (&info.client_certificate_data, &info.client_certificate) {
            (Some(_), _) => Some(format!("the client certificate in {place}")),
            (None, Some(file)) => Some(format!("the client certificate in {file}")),
            (None, None) => None,
        };
        Ok(AuthHeader {
            credentials: source.into_iter().chain(certificate).collect(),
            place: place.into(),
            header,
        })
    }

    /// Adds the token, or the user name and password, if there is one.
    pub(super) fn authenticate<B>(&self, mut request: Request<B>) -> Request<B> {
        let header = match &self.header {
            HeaderSource::None => return request,
            HeaderSource::Fixed(header) => header.clone(),
            HeaderSource::File(file) => file
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .read_latest(),
        };
        request.headers_mut().insert(AUTHORIZATION, header);
        request
    }

    /// Describes the credentials that the server rejected.
    pub(super) fn describe_rejected(&self) -> String {
        match self.credentials.as_slice() {
            [] => format!(
                "{} has neither token nor client certificate, and none was sent",
                self.place
            ),
            [credential] => format!("{credential} is stale or wrong"),
            several => format!("{} are stale or wrong", several.join(" and ")),
        }
    }
}

impl TokenFile {
    fn read(path: &Path) -> Result<TokenFile, AccessError> {
        let place = path.display().to_string();
        let token = regular_file::utf8(path).map_err(|e| token_error(&place, &e))?;
        // `kubectl create token` writes a line break after the token.
        let header = build_bearer(&place, token.trim())?;
        Ok(TokenFile {
            path: path.into(),
            header,
            read_at: Instant::now(),
        })
    }

    /// Returns the header with the token, and reads the file again first if the token is older than
    /// [`MAX_TOKEN_AGE`]. As in client-go, the previous token stays in use if the file is
    /// unreadable or has no valid token.
    fn read_latest(&mut self) -> HeaderValue {
        if self.read_at.elapsed() >= MAX_TOKEN_AGE {
            match TokenFile::read(&self.path) {
                Ok(renewed) => *self = renewed,
                Err(error) => {
                    tracing::warn!(
                        %error, "cannot read the token file again; the previous token stays in use",
                    );
                    self.read_at = Instant::now();
                }
            }
        }
        self.header.clone()
    }
}

fn token_error(place: &str, reason: &impl ToString) -> AccessError {
    AccessError::Token {
        place: place.into(),
        reason: reason.to_string(),
    }
}

/// Returns the header of a bearer token. Rejects characters that could end or change the header.
fn build_bearer(place: &str, token: &str) -> Result<HeaderValue, AccessError> {
    if token.is_empty() {
        return Err(token_error(place, &"the token is empty"));
    }
    let Some(index) = token.bytes().position(|byte| !byte.is_ascii_graphic()) else {
        return build_sensitive(place, format!("Bearer {token}"));
    };
    let (at, length) = (index + 1, token.len());
    Err(token_error(
        place,
        &format!("byte {at} of {length} is a blank, a line break or not ASCII"),
    ))
}

fn build_sensitive(place: &str, header: String) -> Result<HeaderValue, AccessError> {
    let mut header = HeaderValue::try_from(header).map_err(|error| token_error(place, &error))?;
    header.set_sensitive(true);
    Ok(header)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn sent_header(auth: &AuthHeader) -> Option<String> {
        let request = auth.authenticate(Request::new(()));
        request
            .headers()
            .get(AUTHORIZATION)
            .map(|header| header.to_str().unwrap().to_owned())
    }

    fn auth_header(info: &AuthInfo) -> Result<AuthHeader, AccessError> {
        AuthHeader::new(info, "kubeconfig k", &Overrides::default())
    }

    #[test]
    fn token_is_trimmed_and_inner_whitespace_rejected() {
        for (text, expected) in [
            ("abc", Some("Bearer abc")),
            ("abc\n", Some("Bearer abc")),
            (" abc\r\n", Some("Bearer abc")),
            ("", None),
            ("\n", None),
        ] {
            let info = AuthInfo {
                token: Some(text.to_owned().into()),
                ..AuthInfo::default()
            };
            assert_eq!(
                sent_header(&auth_header(&info).unwrap()).as_deref(),
                expected,
                "{text:?}"
            );
        }
        for text in ["sec\nret", "sec ret", "sec\u{7f}ret", "secrét"] {
            let info = AuthInfo {
                token: Some(text.to_owned().into()),
                ..AuthInfo::default()
            };
            let error = auth_header(&info).err().unwrap().to_string();
            assert!(
                error.contains("kubeconfig k") && !error.contains("sec"),
                "{error}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn token_file_is_read_again_on_each_use() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let info = AuthInfo {
            token_file: Some(path.display().to_string()),
            ..AuthInfo::default()
        };
        let with_inline = AuthInfo {
            token: Some("inline".to_owned().into()),
            ..info.clone()
        };
        for (content, expected) in [
            (None, "No such file"),
            (Some(" \n"), "empty"),
            (Some("a\nb"), "byte 2 of 3"),
        ] {
            content
                .into_iter()
                .for_each(|content| fs::write(&path, content).unwrap());
            let error = auth_header(&info).err().unwrap().to_string();
            assert!(
                error.contains(expected) && error.contains(&path.display().to_string()),
                "{error}"
            );
            assert_eq!(
                sent_header(&auth_header(&with_inline).unwrap()).unwrap(),
                "Bearer inline"
            );
        }
        fs::write(&path, "first\n").unwrap();
        let auth = auth_header(&with_inline).unwrap();
        assert_eq!(sent_header(&auth).unwrap(), "Bearer first");
        fs::write(&path, "second\n").unwrap();
        assert_eq!(
            sent_header(&auth).unwrap(),
            "Bearer first",
            "the file is not read for each request"
        );
        for (content, expected) in [
            ("second\n", "Bearer second"),
            ("", "Bearer second"),
            ("third", "Bearer third"),
        ] {
            fs::write(&path, content).unwrap();
            tokio::time::advance(MAX_TOKEN_AGE).await;
            assert_eq!(sent_header(&auth.clone()).unwrap(), expected);
        }
    }

    #[test]
    fn rejected_credential_is_named_with_its_source() {
        let token = || Some("t".to_owned().into());
        let certificate = || Some("/pki/node.crt".to_owned());
        let overridden = Overrides {
            token: Some("t".into()),
            ..Overrides::default()
        };
        let none = AuthInfo::default();
        for (info, overrides, expected) in [
            (
                none.clone(),
                Overrides::default(),
                "kubeconfig k has neither token nor client certificate, and none was sent",
            ),
            (
                AuthInfo {
                    token: token(),
                    ..none.clone()
                },
                Overrides::default(),
                "the token in kubeconfig k is stale or wrong",
            ),
            (
                AuthInfo {
                    token: token(),
                    ..none.clone()
                },
                overridden,
                "the token in policy.k8s_auth_token is stale or wrong",
            ),
            (
                AuthInfo {
                    client_certificate: certificate(),
                    ..none.clone()
                },
                Overrides::default(),
                "the client certificate in /pki/node.crt is stale or wrong",
            ),
            (
                AuthInfo {
                    token: token(),
                    client_certificate: certificate(),
                    ..none
                },
                Overrides::default(),
                "the token in kubeconfig k and the client certificate in /pki/node.crt are stale \
                 or wrong",
            ),
        ] {
            assert_eq!(
                AuthHeader::new(&info, "kubeconfig k", &overrides)
                    .unwrap()
                    .describe_rejected(),
                expected
            );
        }
    }
}
