//! The token of the plugins, in the kubeconfig beside the configuration: made anew, unless the one that is there will do
//! (INST-42, INST-23).

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipam_plugin::process;

use crate::atomic_file::Change;
use crate::kubeconfig::{self, KubeconfigError};
use crate::regular_file;
use crate::service_account::ServiceAccount;
use crate::token::claims::Claims;
use crate::token::{DEFAULT_LIFETIME, TokenError, TokenRequest, Trial, try_token};

/// How long the API server may take for one request.
const DEADLINE: Duration = Duration::from_secs(10);

/// Why the plugins have no token.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The API server made none.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// It cannot be written down.
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
}

/// Sees to it that the kubeconfig in `net_dir` has a token of the service account `name` with at least half of its life before
/// it, which the API server takes.
///
/// # Errors
/// There is none, and none can be had.
pub fn ensure(pod: &ServiceAccount, name: &str, net_dir: &Path) -> Result<Change, CredentialsError> {
    let file = net_dir.join(kubeconfig::NAME);
    process::block_on(async {
        if let Some(token) = kept(&file, pod, name)
            && try_token(&pod.access_with(token.clone(), DEADLINE), DEADLINE).await == Trial::Holds
        {
            return Ok(kubeconfig::write(&file, pod, &token)?);
        }
        let request = TokenRequest { name: name.to_owned(), lifetime: DEFAULT_LIFETIME, deadline: DEADLINE };
        let minted = request.send(pod).await?;
        Ok(kubeconfig::write(&file, pod, &minted.token)?)
    })
}

/// The token in the file, if it is this account's and not old.
fn kept(file: &Path, pod: &ServiceAccount, name: &str) -> Option<String> {
    let text = regular_file::text(file).ok()?;
    let token = kubeconfig::token(&text)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
    let account = format!("system:serviceaccount:{}:{name}", pod.namespace);
    is_fresh(&Claims::of(token).ok()?, &account, i64::try_from(now).ok()?).then(|| token.to_owned())
}

/// A token that the clock of this node finds to come from the future is not judged by it.
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
