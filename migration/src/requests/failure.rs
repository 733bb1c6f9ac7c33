//! [`CallFailure`]: the reason why a request of the migration failed.

use datastore::kubernetes::ObjectError;

use super::Problem;

/// A failed request, before its meaning for the caller is known.
pub(super) enum CallFailure {
    MayNotWrite,
    Failed(ObjectError),
}

impl CallFailure {
    /// Returns the HTTP status of a refusal.
    pub(super) fn code(&self) -> Option<u16> {
        match self {
            CallFailure::MayNotWrite => None,
            CallFailure::Failed(error) => error.code(),
        }
    }

    /// Returns true if the API server reports the object or its kind as missing.
    pub(super) fn is_missing(&self) -> bool {
        matches!(self, CallFailure::Failed(error) if error.is_missing())
    }

    /// Returns true if an object of the name exists, after a creation.
    pub(super) fn is_existing(&self) -> bool {
        let CallFailure::Failed(error) = self else {
            return false;
        };
        let status = error.status();
        status.is_some_and(|status| status.code == 409 && status.reason == "AlreadyExists")
    }

    pub(super) fn is_transient(&self) -> bool {
        match (self, self.code()) {
            (CallFailure::MayNotWrite, _) => false,
            (CallFailure::Failed(_), None) => true,
            // A client with a new token repeats a request that was refused with 401.
            (CallFailure::Failed(_), Some(code)) => {
                !(400..500).contains(&code) || matches!(code, 401 | 408 | 429)
            }
        }
    }

    pub(super) fn problem(self) -> Problem {
        let is_transient = self.is_transient();
        match (self.code(), self) {
            (_, CallFailure::MayNotWrite) => Problem::MayNotWrite,
            (Some(409), _) => Problem::Lost,
            (Some(code), failure) if !is_transient => Problem::Refused {
                code,
                text: failure.text(),
            },
            (_, failure) => Problem::Transient(failure.text()),
        }
    }

    /// Returns the text of the API server, or of the error.
    pub(super) fn text(self) -> String {
        match self {
            CallFailure::MayNotWrite => String::new(),
            CallFailure::Failed(error) => match error.status() {
                Some(status) => status.message.clone(),
                None => error.to_string(),
            },
        }
    }
}
