//! The plugins' token in the kubeconfig beside the configuration. A valid token is kept; otherwise the installer
//! requests a new one.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipam_plugin::process;

use crate::atomic_file::Change;
use crate::kubeconfig::{self, KubeconfigError};
use crate::regular_file;
use crate::service_account::ServiceAccount;
use crate::token::{Claims, DEFAULT_LIFETIME, TokenCheck, TokenError, TokenRequest, check_token};

/// Time limit for one request to the API server.
const DEADLINE: Duration = Duration::from_secs(10);

/// Reasons for a missing token.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The token request failed.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The kubeconfig cannot be written.
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
}

/// Ensures that the kubeconfig in `net_dir` contains a token of the service account `name` which the API server
/// accepts. A token in the second half of its lifetime is replaced.
///
/// # Errors
/// Returns an error if no valid token exists and none can be requested or written.
pub fn ensure(pod: &ServiceAccount, name: &str, net_dir: &Path) -> Result<Change, CredentialsError> {
    let file = net_dir.join(kubeconfig::NAME);
    process::block_on(async {
        if let Some(token) = kept(&file, pod, name)
            && check_token(&pod.access_with(token.clone(), DEADLINE), DEADLINE).await == TokenCheck::Holds
        {
            return Ok(kubeconfig::write(&file, pod, &token)?);
        }
        let request = TokenRequest { name: name.to_owned(), lifetime: DEFAULT_LIFETIME, deadline: DEADLINE };
        let issued = request.send(pod).await?;
        Ok(kubeconfig::write(&file, pod, &issued.token)?)
    })
}

/// Returns the token in the file if it belongs to this account and is fresh.
fn kept(file: &Path, pod: &ServiceAccount, name: &str) -> Option<String> {
    let text = regular_file::text(file).ok()?;
    let token = kubeconfig::token(&text)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
    let account = format!("system:serviceaccount:{}:{name}", pod.namespace);
    is_fresh(&Claims::decode(token).ok()?, &account, i64::try_from(now).ok()?).then(|| token.to_owned())
}

/// Returns true if the token belongs to `account` and more than half of its lifetime remains. A token that seems to be
/// issued in the future is not fresh: the node's clock is wrong.
fn is_fresh(claims: &Claims, account: &str, now: i64) -> bool {
    claims.sub == account && claims.iat <= now && claims.exp - now > (claims.exp - claims.iat) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_kept_for_the_first_half_of_its_life() {
        let account = "system:serviceaccount:kube-system:calico-cni-plugin";
        let claims = |iat, exp| Claims { iat, exp, sub: account.into() };
        for (claims, fresh) in [
            (claims(1000, 2000), true),
            (claims(400, 2101), true),
            (claims(0, 1800), false),
            (claims(0, 900), false),
            (claims(1201, 5000), false),
            (Claims { sub: "system:serviceaccount:kube-system:canal".into(), ..claims(1000, 2000) }, false),
        ] {
            assert_eq!(is_fresh(&claims, account, 1200), fresh, "{claims:?}");
        }
    }
}
