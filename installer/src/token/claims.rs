//! What a service account token says about itself. Nobody's signature is checked: who reads it here has it from the API
//! server, or wants to tell a person why it is refused.

use data_encoding::BASE64URL_NOPAD;
use serde::Deserialize;

/// The claims of a token that tell how long it holds and whose it is.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Claims {
    /// When it stops to hold, in seconds since 1970.
    pub exp: i64,
    /// When it was made, in seconds since 1970; 0 where it does not say.
    #[serde(default)]
    pub iat: i64,
    /// `system:serviceaccount:<namespace>:<name>`; empty where it does not say.
    #[serde(default)]
    pub sub: String,
}

/// A token that is no JWT with an end (INST-43).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the token is no JSON Web Token with an `exp`; a service account's token is one, of three parts with dots between"
)]
pub struct NoClaims;

impl Claims {
    /// Reads them from the middle one of the three parts.
    pub fn of(token: &str) -> Result<Self, NoClaims> {
        let parts: Vec<&str> = token.trim().split('.').collect();
        let [_, claims, _] = parts[..] else { return Err(NoClaims) };
        let json = BASE64URL_NOPAD.decode(claims.trim_end_matches('=').as_bytes()).map_err(|_| NoClaims)?;
        serde_json::from_slice(&json).map_err(|_| NoClaims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(claims: &str) -> String {
        format!("e30.{}.c2ln", BASE64URL_NOPAD.encode(claims.as_bytes()))
    }

    #[test]
    fn a_token_tells_its_end_and_its_owner() {
        let text = token(r#"{"exp":1700003600,"iat":1700000000,"sub":"system:serviceaccount:a:b","aud":["x"]}"#);
        let claims = Claims { exp: 1_700_003_600, iat: 1_700_000_000, sub: "system:serviceaccount:a:b".into() };
        assert_eq!(Claims::of(&text), Ok(claims));
        assert_eq!(
            Claims::of(&format!("{}\n", token(r#"{"exp":7}"#))).map(|claims| (claims.exp, claims.iat)),
            Ok((7, 0))
        );
    }

    #[test]
    fn what_is_no_such_token_is_refused() {
        for text in ["", "a.b", "a.b.c.d", "a.%%.c"].map(str::to_owned) {
            assert_eq!(Claims::of(&text), Err(NoClaims), "{text}");
        }
        for claims in ["{}", r#"{"exp":"soon"}"#, "[]"] {
            assert_eq!(Claims::of(&token(claims)), Err(NoClaims), "{claims}");
        }
    }
}
